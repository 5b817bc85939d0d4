"""Copies in which some places are taken from another operand, and ops that only the data can size."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise.axes import ONE, as_expr
from capwise.facts import PADDED, Tail, fact, is_tensor, join, val
from capwise.ops import aten
from capwise.transfer import custom
from capwise.transfer.flow import SEAM, Flow, Hazard, broadcast_dim
from capwise.transfer.views import sliced


def _arg(node: fx.Node, name: str, default: Any = None) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    return aten.argument(node.target, node.args, node.kwargs, name, default)


def patch(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    {"slice": _slice, "select": _select, "masked": _masked, "strange": _strange}[row.how](flow, node)


def _operands(node: fx.Node, name: str) -> tuple[fx.Node, fx.Node]:
    target, source = node.args[0], _arg(node, name)
    assert isinstance(target, fx.Node) and isinstance(source, fx.Node)
    return target, source


def _slice(flow: Flow, node: fx.Node) -> None:
    """Rows start..end of a copy: their tail must be a tail of the copy, or it overwrites rows that live."""
    target, source = _operands(node, "src")
    value, piece = fact(target), fact(source)
    dim = _arg(node, "dim", 0) % len(value.axes)
    start, step = _arg(node, "start") or 0, _arg(node, "step", 1)
    axis, _ = sliced(flow, node, target, dim, start, val(source).shape[dim], step)
    flow.agree(node, [axis, piece.axes[dim]], axis)
    if flow.is_padded(axis) and isinstance(start, int):
        end = as_expr(start) + flow.space.size(axis)
        if step != 1 or end != flow.space.size(value.axes[dim]):
            label = "padded rows of the source take places of rows that live"
            flow.report(Hazard("CW202", node, "padded rows write into live rows", label, (SEAM,), source))
    _copy(flow, node, target, source, {d: d for d in range(len(value.axes))}, dim)


def _select(flow: Flow, node: fx.Node) -> None:
    """One row of a copy."""
    target, source = _operands(node, "src")
    value = fact(target)
    dim, index = _arg(node, "dim") % len(value.axes), _arg(node, "index")
    if not flow.is_padded(value.axes[dim]):
        flow.scalars(node, [index], can_be_tensor=False)
    elif not (isinstance(index, int) and index >= 0) or flow.space.layout(value.axes[dim])[0] != "leading":
        label = "counts from the captured end, or over the tail"
        flow.report(Hazard("CW202", node, "a row is chosen by the captured extent", label, (SEAM,), target))
    keep = [d for d in range(len(value.axes)) if d != dim]
    _copy(flow, node, target, source, {d: i for i, d in enumerate(keep)}, dim)


def _copy(flow: Flow, node: fx.Node, target: fx.Node, source: fx.Node, places: dict[int, int], dim: int) -> None:
    """The result: axes of the target; along `places` both run together, and a tail is one of the two."""
    axes, tails = list(fact(target).axes), list(fact(target).tails)
    for d, mine in places.items():
        theirs = fact(source)
        if d != dim:
            axes[d] = flow.agree(node, [axes[d], theirs.axes[mine]], axes[d])
        tails[d] = _either(tails[d], theirs.tails[mine]) if flow.is_padded(axes[d]) else tails[d]
    flow.fresh(node, axes, tails, [target, source])


def _either(first: Tail, second: Tail) -> Tail:
    return join((first, second)) if first.kind != "live" and second.kind != "live" else PADDED


def _masked(flow: Flow, node: fx.Node) -> None:
    """Places where the mask is true take the elements of the source in order. Row i takes as many as the rows before
    it have left, so that along the outermost dimension live rows need nothing of the tail; but a true tail would run
    past the source's end."""
    target, source = _operands(node, "source")
    mask = _arg(node, "mask")
    assert isinstance(mask, fx.Node)
    rank = val(node).dim()
    axes = []
    for d in range(rank):
        places = [(a, broadcast_dim(rank, len(fact(a).axes), d)) for a in (target, mask)]
        axes.append(flow.agree(node, [fact(a).axes[p] for a, p in places if p is not None], ONE))
    outer = next((d for d, a in enumerate(axes) if a != ONE), 0)
    for d in [d for d, a in enumerate(axes) if flow.is_padded(a)]:
        mine = broadcast_dim(rank, len(fact(mask).axes), d)
        leading = d == outer and flow.space.layout(axes[d])[0] == "leading"
        if not leading or mine is None or fact(mask).axes[mine] == ONE:
            label = "elements are taken in flat order, which counts over the tail"
            flow.report(Hazard("CW202", node, "padded rows shift what live rows take", label, (SEAM,), mask))
            continue
        flow.want(
            node, mask, mine, False, code="CW206", message="padded rows may take elements that do not exist",
            label="a true tail of the mask runs past the end of the source",
        )  # fmt: skip
    _flat(flow, node, source)
    flow.fresh(node, axes, flow.plain_tails(axes), [target, mask, source])


def _flat(flow: Flow, node: fx.Node, source: fx.Node) -> None:
    """What is read in flat order may have a tail only at its end."""
    axes = [a for a in fact(source).axes if a != ONE]
    late = any(flow.is_padded(a) for a in axes[1:])
    if late or axes and flow.is_padded(axes[0]) and flow.space.layout(axes[0])[0] != "leading":
        label = "the flat place of an element depends on the captured extent"
        flow.report(Hazard("CW202", node, "a padded tensor is read flat", label, (SEAM,), source))


def _strange(flow: Flow, node: fx.Node) -> None:
    """Diagonals and strides: places that the algebra does not follow."""
    target, source = _operands(node, "src")
    if any(flow.is_padded(a) for a in (*fact(target).axes, *fact(source).axes)):
        label = "steps over a padded axis by stride"
        flow.report(Hazard("CW202", node, "a write whose rows cannot be followed", label, (SEAM,), source))
    axes = flow.axes_of(node)
    flow.fresh(node, axes, flow.plain_tails(axes), [target, source])


def by_data(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """The host must know a size, or a number is drawn, before the next op can run."""
    if not aten.is_random(node.target):  # type: ignore[arg-type]
        label = "the host must wait for the device to know"
        flow.report(Hazard("CW002", node, f"{node.target}: output size depends on data", label, (SEAM,)))
    for arg in node.all_input_nodes:
        if is_tensor(arg) and flow.padded_dims(fact(arg)) and not flow.is_eager(node):
            flow.report(Hazard("CW202", node, "padded rows are drawn or counted", "reads the tail", (SEAM,), arg))
    custom.eager_results(flow, node)
