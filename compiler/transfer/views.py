"""Views and joins: no arithmetic, only which axis is where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from capwise.axes import ONE, Axis, Rows, as_expr
from capwise.facts import LIVE, PADDED, Fact, Tail, fact, facts, filled, is_tensor, join, val
from capwise.ops import aten
from capwise.transfer.flow import LAST, SEAM, Flow, Hazard


def _arg(node: fx.Node, name: str, default: Any = None) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    return aten.argument(node.target, node.args, node.kwargs, name, default)


def view(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    _VIEWS[row.how](flow, node)


def _emit(flow: Flow, node: fx.Node, axes: Sequence[Axis], tails: Sequence[Tail], source: fx.Node, **more: Any) -> None:
    origin = fact(source)
    more = {"low": origin.low, "live_low": origin.live_low, "below": origin.below, **more}
    flow.set(
        node,
        Fact(tuple(axes), tuple(tails), origin.storage, origin.origin, origin.source, inputs=origin.inputs, **more),
    )


def _same(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    _emit(flow, node, value.axes, value.tails, source, position=value.position, live=value.live, keeps=value.keeps)


def _reshape(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value, shape = fact(source), val(node).shape
    axes = flow.space.regroup(value.axes, shape)
    tails = [_carried(flow, value, axis) for axis in axes]
    position = value.position if tuple(a for a in axes if a != ONE) == value.axes else None
    if position is not None:
        position = next(i for i, a in enumerate(axes) if a != ONE)
    _emit(flow, node, axes, tails, source, position=position)


def _carried(flow: Flow, value: Fact, axis: Axis) -> Tail:
    """The tail of a re-dealt axis: that of the axes whose atoms it took."""
    if not flow.is_padded(axis):
        return LIVE
    symbols = flow.space.symbols(axis)
    met = [t for a, t in zip(value.axes, value.tails) if flow.space.symbols(a) & symbols & flow.space.padded]
    tail = join(met) if met else PADDED
    whole = any(a == axis for a in value.axes)
    return tail if whole or not tail.own else replace(tail, own=False)


def _permute(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rank = len(fact(source).axes)
    order = list(range(rank))
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    if name == "permute":
        order = [d % rank for d in _arg(node, "dims")]
    elif rank >= 2:
        a, b = (0, 1) if name == "t" else (_arg(node, "dim0") % rank, _arg(node, "dim1") % rank)
        order[a], order[b] = order[b], order[a]
    value = fact(source)
    position = order.index(value.position) if value.position is not None else None
    _emit(flow, node, [value.axes[d] for d in order], [value.tails[d] for d in order], source, position=position)


def _unsqueeze(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    at = _arg(node, "dim") % (len(value.axes) + 1)
    axes, tails = list(value.axes), list(value.tails)
    axes.insert(at, ONE)
    tails.insert(at, LIVE)
    position = None if value.position is None else value.position + (value.position >= at)
    _emit(flow, node, axes, tails, source, position=position)


def _squeeze(flow: Flow, node: fx.Node) -> None:
    """A symbolic axis is never squeezed: whether it has one row would change the rank."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    rank = len(value.axes)
    dims = _arg(node, "dim") if aten.has_argument(node.target, "dim") else list(range(rank))  # type: ignore[arg-type]
    dims = [d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
    gone = [d for d in dims if value.axes[d] == ONE]
    if any(flow.is_padded(value.axes[d]) for d in dims):
        message = "squeeze of an axis whose extent changes"
        flow.report(Hazard("CW102", node, message, "the rank of the result depends on the extent", (SEAM,)))
    keep = [d for d in range(rank) if d not in gone][: val(node).dim()]
    position = keep.index(value.position) if value.position in keep else None
    _emit(flow, node, [value.axes[d] for d in keep], [value.tails[d] for d in keep], source, position=position)


def _slice(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    dim = (_arg(node, "dim") or 0) % len(value.axes)
    start, step = _arg(node, "start"), _arg(node, "step", 1)
    old, size = value.axes[dim], val(node).shape[dim]
    axes, tails = list(value.axes), list(value.tails)
    axes[dim], tails[dim] = sliced(flow, node, source, dim, start or 0, size, step)
    # Row numbers from the first on are still their own places, however many are taken.
    from_first = dim == value.position and isinstance(start or 0, int) and not start and step == 1
    position = value.position if axes[dim] == old or from_first else None
    _emit(flow, node, axes, tails, source, position=position)


def sliced(
    flow: Flow, node: fx.Node, source: fx.Node, dim: int, start: Any, size: object, step: int
) -> tuple[Axis, Tail]:
    """Axis and tail of rows start.. of a dimension, of which there are `size`."""
    old, tail = fact(source).axes[dim], fact(source).tails[dim]
    if not flow.is_padded(old):
        # Rows of a buffer at a symbolic extent: past the live ones stands whatever the buffer holds.
        axis = flow.space.axis(size)
        if isinstance(start, fx.Node) or step != 1 and flow.is_padded(axis):
            axis = _opaque(flow, node, size)
        return axis, PADDED if flow.is_padded(axis) else LIVE
    if isinstance(start, int) and start >= 0 and step == 1:
        axis = flow.space.slice(old, start, size)
        scattered = axis != old and flow.space.layout(old)[0] != "leading"
        if not scattered and (flow.space.is_opaque(old) or not flow.space.is_opaque(axis)):
            return axis, _shifted(old, axis, tail) if flow.is_padded(axis) else LIVE
    axis = _opaque(flow, node, size)
    return axis, PADDED if flow.is_padded(axis) else LIVE


def _opaque(flow: Flow, node: fx.Node, size: object) -> Axis:
    axis = flow.space._fallback(size)
    if not flow.is_padded(axis):
        flow.report(
            Hazard("CW202", node, "a fixed number of rows is taken from a padded axis", "may reach tail rows", (SEAM,))
        )
        return axis
    label = "which rows these are depends on the live extent"
    flow.report(Hazard("CW202", node, "rows are chosen by the captured extent", label, (SEAM,)))
    return axis


def _shifted(old: Axis, new: Axis, tail: Tail) -> Tail:
    """The tail after a slice that ends earlier: live rows of the source come to stand past the live extent."""
    if old == new or not (isinstance(old[0], Rows) and new and isinstance(new[0], Rows)):
        return tail if old == new else PADDED
    if new[0].hi == old[0].hi:
        return tail
    # One row shorter: the first row past the end is the source's last live row, which an own fill repeats.
    return filled(tail.value) if tail.own and tail.value is not None and new[0].hi == old[0].hi - 1 else PADDED


def _unfold(flow: Flow, node: fx.Node) -> None:
    """Windows of rows: with step 1 the window that begins at row i reads rows i.. of it, so that as many windows are
    live as end before the tail."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    dim, window, step = _arg(node, "dimension") % len(value.axes), _arg(node, "size"), _arg(node, "step")
    size = val(node).shape[dim]
    axes, tails = list(value.axes), list(value.tails)
    if flow.is_padded(axes[dim]):
        fixed = step == 1 and isinstance(window, int) and flow.space.layout(axes[dim])[0] == "leading"
        axis = flow.space.slice(axes[dim], window - 1, size) if fixed else None
        axes[dim] = _opaque(flow, node, size) if axis is None or flow.space.is_opaque(axis) else axis
        tails[dim] = PADDED
    else:
        axes[dim] = flow.space.axis(size)
    _emit(flow, node, [*axes, flow.space.axis(window)], [*tails, LIVE], source)


def _complex(flow: Flow, node: fx.Node) -> None:
    """A complex number as a last dimension of two, or back."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    rank = val(node).dim()
    axes, tails = [*value.axes, flow.space.axis(2)], [*value.tails, LIVE]
    _emit(flow, node, axes[:rank], tails[:rank], source)


def _select(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    dim, index = _arg(node, "dim") % len(value.axes), _arg(node, "index")
    if not flow.is_padded(value.axes[dim]):
        flow.scalars(node, [index], can_be_tensor=False)
    elif not (isinstance(index, int) and index >= 0):
        _select_from_end(flow, node, source, dim, index)
    elif index > 0 and flow.space.layout(value.axes[dim])[0] != "leading":
        _opaque(flow, node, 1)
    keep = [d for d in range(len(value.axes)) if d != dim]
    position = keep.index(value.position) if value.position in keep else None
    _emit(flow, node, [value.axes[d] for d in keep], [value.tails[d] for d in keep], source, position=position)


def _select_from_end(flow: Flow, node: fx.Node, source: fx.Node, dim: int, index: Any) -> None:
    axis = fact(source).axes[dim]
    expr = as_expr(val(index)) if isinstance(index, fx.Node) else as_expr(index) + flow.space.size(axis)
    # A copy of the last live row, as a tail may hold it, is read for that row; what is written there does not reach it.
    last = (expr - flow.space.size(axis) + 1) == 0 and not flow.is_written_through(node, source)
    flow.want(
        node,
        source,
        dim,
        LAST if last else None,
        code="CW202",
        message="the last row is taken at the captured extent",
        label="counts from the captured end, which is a padded row",
    )


def _expand(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value, shape = fact(source), val(node).shape
    lead = len(shape) - len(value.axes)
    axes: list[Axis] = [flow.space.axis(s) for s in shape]
    tails = flow.plain_tails(axes)
    for d, (axis, tail) in enumerate(zip(value.axes, value.tails)):
        if axis != ONE:
            axes[lead + d], tails[lead + d] = axis, tail
        elif flow.is_padded(axes[lead + d]):
            # A row repeated: the tail rows are that row too.
            tails[lead + d] = filled(None, own=True)
    for d in range(lead):
        tails[d] = filled(None, own=True) if flow.is_padded(axes[d]) else LIVE
    position = None if value.position is None else value.position + lead
    _emit(flow, node, axes, tails, source, position=position)


def _split(flow: Flow, node: fx.Node) -> None:
    """split, split_with_sizes, unbind: several views of one axis."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    dim = (_arg(node, "dim") or 0) % len(value.axes)
    if flow.is_padded(value.axes[dim]):
        flow.report(Hazard("CW202", node, "a padded axis is cut at the captured extent", "cuts by position", (SEAM,)))
    drop = aten.base_name(node.target) == "unbind"  # type: ignore[arg-type]
    parts: list[Fact | None] = []
    for part in val(node):
        axes, tails = list(value.axes), list(value.tails)
        if drop:
            del axes[dim], tails[dim]
        else:
            axes[dim] = flow.space.axis(part.shape[dim])
            tails[dim] = PADDED if flow.is_padded(axes[dim]) else LIVE
        parts.append(Fact(tuple(axes), tuple(tails), value.storage, value.origin, value.source, inputs=value.inputs))
    facts(node).value = tuple(parts)


def _strange(flow: Flow, node: fx.Node) -> None:
    """as_strided, diagonal: a view that the algebra does not follow."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    axes = [flow.space._fallback(s) for s in val(node).shape]
    if any(flow.is_padded(a) for a in (*axes, *fact(source).axes)):
        message = "a view whose rows cannot be followed"
        flow.report(Hazard("CW202", node, message, "steps over a padded axis by stride", (SEAM,)))
    _emit(flow, node, axes, flow.plain_tails(axes), source)


def getitem(flow: Flow, node: fx.Node) -> None:
    """One result of several."""
    source, index = node.args
    assert isinstance(source, fx.Node) and isinstance(index, int)
    values = facts(source).value
    if isinstance(values, tuple) and is_tensor(node) and values[index] is not None:
        flow.set(node, values[index])  # type: ignore[arg-type]
    if facts(source).eager:
        flow.make_eager(node, facts(source).why_eager)


_VIEWS: dict[str, Callable[[Flow, fx.Node], None]] = {
    "same": _same,
    "reshape": _reshape,
    "permute": _permute,
    "transpose": _permute,
    "t": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "slice": _slice,
    "select": _select,
    "expand": _expand,
    "split": _split,
    "split_with_sizes": _split,
    "unbind": _split,
    "unfold": _unfold,
    "complex": _complex,
    "as_strided": _strange,
    "diagonal": _strange,
}


# ---------------------------------------------------------------------------------------------------------- joins
def join_rows(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """cat, stack, pad, repeat, tril, triu."""
    _JOINS[row.how](flow, node)


def _cat(flow: Flow, node: fx.Node) -> None:
    parts = [p for p in node.args[0] if isinstance(p, fx.Node)]  # type: ignore[union-attr]
    values = [fact(p) for p in parts]
    rank = val(node).dim()
    values = [v for v in values if len(v.axes) == rank] or values
    dim = (_arg(node, "dim") or 0) % rank
    axes, tails = list(values[0].axes), list(values[0].tails)
    for d in range(rank):
        met = [v.axes[d] for v in values]
        axes[d] = flow.space.concat(met) if d == dim else flow.agree(node, met, ONE)
        tails[d] = join(v.tails[d] for v in values) if flow.is_padded(axes[d]) else LIVE
        if d == dim and tails[d].own:
            tails[d] = replace(tails[d], own=len(values) == 1 or flow.space.layout(axes[d])[0] == "leading")
    flow.fresh(node, axes, tails, parts)


def _stack(flow: Flow, node: fx.Node) -> None:
    parts = [p for p in node.args[0] if isinstance(p, fx.Node)]  # type: ignore[union-attr]
    values = [fact(p) for p in parts]
    rank = val(node).dim()
    at = (_arg(node, "dim") or 0) % rank
    axes = [flow.agree(node, [v.axes[d] for v in values], ONE) for d in range(rank - 1)]
    tails = [join(v.tails[d] for v in values) for d in range(rank - 1)]
    axes.insert(at, flow.space.axis(len(parts)))
    tails.insert(at, LIVE)
    flow.fresh(node, axes, tails, parts)


def _pad(flow: Flow, node: fx.Node) -> None:
    """constant_pad_nd: rows before keep a tail at the end; rows after would stand behind the tail."""
    source, pads = node.args[0], _arg(node, "pad")
    assert isinstance(source, fx.Node)
    value = fact(source)
    axes, tails = list(value.axes), list(value.tails)
    for i, (before, after) in enumerate(zip(pads[::2], pads[1::2])):
        d = len(axes) - 1 - i
        if not flow.is_padded(axes[d]):
            axes[d] = flow.space.axis(val(node).shape[d])
        elif not all(isinstance(n, int) and n >= 0 for n in (before, after)):
            axes[d], tails[d] = _opaque(flow, node, val(node).shape[d]), PADDED
        else:
            axes[d] = flow.space.concat([flow.space.axis(before), axes[d], flow.space.axis(after)])
            tails[d] = tails[d] if after == 0 else replace(tails[d], own=False)
    flow.scalars(node, [_arg(node, "value", 0)], can_be_tensor=False)
    flow.fresh(node, axes, tails, [source])


def _repeat(flow: Flow, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value, shape = fact(source), val(node).shape
    lead = len(shape) - len(value.axes)
    axes = [flow.space.axis(s) for s in shape]
    for d, axis in enumerate(value.axes):
        if flow.is_padded(axis) and _arg(node, "repeats")[lead + d] == 1:
            axes[lead + d] = axis
        elif flow.is_padded(axis):
            axes[lead + d] = _opaque(flow, node, shape[lead + d])
    flow.fresh(node, axes, flow.plain_tails(axes), [source])


def _triangle(flow: Flow, node: fx.Node) -> None:
    """tril, triu: elementwise by position."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = fact(source)
    flow.scalars(node, [_arg(node, "diagonal", 0)], can_be_tensor=False)
    for axis in value.axes[-2:]:
        if flow.is_padded(axis) and flow.space.layout(axis)[0] != "leading":
            _opaque(flow, node, flow.space.size(axis))
    zero = [t if t.is_value(0) or t.kind == "live" else PADDED for t in value.tails]
    flow.fresh(node, value.axes, zero, [source])


_JOINS: dict[str, Callable[[Flow, fx.Node], None]] = {
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "repeat": _repeat,
    "tril": _triangle,
    "triu": _triangle,
}
