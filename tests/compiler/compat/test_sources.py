"""Graph inputs say where Dynamo took them from, and lines of files are read."""

from __future__ import annotations

import torch
from torch import fx

from capwise import compat


def test_a_graph_input_knows_where_dynamo_took_it_from():
    sources = []

    def backend(graph, _):
        sources.extend(compat.source_of(p) for p in graph.graph.find_nodes(op="placeholder"))
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert sources == ["L['x']"]
    assert compat.source_of(fx.Graph().placeholder("y")) == ""


def test_lines_of_a_file():
    assert compat.source_line(__file__, 1).startswith('"""') and compat.source_line("nowhere.py", 1) == ""
