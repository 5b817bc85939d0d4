"""Contiguous copies at the border of ops that assume them."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass, Editor
from capwise.ops import aten as table

aten = torch.ops.aten


class ContiguousCopy(CompilerPass):
    """An argument is copied dense iff its consumer assumes a stride that its producer does not promise; what the
    consumer writes is copied back."""

    name = "contiguous"
    needs = ("diagnostics",)
    gives = ("dense",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            if hazard.chosen is None or hazard.chosen.kind != "dense" or hazard.arg is None:
                continue
            self._copy(hazard.node, hazard.arg)
            changed = True
        return changed

    def _copy(self, node: fx.Node, arg: fx.Node) -> None:
        copy = Editor(self.state, node).call(aten.clone.default, arg, memory_format=torch.contiguous_format)
        op = node.target
        assert isinstance(op, torch._ops.OpOverload)
        is_written = any(table.argument(op, node.args, node.kwargs, n) is arg for n in table.written(op))
        node.replace_input_with(arg, copy)
        self.state.copies += 1
        if is_written:
            Editor(self.state, node.next).call(aten.copy_.default, arg, copy)
