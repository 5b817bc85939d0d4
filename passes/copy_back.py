"""Copies that carry a lost write back."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass, Editor


class CopyBack(CompilerPass):
    """A value is copied back to what it is a copy of iff an op's write to it would be lost otherwise."""

    name = "copy_back"
    needs = ("diagnostics",)
    gives = ("returned",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            if hazard.chosen is None or hazard.chosen.kind != "back" or hazard.chosen.arg is None:
                continue
            copy = hazard.chosen.arg
            Editor(self.state, hazard.node.next).call(torch.ops.aten.copy_.default, copy.args[0], copy)
            self.state.copies += 1
            changed = True
        return changed
