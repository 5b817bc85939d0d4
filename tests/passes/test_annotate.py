"""Every call has somebody who speaks for it, or is known to have nobody."""

from __future__ import annotations

import torch
from torch import nn

from capwise.facts import facts
from capwise.models.footguns import FOOTGUNS
from capwise.testing import withheld_contracts


def _sources(program):
    nodes = program.module.graph.nodes
    return {str(n.target): facts(n).found.source for n in nodes if n.op == "call_function"}


class Gated(nn.Module):
    def forward(self, x):
        return (x * x.shape[0]).view(x.shape[0] * 2, 2), x.split(2, dim=1)[1]


def test_tables_speak_for_aten_and_nobody_need_speak_for_host_arithmetic(program_of, make_case):
    found = _sources(program_of(make_case(Gated()), repair="none"))
    assert found["aten.mul.Tensor"] == found["aten.view.default"] == found["aten.split.Tensor"] == "table"
    assert {found[k] for k in found if "built-in" in k} == {"host"}


def test_a_declared_contract_speaks_unless_it_is_withheld(program_of):
    op = "capwise.ple_ngram_ids.default"
    assert _sources(program_of(FOOTGUNS["stale boundaries"].case()))[op] == "declared"
    torch._dynamo.reset()
    with withheld_contracts():
        assert _sources(program_of(FOOTGUNS["stale boundaries"].case()))[op] == "unknown"


def test_an_op_of_nobody_is_unknown(program_of):
    assert _sources(program_of(FOOTGUNS["opaque op"].case()))["footgun.opaque.default"] == "unknown"


def test_the_graph_stays_as_it_is(program_of, make_case):
    program = program_of(make_case(Gated()))
    assert program.text("annotate").count("\n") == program.text("provenance").count("\n")
