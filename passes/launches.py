"""What a launch of a Triton kernel must be sure of by itself: order of what goes through one pointer, offset width."""

from __future__ import annotations

import torch
from torch import fx

from capwise.axes import as_expr
from capwise.compilation import CompilerPass
from capwise.derive import Derivation
from capwise.facts import facts, val
from capwise.kernel_access import KernelHazard
from capwise.launch import Launch
from capwise.ops import aten
from capwise.ops.contract import Contract, Last
from capwise.runtime.kernel_call import KernelCall, widened
from capwise.transfer.flow import Hazard, Remedy
from capwise.transfer.offsets import largest

_LIMIT = 2**31


class Launches(CompilerPass):
    """A launch is sound by itself iff no two of its programs or warps meet where one writes through the pointer that
    the other reads through, and every offset that it computes in 32 bits stays below 2**31."""

    name = "launches"
    needs = ("contract", "rows")
    gives = ("launches",)
    codes = ("CW304", "CW403")

    def run(self, graph: fx.Graph) -> bool:
        for node in graph.nodes:
            found = facts(node).found
            if found is not None and found.derived is not None:
                self._kernel(node, found.derived)
            if found is not None and found.contract is not None and found.derived is None:
                self._declared(node, found.contract, found.source)
            if found is not None and found.source == "derived":
                self._assumed(node, found.contract, found.derived)
        return False

    def _assumed(self, node: fx.Node, contract: Contract, found: Derivation | None) -> None:
        said = []
        for line in found.call.summary.seen.finite if found is not None else ():
            said.append(f"the branch at line {line} of {node.target} multiplies what it masks with finite values")
        if found is None:
            said.append(f"the contract of {node.target} was read off what it launches for sample calls")
        if any(isinstance(axes.tail, Last) for axes in contract.arguments.values()):
            said.append(f"{node.target} is given boundaries that never fall, and rows below the last of them")
        self.state.report.assumptions += [text for text in said if text not in self.state.report.assumptions]

    def _kernel(self, node: fx.Node, found: Derivation) -> None:
        for row in found.call.summary.arguments:
            for hazard in row.hazards:
                if hazard.code == "CW304":
                    self._overlap(node, row.arg, hazard)
            if any(a.narrow for a in row.accesses):
                self._width(node, row.arg, found)

    def _declared(self, node: fx.Node, contract: Contract, source: str) -> None:
        """An op whose own author says that one launch reads what it writes: a seam races just as well."""
        if not contract.overlap:
            return
        targets = [n for n in (*contract.state, *aten.written(_op(node))) if _argument(node, n) is not None]
        what = ", ".join(dict.fromkeys(targets)) or "its arguments"
        message = f"{node.target} reads and writes overlapping places of {what}"
        label = "its contract says that nothing orders the two within a launch"
        arg = _argument(node, targets[0]) if targets else None
        self._add(Hazard("CW304", node, message, label, (), arg), source != "declared")

    def _add(self, hazard: Hazard, assumed: bool) -> None:
        hazard.verdict = "assumed" if assumed else "refuted"
        self.state.record(hazard)

    def _overlap(self, node: fx.Node, name: str, hazard: KernelHazard) -> None:
        arg = _argument(node, name)
        message = f"{node.target} reads and writes overlapping places of {name}"
        # Nothing that is done around the launch orders what happens inside of it.
        self._add(Hazard("CW304", node, message, hazard.needs, (), arg), hazard.verdict != "refuted")

    def _width(self, node: fx.Node, name: str, found: Derivation) -> None:
        """An offset of 32 bits fits by what it is made of, or by where it must lie; else the kernel is launched with
        scalars of 64 bits, where that makes all of its products wide. A mask that is made of the offset itself says
        nothing: an offset that has wrapped may pass it."""
        hazards = [h for row in found.call.summary.arguments if row.arg == name for h in row.hazards]
        needs = next((h.needs for h in hazards if h.code == "CW403"), None)
        large = self._largest(node, name, found.call)
        if large is None and needs is None or large is not None and large < _LIMIT:
            return
        arg = _argument(node, name)
        span = self._span(arg) if arg is not None and large is None else None
        wide = widened(found.call)
        remedies: tuple[Remedy, ...] = ()
        if span is not None and span <= _LIMIT:
            remedies = (Remedy("guard", "bound guard"),)
        elif wide is not None and self._fits(node, name, wide):
            remedies = (Remedy("widen", "64-bit offset"),)
        note = f"{name} spans at most {span} elements here" if span else f"the extent of {name} has no bound"
        note = f"an offset of {name} reaches {large}" if large is not None else note
        message = f"offsets of {name} in {node.target} are computed in 32 bits"
        label = f"needs {needs or 'its products below 2**31'}"
        self._add(Hazard("CW403", node, message, label, remedies, arg, notes=(note,)), large is None)

    def _fits(self, node: fx.Node, name: str, wide: KernelCall) -> bool:
        large = self._largest(node, name, wide)
        said = any(h.code == "CW403" for row in wide.summary.arguments if row.arg == name for h in row.hazards)
        return large < _LIMIT if large is not None else not said

    def _largest(self, node: fx.Node, name: str, call: KernelCall) -> int | None:
        if call.summary.unknown:
            return None
        most = {s: m for s, n in self.state.space.names.items() if (m := self.state.space.most.get(n)) is not None}
        ranges = {}
        for slot in call.pointers:
            value = _argument(node, slot)
            arrival = self.state.traced.arrivals.get(value) if value is not None else None
            spec = self.state.traced.specs.get(arrival.name) if arrival is not None else None
            if spec is not None and spec.range is not None:
                ranges[slot] = max(abs(int(n)) for n in spec.range)
        return largest(Launch.of(call, node, self.state.space.names), name, most, ranges)

    def _span(self, arg: fx.Node) -> int | None:
        """One past the last element of an argument, at the largest extents; None where it has no bound."""
        value = val(arg)
        most = {s: self.state.space.most.get(n) for s, n in self.state.space.names.items()}
        known = {s: m for s, m in most.items() if m is not None}
        sizes = [as_expr(n).subs(known) for n in (*value.shape, *value.stride())]
        if not all(n.is_Integer for n in sizes):
            return None
        rank = value.dim()
        return 1 + sum((int(n) - 1) * int(s) for n, s in zip(sizes[:rank], sizes[rank:]))


def _op(node: fx.Node) -> torch._ops.OpOverload:
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.target


def _argument(node: fx.Node, name: str) -> fx.Node | None:
    value = aten.argument(_op(node), node.args, node.kwargs, name) if aten.has_argument(_op(node), name) else None
    return value if isinstance(value, fx.Node) else None
