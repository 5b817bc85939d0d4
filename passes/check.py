"""Derives all facts again on the repaired graph."""

from __future__ import annotations

from torch import fx

from capwise.compilation import CompilerPass
from capwise.contracts import HOST, find
from capwise.facts import facts
from capwise.report import Diagnostic
from capwise.trace import span_of
from capwise.transfer.inputs import analyse


class Check(CompilerPass):
    """The repaired graph is sound iff no hazard is left that was not answered by capacity or a seam."""

    name = "check"
    needs = ("filled", "scalars", "masked", "dense")
    gives = ("checked",)
    codes = ("CW901",)

    def run(self, graph: fx.Graph) -> bool:
        state = self.state
        state.eager = {n: facts(n).why_eager for n in graph.nodes if facts(n).eager}
        for node in graph.nodes:
            facts(node).found = find(node, state.space.names) if node.op == "call_function" else HOST
        flow = analyse(state, state.staged_fills, state.eager)
        state.scratch = sorted(set(flow.scratch))
        if state.options.repair == "none":
            return False
        for hazard in flow.hazards:
            answered = hazard.chosen is not None and hazard.chosen.kind in ("allow", "capacity")
            if answered or hazard.node in state.eager:
                continue
            facts(hazard.node).eager = True
            state.eager[hazard.node] = "CW901"
            state.report.add(
                Diagnostic(
                    "CW901",
                    "refuted",
                    hazard.node.name,
                    f"a repair did not remove {hazard.code}: {hazard.message}",
                    label=hazard.label,
                    span=span_of(hazard.node),
                    repair="seam",
                    notes=hazard.notes,
                    op=str(hazard.node.target),
                )
            )
        return False
