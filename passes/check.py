"""Derives all facts again on the repaired graph."""

from __future__ import annotations

from torch import fx

from capwise.compilation import CompilerPass
from capwise.contracts import HOST, find
from capwise.facts import facts, val
from capwise.ops.contract import Frozen
from capwise.report import Diagnostic
from capwise.trace import span_of
from capwise.transfer.flow import Hazard
from capwise.transfer.inputs import analyse
from capwise.transfer.strides import is_satisfied, needs


class Check(CompilerPass):
    """The repaired graph is sound iff no hazard is left that was not answered by capacity or a seam."""

    name = "check"
    needs = ("filled", "scalars", "masked", "dense", "returned", "finished")
    gives = ("checked",)
    codes = ("CW901",)

    def run(self, graph: fx.Graph) -> bool:
        state = self.state
        state.eager = {n: facts(n).why_eager for n in graph.nodes if facts(n).eager}
        for node in graph.nodes:
            facts(node).found = find(node, state.space.names) if node.op == "call_function" else HOST
        while True:
            flow = analyse(state, state.staged_fills, state.eager)
            left = [] if state.options.repair == "none" else [h for h in flow.hazards if self._is_left(h)]
            if not left:
                break
            for hazard in left:
                if hazard.node not in state.eager:
                    state.eager[hazard.node] = "CW901"
                    self._report(hazard, "seam")
        state.scratch = sorted(set(flow.scratch))
        state.eager = {n: facts(n).why_eager for n in graph.nodes if facts(n).eager}
        self._strides(graph)
        return False

    def _is_left(self, hazard: Hazard) -> bool:
        answered = hazard.chosen is not None and hazard.chosen.kind in ("allow", "capacity")
        return not answered and hazard.node not in self.state.eager

    def _strides(self, graph: fx.Graph) -> None:
        """A seam would not help a consumer that reads the wrong elements."""
        answered = {(h.node, h.arg) for h in self.state.hazards if h.chosen is not None and h.chosen.kind != "dense"}
        for node in graph.nodes:
            for name, need, arg in needs(node):
                wrong = not isinstance(need, Frozen) and not is_satisfied(need, val(arg))
                if wrong and (node, arg) not in answered and self.state.options.repair != "none":
                    message = f"{node.target} assumes a stride that {name} does not have"
                    self._report(Hazard("CW401", node, message, "", (), arg), None)

    def _report(self, hazard: Hazard, repair: str | None) -> None:
        self.state.report.add(
            Diagnostic(
                "CW901",
                "refuted",
                hazard.node.name,
                f"a repair did not remove {hazard.code}: {hazard.message}",
                label=hazard.label,
                span=span_of(hazard.node),
                repair=repair,
                notes=hazard.notes,
                op=str(hazard.node.target),
            )
        )
