"""Kernels launched with 64-bit scalars."""

from __future__ import annotations

from torch import fx

from capwise.compilation import CompilerPass
from capwise.runtime.kernel_call import call_of, widened


class Widen(CompilerPass):
    """A kernel is launched with integer scalars of 64 bits iff an offset made of them could overflow 32."""

    name = "widen"
    needs = ("diagnostics",)
    gives = ("wide",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            call = call_of(hazard.node.target)
            if hazard.chosen is None or hazard.chosen.kind != "widen" or call is None:
                continue
            wide = widened(call)
            if wide is not None:
                hazard.node.target, changed = wide.op, True
        return changed
