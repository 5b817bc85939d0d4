"""Which ops run in which captured piece, and which between pieces."""

from __future__ import annotations

import networkx as nx
from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import fact, has_fact, is_tensor, val
from capwise.program import is_free, written_arguments
from capwise.transfer.seams import anchors, levels_of


class Plan(CompilerPass):
    """Two ops stand in one piece iff no seam must run between them.

    Works on the DAG of data, aliases and mutation, not on the printed order: the level of an op is the least that its
    predecessors allow, pieces at odd levels, seams at even ones. The number of pieces is that of the longest
    alternating chain, the least possible for these seams.
    """

    name = "plan"
    needs = ("checked",)
    gives = ("levels",)

    def run(self, graph: fx.Graph) -> bool:
        self.state.order = ordering(graph)
        self.state.levels = levels_of(self.state.order)
        return False


def ordering(graph: fx.Graph) -> nx.DiGraph:
    """Every op that does work, with an edge wherever one must come before the other: data, write after read, read after
    write, write after write on one storage."""
    dag: nx.DiGraph = nx.DiGraph()
    writer: dict[int, fx.Node] = {}
    readers: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op != "call_function" or is_free(node):
            continue
        dag.add_node(node)
        dag.add_edges_from((source, node) for source in anchors(node) if source in dag)
        written = {s for a in written_arguments(node) if (s := _storage(a)) is not None}
        read = {s for a in node.all_input_nodes if (s := _storage(a)) is not None}
        for storage in read | written:
            if storage in writer and writer[storage] is not node:
                dag.add_edge(writer[storage], node)
        for storage in written:
            dag.add_edges_from((r, node) for r in readers.pop(storage, []) if r is not node)
            writer[storage] = node
        for storage in read:
            readers.setdefault(storage, []).append(node)
    return dag


def _storage(node: fx.Node) -> int | None:
    if has_fact(node):
        return fact(node).storage
    return val(node).untyped_storage()._cdata if is_tensor(node) else None
