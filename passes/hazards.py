"""Hazards of the analysis as Diagnostics: what the user reads."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import fact, facts, has_fact
from capwise.program import is_free
from capwise.report import Diagnostic, PathStep
from capwise.trace import span_of
from capwise.transfer.flow import Hazard, show_value

_HELP = {
    "CW001": ("declare a contract: capwise.contract",),
    "CW002": ("compute it on the device, or keep the seam",),
    "CW101": ("add the symbol to the key",),
    "CW102": ("pass the live extent as a device scalar: capwise.Live",),
    "CW201": ("hand over the whole buffer: capwise.Buffer",),
    "CW202": ("mask padded rows with the live extent: capwise.Live",),
    "CW204": ("name the null row: capwise.Input(..., null=0)",),
    "CW206": ("clamp the index",),
    "CW304": ("read from a clone of what is written", "put a barrier between the loads and the stores of a program"),
    "CW305": ("declare what the op writes: mutates_args", "write to the view itself"),
    "CW401": ("pass the stride to the kernel", "make the argument contiguous where it is made"),
    "CW601": ("decode in the format that was written", "keep the format with the bytes"),
    "CW403": ("widen the row number to 64 bits before it is multiplied",),
}


class Hazards(CompilerPass):
    """A hazard is reported iff some batch could make replay differ from eager there, with what was done about it."""

    name = "hazards"
    needs = ("rows", "strides", "launches", "overlaps", "mutations", "waits", "formats", "hazards")
    gives = ("diagnostics",)

    def run(self, graph: fx.Graph) -> bool:
        left = {h.identity: h for h in self.state.hazards}
        shown: set[tuple[object, ...]] = set()
        for hazard in _unique([*self.state.trial, *self.state.hazards]):
            final = left.get(hazard.identity)
            diagnostic = self._diagnostic(final or hazard, self._repair(hazard, final))
            message = "" if hazard.code == "CW101" else diagnostic.message
            notes = diagnostic.notes if hazard.code == "CW001" else ()
            where = (diagnostic.span.file, diagnostic.line)
            place = (diagnostic.code, where, diagnostic.repair, hazard.symbol, message, notes)
            if place not in shown:
                shown.add(place)
                self.state.report.add(diagnostic)
        self._conflicts()
        self._stacked(graph)
        return False

    def _repair(self, hazard: Hazard, final: Hazard | None) -> str | None:
        last = (final or hazard).chosen
        if last is None or last.kind == "allow":
            return None
        if final is not None:
            return last.label
        assert hazard.chosen is not None
        if hazard.chosen.label == "null slot fill":
            return hazard.chosen.label
        names = self._filled_inputs(hazard)
        values = sorted({show_value(self.state.staged_fills[n]) for n in names})
        return f"fill {', '.join(values)}" if values else hazard.chosen.label

    def _filled_inputs(self, hazard: Hazard) -> list[str]:
        if hazard.arg is None or not has_fact(hazard.arg):
            return []
        return sorted(n for n in fact(hazard.arg).inputs if n in self.state.staged_fills)

    def _diagnostic(self, hazard: Hazard, repair: str | None) -> Diagnostic:
        return Diagnostic(
            code=hazard.code,
            verdict=hazard.verdict,
            node=hazard.node.name,
            message=hazard.message,
            label=hazard.label,
            span=span_of(hazard.node),
            repair=repair,
            path=tuple(self._path(hazard)),
            notes=hazard.notes,
            help=_HELP.get(hazard.code, ())[:2],
            candidates=tuple((r.label, r.cost) for r in hazard.remedies),
            evidence=(("symbol", hazard.symbol),) if hazard.symbol else (),
            op=str(hazard.node.target),
        )

    def _path(self, hazard: Hazard) -> Iterable[PathStep]:
        """From the input whose tail it is to the op, by the shortest way back."""
        node = hazard.arg
        steps: list[PathStep] = []
        while node is not None and len(steps) < 12:
            what = f"{node.name}: {fact(node)}" if has_fact(node) else node.name
            steps.append(PathStep(what, span_of(node)))
            known = [a for a in node.all_input_nodes if has_fact(a) and fact(a).inputs]
            node = known[0] if known else None
        return reversed(steps)

    def _conflicts(self) -> None:
        """One buffer, two consumers, two fills: the second gets a copy of its own."""
        for hazard in self.state.hazards:
            if hazard.chosen is None or hazard.chosen.kind != "fill":
                continue
            for fix in hazard.chosen.fixes:
                # A view of a staged input has its source and its tail.
                staged = has_fact(fix.arg) and fact(fix.arg).origin in ("staged", "buffer")
                name = fact(fix.arg).source if staged else ""
                if name in self.state.staged_fills and self.state.staged_fills[name] != fix.value:
                    self._conflict(hazard, name, fix.value)

    def _conflict(self, hazard: Hazard, name: str, value: object) -> None:
        first = show_value(self.state.staged_fills[name])
        self.state.report.add(
            Diagnostic(
                "CW203",
                "refuted",
                hazard.node.name,
                f"two consumers need different fills of {name!r}",
                label=f"needs {show_value(value)}, the buffer is filled with {first}",
                span=span_of(hazard.node),
                repair="second staged copy",
                op=str(hazard.node.target),
            )
        )

    def _stacked(self, graph: fx.Graph) -> None:
        """Values of seams that pieces read come from the allocator: another address every step."""
        for node in graph.nodes:
            if not facts(node).eager or not has_fact(node):
                continue
            if fact(node).origin == "eager" and _is_read_captured(node):
                self.state.report.add(
                    Diagnostic(
                        "CW301",
                        "refuted",
                        node.name,
                        "the address of an eager result is not stable",
                        label="a captured piece reads it at the address of capture",
                        span=span_of(node),
                        repair="stage into a static buffer" if self.state.options.repair != "none" else None,
                        op=str(node.target),
                    )
                )


def _is_read_captured(node: fx.Node) -> bool:
    """Whether some captured op reads a value, seen through views."""
    return any(
        _is_read_captured(user) if is_free(user) else not facts(user).eager
        for user in node.users
        if user.op == "call_function"
    )


def _unique(hazards: Iterable[Hazard]) -> Iterable[Hazard]:
    seen: set[tuple[str, str, str]] = set()
    for hazard in hazards:
        if hazard.identity not in seen:
            seen.add(hazard.identity)
            yield hazard
