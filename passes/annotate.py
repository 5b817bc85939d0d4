"""Attaches to every op what speaks for it: a declared contract, a table row, or nothing."""

from __future__ import annotations

from torch import fx

from capwise.compilation import CompilerPass
from capwise.contracts import HOST, find
from capwise.facts import facts
from capwise.observe import learn


class Annotate(CompilerPass):
    """A node is annotated iff it is a call; an op that nothing speaks for is annotated as unknown."""

    name = "annotate"
    gives = ("contract",)

    def run(self, graph: fx.Graph) -> bool:
        for node in graph.nodes:
            facts(node).found = find(node, self.state.space.names) if node.op == "call_function" else HOST
            if node.op == "call_function" and self.state.options.repair != "none":
                learn(node, facts(node).found.contract)
        return False
