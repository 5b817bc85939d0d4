"""Temporaries for what a call reads where it writes."""

from __future__ import annotations

import torch
from torch import fx

from capwise.allow import allowed
from capwise.compilation import CompilerPass, Editor, replace_read
from capwise.transfer.meetings import meetings

aten = torch.ops.aten


class Temporary(CompilerPass):
    """An argument is read from a copy that is made before the call iff the call may write what it reads, also once the
    other repairs are made; a filled argument is a copy already."""

    name = "temporary"
    needs = ("overlaps", "filled", "masked", "dense")
    gives = ("temporaries",)

    def run(self, graph: fx.Graph) -> bool:
        if self.state.options.repair == "none":
            return False
        before = self.state.copies
        for node in list(graph.nodes):
            found = meetings(node, self.state.space) if allowed(node, "CW304") is None else []
            for arg in dict.fromkeys(m.arg for m in found):
                copy = Editor(self.state, node).call(aten.clone.default, arg, memory_format=torch.contiguous_format)
                replace_read(node, arg, copy)
                self.state.copies += 1
        return self.state.copies > before
