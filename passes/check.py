"""Derives all facts again on the repaired graph."""

from __future__ import annotations

from torch import fx

from capwise.allow import allowed
from capwise.compilation import CompilerPass
from capwise.contracts import HOST, find
from capwise.facts import facts, val
from capwise.ops.contract import Frozen
from capwise.report import Diagnostic
from capwise.trace import span_of
from capwise.transfer.carried import possible_readers
from capwise.transfer.flow import Flow, Hazard
from capwise.transfer.inputs import analyse
from capwise.transfer.meetings import meetings
from capwise.transfer.strides import is_satisfied, needs


class Check(CompilerPass):
    """The repaired graph is sound iff no hazard is left that was not answered by capacity or a seam."""

    name = "check"
    needs = ("filled", "scalars", "masked", "dense", "temporaries", "returned", "finished", "readable", "wide")
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
        self._carried(flow, graph)
        state.eager = {n: facts(n).why_eager for n in graph.nodes if facts(n).eager}
        self._strides(graph)
        self._overlaps(graph)
        return False

    def _is_left(self, hazard: Hazard) -> bool:
        answered = hazard.chosen is not None and hazard.chosen.kind in ("allow", "capacity", "generator")
        return not answered and hazard.node not in self.state.eager

    def _carried(self, flow: Flow, graph: fx.Graph) -> None:
        """A row that an earlier program of the model gave to padded rows must not be read here: its repair is made."""
        found = possible_readers(flow, graph)
        by_name = {node.name: node for node in graph.nodes}
        for owner in sorted(self.state.taken & set(found)):
            node = by_name[found[owner]]
            message = f"padded rows of an earlier program reach live rows through {owner!r}"
            label = "reads a row that the program of another signature took for its null row"
            help_ = ("call the model with this signature first, or read the rows of slots only",)
            self.state.report.add(
                Diagnostic(
                    "CW202", "refuted", node.name, message, label=label, span=span_of(node), help=help_,
                    op=str(node.target),
                )
            )  # fmt: skip
        self.state.whole = {**found, **self.state.whole}

    def _strides(self, graph: fx.Graph) -> None:
        """A seam would not help a consumer that reads the wrong elements."""
        copied = ("dense", "temporary")  # copies must be what the consumer assumes
        chosen = [(h, h.chosen.kind) for h in self.state.hazards if h.chosen is not None]
        answered = {(h.node, h.arg) for h, kind in chosen if kind not in copied}
        for node in graph.nodes:
            for name, need, arg in needs(node):
                wrong = not isinstance(need, Frozen) and not is_satisfied(need, val(arg))
                if wrong and (node, arg) not in answered and self.state.options.repair != "none":
                    message = f"{node.target} assumes a stride that {name} does not have"
                    self._report(Hazard("CW401", node, message, "", (), arg), None)

    def _overlaps(self, graph: fx.Graph) -> None:
        """A call that reads where it writes, and that nobody answers for."""
        if self.state.options.repair == "none":
            return
        for node in graph.nodes:
            for found in meetings(node, self.state.space):
                if allowed(node, "CW304") is None:
                    self._report(Hazard("CW304", node, str(found), "", (), found.arg), None)

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
