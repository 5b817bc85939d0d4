"""Live, filled and padded rows, forward; fills that consumers want, backward."""

from __future__ import annotations

import torch
from torch import fx

from capwise.axes import Rows
from capwise.compilation import CompilerPass
from capwise.facts import fact, has_fact
from capwise.transfer.flow import LAST, Hazard, Value
from capwise.transfer.inputs import analyse


class Padding(CompilerPass):
    """A padded row is harmless iff no live row and no owned state depends on it, or it holds what its consumer calls
    neutral.

    Two runs: the first asks what consumers want of tails that hold anything; what can be had from the arena, which
    must write the tails of staged inputs anyway, is then taken as given, and the second run says what is left.
    """

    name = "padding"
    needs = ("devices", "contract", "symbols", "capacity", "origin")
    gives = ("rows", "hazards")
    codes = ("CW001", "CW002", "CW003", "CW101", "CW102", "CW104", "CW201", "CW202", "CW204", "CW206")

    def run(self, graph: fx.Graph) -> bool:
        state = self.state
        trial = analyse(state, {}, {})
        state.trial = trial.hazards
        state.staged_fills = self._fills(trial.hazards) if state.options.repair == "auto" else {}
        flow = analyse(state, state.staged_fills, {})
        state.hazards = flow.hazards
        state.scratch = flow.scratch
        return False

    def _fills(self, hazards: list[Hazard]) -> dict[str, Value]:
        wants: dict[str, list[tuple[bool, Value]]] = {}
        for hazard in hazards:
            if hazard.chosen is None or hazard.chosen.kind not in ("fill", "wrap"):
                continue
            for fix in hazard.chosen.fixes:
                for name, value in self._candidates(fix.arg, fix.dim, fix.value):
                    # Any row that exists will do for an index: what others want of the same tail comes first.
                    wants.setdefault(name, []).append((hazard.code == "CW206", value))
        ordered = {name: [v for _, v in sorted(found, key=lambda w: w[0])] for name, found in wants.items()}
        return {name: self._choose(name, values) for name, values in ordered.items()}

    def _candidates(self, arg: fx.Node, dim: int, value: Value) -> list[tuple[str, Value]]:
        """Inputs whose tails could bring this about: the argument itself, or what it is computed from."""
        if not has_fact(arg):
            return []
        root = arg if arg.op == "placeholder" else None
        if root is not None and self.state.traced.arrivals[root].kind == "input":
            return [(self.state.traced.arrivals[root].name, value)]
        axis = fact(arg).axes[dim]
        # A view of an input has its tail; the last row of it only where rows are what the input calls rows.
        if fact(arg).origin in ("staged", "buffer") and (value != LAST or len(axis) == 1 and isinstance(axis[0], Rows)):
            return [(fact(arg).source, value)]
        symbols = self.state.space.symbols(axis)
        names = [n for n in fact(arg).inputs if symbols & set(self.state.traced.specs[n].symbols)]
        return [(n, None) for n in names]

    def _choose(self, name: str, values: list[Value]) -> Value:
        """What the user said; else what the first consumer of the input itself wants; else what is usual."""
        spec = self.state.traced.specs[name]
        if spec.fill is not None:
            return spec.fill
        direct = [v for v in values if v is not None]
        if spec.null is not None and not (direct and all(v == LAST for v in direct)):
            return spec.null
        if direct:
            return direct[0]
        node = next(n for n, a in self.state.traced.arrivals.items() if a.kind == "input" and a.name == name)
        boundary = any(d.symbol and d.offset for d in spec.dims)
        integer = not node.meta["val"].dtype.is_floating_point and node.meta["val"].dtype != torch.bool
        return LAST if boundary and integer else 0
