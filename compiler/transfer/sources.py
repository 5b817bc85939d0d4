"""Values made from sizes and scalars."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise.axes import as_expr
from capwise.facts import FINITE, PADDED, Tail, filled, val
from capwise.ops import aten
from capwise.transfer.flow import Flow


def _arg(node: fx.Node, name: str, default: Any = None) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    return aten.argument(node.target, node.args, node.kwargs, name, default)


def factory(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    if row.how == "arange":
        _arange(flow, node)
        return
    if row.how == "scalar_tensor":
        _scalar(flow, node)
        return
    if row.how == "linspace":
        flow.scalars(node, [_arg(node, n) for n in ("start", "end", "steps")], can_be_tensor=False)
    axes = flow.axes_of(node)
    flow.fresh(node, axes, flow.plain_tails(axes, _fill(flow, node, row.how)))


def _fill(flow: Flow, node: fx.Node, how: str) -> Tail:
    if how in ("zeros", "ones"):
        return filled(0 if how == "zeros" else 1, own=True)
    if how == "full":
        value = _arg(node, "fill_value")
        if isinstance(value, (int, float, bool)):
            return filled(value, own=True)
        flow.scalars(node, [value], can_be_tensor=False)
        return filled(None, own=True)
    return PADDED


def _scalar(flow: Flow, node: fx.Node) -> None:
    """A host number turned into a tensor: with a device scalar it is the live extent itself."""
    flow.scalars(node, [node.args[0]], can_be_tensor=True)
    value = val(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    live = as_expr(value) if isinstance(value, torch.SymInt) else None
    flow.fresh(node, [], [], live=live)


def _arange(flow: Flow, node: fx.Node) -> None:
    """Row numbers. The end is an extent; a start or a step is content."""
    start, step = _arg(node, "start", 0) or 0, _arg(node, "step", 1)
    flow.scalars(node, [start, step], can_be_tensor=False)
    plain = start == 0 and step in (1, None)
    axes = flow.axes_of(node)
    tails = flow.plain_tails(axes, FINITE)
    low = start if isinstance(start, int) and (step in (1, None) or isinstance(step, int) and step > 0) else None
    flow.fresh(node, axes, tails, position=0 if plain else None, low=low)
