"""Keeps what padded rows of owned state hold."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass, Editor
from capwise.facts import fact, facts, val
from capwise.transfer.flow import Hazard

aten = torch.ops.aten


class MaskedWrite(CompilerPass):
    """A write to owned state is masked iff it runs over rows past the live extent: those rows are written back as they
    were."""

    name = "masked_write"
    needs = ("diagnostics",)
    gives = ("masked",)

    def run(self, graph: fx.Graph) -> bool:
        todo = [h for h in self.state.hazards if h.chosen is not None and h.chosen.kind == "keep"]
        for hazard in todo:
            if not facts(hazard.node).eager:
                self._mask(hazard)
        return bool(todo)

    def _mask(self, hazard: Hazard) -> None:
        node, chosen = hazard.node, hazard.chosen
        assert chosen is not None and chosen.arg is not None
        target, dim = chosen.arg, chosen.dim
        is_copy = node.target is aten.copy_.default and node.args[0] is target
        edit = Editor(self.state, node if is_copy else node.next)
        if is_copy:
            source = node.args[1]
            assert isinstance(source, fx.Node)
        else:
            with self.state.graph.inserting_before(node):
                source = Editor(self.state, node).call(aten.clone.default, target)
            node.replace_input_with(target, source)
        masked = self._where(edit, source, target, dim)
        if is_copy:
            node.args = (target, masked)
        else:
            edit.call(aten.copy_.default, target, masked)
        self.state.fills += 1

    def _where(self, edit: Editor, source: fx.Node, target: fx.Node, dim: int) -> fx.Node:
        axis = fact(target).axes[dim]
        rows = edit.call(aten.arange.default, edit.size(target, dim), device=val(target).device)
        mask = edit.call(aten.lt.Tensor, rows, edit.expression(self.state.space.size(axis)))
        for _ in range(val(target).dim() - dim - 1):
            mask = edit.call(aten.unsqueeze.default, mask, -1)
        if val(source).dtype != val(target).dtype:
            source = edit.call(aten._to_copy.default, source, dtype=val(target).dtype)
        return edit.call(aten.where.self, mask, source, target)
