"""Writes neutral values into the tails of single arguments."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from capwise.axes import Rows
from capwise.compilation import CompilerPass, Editor, replace_read
from capwise.facts import fact, facts, val
from capwise.transfer.flow import LAST, Fix

aten = torch.ops.aten


class Fill(CompilerPass):
    """An argument gets a filled copy iff a hazard was to be repaired by a fill that the arena does not give.

    The fill is plain ATen on live device scalars (a mask and a `where`, or a gather of the last live row), so that the
    analysis can prove it again and Inductor can fuse it.
    """

    name = "fill"
    needs = ("diagnostics",)
    gives = ("filled",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            if hazard.chosen is None or facts(hazard.node).eager:
                continue
            if hazard.chosen.kind == "fill":
                for fix in hazard.chosen.fixes:
                    self._fill(hazard.node, fix)
                changed = True
            elif hazard.chosen.kind == "wrap" and hazard.arg is not None:
                self._wrap(hazard.node, hazard.arg, hazard.chosen.extent)
                changed = True
        return changed

    def _fill(self, node: fx.Node, fix: Fix) -> None:
        """Later fixes of the same argument stack on earlier ones."""
        arg = self._current(node, fix.arg)
        if arg is None:
            return
        edit = Editor(self.state, node)
        axis = fact(fix.arg).axes[fix.dim]
        if self.state.space.layout(axis)[0] == "leading":
            result = self._tail(edit, arg, fix.dim, self.state.space.size(axis), fix.value)
        else:
            result = self._inner(edit, arg, fix)
        result.meta["capwise_of"] = fix.arg
        replace_read(node, arg, result)
        self.state.fills += 1

    def _current(self, node: fx.Node, wanted: fx.Node) -> fx.Node | None:
        for arg in node.all_input_nodes:
            if arg is wanted or arg.meta.get("capwise_of") is wanted:
                return arg
        return None

    def _inner(self, edit: Editor, arg: fx.Node, fix: Fix) -> fx.Node:
        """The tail of a minor factor: the axis is taken apart, filled, and put together again."""
        axis = fact(fix.arg).axes[fix.dim]
        at = next(i for i, a in enumerate(axis) if isinstance(a, Rows))
        shape = [edit.size(arg, d) for d in range(val(arg).dim())]
        known = 1
        for atom in axis:
            known *= atom if isinstance(atom, int) else 1
        rest = edit.call(operator.floordiv, shape[fix.dim], known)
        parts = [rest if i == at else a for i, a in enumerate(axis)]
        apart = edit.call(aten.reshape.default, arg, [*shape[: fix.dim], *parts, *shape[fix.dim + 1 :]])
        filled = self._tail(edit, apart, fix.dim + at, self.state.space.size((axis[at],)), fix.value)
        return edit.call(aten.reshape.default, filled, shape)

    def _tail(self, edit: Editor, arg: fx.Node, dim: int, live: Any, value: Any) -> fx.Node:
        device = val(arg).device
        rows = edit.call(aten.arange.default, edit.size(arg, dim), device=device)
        bound = edit.expression(live)
        if value == LAST:
            index = edit.call(aten.minimum.default, rows, edit.call(aten.sub.Tensor, bound, 1))
            return edit.call(aten.index_select.default, arg, dim, index)
        mask = row_mask(edit, rows, bound, val(arg).dim() - dim - 1)
        return edit.call(aten.where.ScalarOther, mask, arg, _cast(value, val(arg).dtype))

    def _wrap(self, node: fx.Node, index: fx.Node, live: Any) -> None:
        arg = self._current(node, index)
        if arg is None:
            return
        edit = Editor(self.state, node)
        result = edit.call(aten.remainder.Tensor, arg, edit.expression(live))
        result.meta["capwise_of"] = index
        replace_read(node, arg, result)
        self.state.fills += 1


def row_mask(edit: Editor, rows: fx.Node, bound: fx.Node, after: int) -> fx.Node:
    """True on live rows, shaped to broadcast over `after` trailing dimensions."""
    mask = edit.call(aten.lt.Tensor, rows, bound)
    for _ in range(after):
        mask = edit.call(aten.unsqueeze.default, mask, -1)
    return mask


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)
