"""Ops that mix rows along a dimension: what a padded row must hold so that it changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from capwise.axes import ONE, Axis, Cat, Rows
from capwise.facts import LIVE, PADDED, Fact, Tail, fact, facts, is_tensor, val
from capwise.ops import aten
from capwise.transfer.flow import SEAM, Fix, Flow, Hazard, extreme, show_value


def _arg(node: fx.Node, name: str, default: Any = None) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    return aten.argument(node.target, node.args, node.kwargs, name, default)


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _dims(node: fx.Node, row: aten.Row) -> list[int]:
    """The dimensions that the call mixes, counted from the front."""
    rank = len(fact(_source(node)).axes)
    if row.dim is None or not aten.has_argument(node.target, row.dim):  # type: ignore[arg-type]
        return list(range(rank))
    dims = _arg(node, row.dim)
    if dims is None or dims == []:
        return list(range(rank))
    if row.dim == "normalized_shape":
        return list(range(rank - len(dims), rank))
    return [d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])] if rank else []


def _neutral(value: Any, dtype: torch.dtype) -> Any:
    return extreme(dtype, value) if value in ("max", "-max") else value


def demand(flow: Flow, node: fx.Node, source: fx.Node, dims: Sequence[int], neutral: Any) -> None:
    """Padded rows along these dimensions must hold the neutral value; where there is none, only a seam helps."""
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    for d in dims:
        why = "" if neutral is not None else f"no fill value is neutral for `{name}`"
        flow.want(
            node,
            source,
            d,
            neutral,
            message=f"padded rows reach live rows through `{name}`",
            label=f"`{name}` runs over dimension {d}, which is padded",
            notes=(why,) if why else (f"{show_value(neutral)} is neutral for `{name}`",),
        )


def _set_results(flow: Flow, node: fx.Node, axes: Sequence[Axis], tails: Sequence[Tail], source: fx.Node) -> None:
    """One fact for every tensor that the op returns; results of another rank get theirs by size."""
    value = val(node)
    numbers = aten.base_name(node.target) in ("argsort", "argmax", "argmin")  # type: ignore[arg-type]
    if isinstance(value, torch.Tensor):
        flow.fresh(node, axes, tails, [source], low=0 if numbers else None)
        return
    inputs = fact(source).inputs
    results: list[Fact | None] = []
    for i, part in enumerate(value):
        if not isinstance(part, torch.Tensor):
            results.append(None)
            continue
        same = part.dim() == len(axes)
        mine = list(axes) if same else [flow.space.axis(s) for s in part.shape]
        mine_tails = list(tails) if same else flow.plain_tails(mine)
        storage = part.untyped_storage()._cdata
        # Where extrema and orders return two results, the second holds row numbers.
        low = 0 if i == 1 and part.dtype == torch.int64 else None
        results.append(Fact(tuple(mine), tuple(mine_tails), storage, "pool", node.name, low=low, inputs=inputs))
    facts(node).value = tuple(results)


def reduce(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Sums, extrema, means: a padded row must hold the neutral value, where there is one."""
    source = _source(node)
    value = fact(source)
    if sum(is_tensor(a) for a in node.args) > 1:
        _binary_or_mixed(flow, node)
        return
    dims = _dims(node, row)
    wanted = [d for d in dims if not _is_below(node, row, value, d)]
    demand(flow, node, source, wanted, _reduction_neutral(node, row, val(source).dtype))
    _flat_numbers(flow, node, source)
    result = val(node)
    first = result if isinstance(result, torch.Tensor) else next(p for p in result if isinstance(p, torch.Tensor))
    if first.dim() == len(value.axes):
        axes = [ONE if d in dims else a for d, a in enumerate(value.axes)]
        tails = [LIVE if d in dims else PADDED if flow.is_padded(a) else LIVE for d, a in enumerate(value.axes)]
    else:
        keep = [d for d in range(len(value.axes)) if d not in dims]
        axes = [value.axes[d] for d in keep]
        tails = flow.plain_tails(axes)
    _set_results(flow, node, axes, tails, source)


def _is_below(node: fx.Node, row: aten.Row, value: Fact, dim: int) -> bool:
    """Whether a tail is no greater than any element can be: the greatest of them does not see it. Its place may."""
    constant = value.tails[dim].constant
    only_values = row.neutral == "-max" and isinstance(val(node), torch.Tensor)
    is_number = aten.base_name(node.target) == "argmax"  # type: ignore[arg-type]
    return only_values and not is_number and constant is not None and value.low is not None and constant <= value.low


def _reduction_neutral(node: fx.Node, row: aten.Row, dtype: torch.dtype) -> Any:
    """A norm of negative order is a minimum: zero is not neutral for it."""
    for name in ("ord", "p"):
        order = _arg(node, name, 2) if aten.has_argument(node.target, name) else 2  # type: ignore[arg-type]
        if order is not None and not (isinstance(order, (int, float)) and order >= 0):
            return None
    return _neutral(row.neutral, dtype)


def _flat_numbers(flow: Flow, node: fx.Node, source: fx.Node) -> None:
    """A row number over all dimensions counts in strides of the captured extent, unless that is the outermost."""
    is_flat = aten.base_name(node.target) in ("argmax", "argmin") and _arg(node, "dim") is None  # type: ignore[arg-type]
    inner = [d for d in flow.padded_dims(fact(source)) if d > 0]
    if is_flat and inner:
        label = "counts over a padded inner dimension"
        flow.report(Hazard("CW202", node, "a flat row number depends on the captured extent", label, (SEAM,), source))


def _binary_or_mixed(flow: Flow, node: fx.Node) -> None:
    """max(x, y) is elementwise though it shares its name with a reduction; dist and the like mix everything."""
    from capwise.transfer.elementwise import pointwise

    if torch.Tag.pointwise in node.target.tags or aten.base_name(node.target) in ("max", "min"):  # type: ignore
        pointwise(flow, node, aten.Row("pointwise"))
    else:
        mix(flow, node, aten.Row("mix"))


def scan(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Along the dimension, row i reads rows <= i: the tail comes last, so it stays in the tail."""
    source = _source(node)
    value = fact(source)
    _set_results(flow, node, value.axes, flow.plain_tails(value.axes), source)
    for d in _dims(node, row):
        if flow.is_padded(value.axes[d]) and flow.space.layout(value.axes[d])[0] != "leading":
            demand(flow, node, source, [d], None)


def normalise(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """softmax and norms: shape kept, rows along the dimension see each other."""
    source = _source(node)
    value = fact(source)
    dims = _dims(node, row)
    demand(flow, node, source, dims, row.neutral)
    tails = flow.plain_tails(value.axes)
    if row.neutral is not None and aten.base_name(node.target).strip("_") in ("softmax", "safe_softmax"):  # type: ignore
        # exp(-inf) is zero: the masked columns of a softmax are exact zeros.
        tails = [Tail("filled", 0.0) if d in dims and t.kind != "live" else t for d, t in enumerate(tails)]
    _set_results(flow, node, value.axes, tails, source)


def sort(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """sort and topk: padded rows must come last in the order asked for."""
    source = _source(node)
    value = fact(source)
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    dims = _dims(node, row) if name != "sort" or _arg(node, "dim") is not None else [len(value.axes) - 1]
    if _arg(node, "dim") is None:
        dims = [len(value.axes) - 1]
    descending = bool(_arg(node, "largest", True) if name == "topk" else _arg(node, "descending", False))
    dtype = val(source).dtype
    # A live value may be the extreme itself: only a stable order keeps it before the tail then.
    is_stable = name != "topk" and bool(_arg(node, "stable", False))
    crowded = dtype in (torch.bool, torch.uint8, torch.int8) and not is_stable
    demand(flow, node, source, dims, None if crowded else extreme(dtype, "-max" if descending else "max"))
    axes, tails = list(value.axes), flow.plain_tails(value.axes)
    if name == "topk":
        size = (val(node)[0] if not isinstance(val(node), torch.Tensor) else val(node)).shape[dims[0]]
        axes[dims[0]] = flow.space.axis(size)
        tails = flow.plain_tails(axes)
    _set_results(flow, node, axes, tails, source)


def mix(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """No value of a padded row leaves the result alone."""
    source = _source(node)
    value = fact(source)
    dims = _dims(node, row)
    demand(flow, node, source, dims, None)
    for other in node.all_input_nodes:
        if is_tensor(other) and other is not source:
            demand(flow, node, other, range(len(fact(other).axes)), None)
    result = val(node)
    parts = [result] if isinstance(result, torch.Tensor) else [p for p in result if isinstance(p, torch.Tensor)]
    axes = [flow.space.axis(s) for s in parts[0].shape]
    spread(flow, node, axes)
    if len(axes) == len(value.axes):
        axes = [a if flow.space.same_size(a, b) else b for a, b in zip(value.axes, axes)]
    _set_results(flow, node, axes, flow.plain_tails(axes), source)


def bins(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """A histogram with fixed bounds leaves out what lies above them; one that takes its bounds from the data does
    not."""
    source = _source(node)
    low, high = _arg(node, "min", 0), _arg(node, "max", 0)
    fixed = all(isinstance(b, (int, float)) for b in (low, high)) and low < high
    dtype = val(source).dtype
    above = math.ceil(high + (high - low)) if fixed else None
    largest = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    if above is not None and above > largest:
        above = None
    demand(flow, node, source, range(len(fact(source).axes)), above)
    axes = flow.axes_of(node)
    flow.fresh(node, axes, flow.plain_tails(axes), [source])


def spread(flow: Flow, node: fx.Node, rows: Sequence[Axis]) -> None:
    """Rows that no operand has, as many as were captured: what they hold was told to be that many."""
    padded = any(flow.padded_dims(fact(a)) for a in node.all_input_nodes if is_tensor(a))
    if not padded and any(flow.is_padded(a) for a in rows):
        label = "how what it reads is spread over these rows depends on the captured extent"
        flow.report(Hazard("CW202", node, f"{node.target} makes rows by the captured extent", label, (SEAM,)))


def contract(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Sums of products: along a padded shared axis one factor must be zero and the other finite."""
    operands, result = _letters(node, row)
    seen: dict[str, list[tuple[fx.Node, int]]] = {}
    for arg, letters in operands:
        for d, letter in enumerate(letters):
            seen.setdefault(letter, []).append((arg, d))
    for letter, places in seen.items():
        if letter not in result and len(places) == 2:
            _zero_or_finite(flow, node, places)
    agreed = {n: flow.agree(node, [fact(a).axes[d] for a, d in places], ONE) for n, places in seen.items()}
    axes = [agreed[letter] for letter in result]
    added = node.args[0]
    if isinstance(added, fx.Node) and all(added is not arg for arg, _ in operands):
        for mine, axis in zip(reversed(fact(added).axes), reversed(axes)):
            flow.agree(node, [mine, axis], axis)
    flow.fresh(node, axes, flow.plain_tails(axes), [arg for arg, _ in operands])


def _letters(node: fx.Node, row: aten.Row) -> tuple[list[tuple[fx.Node, str]], str]:
    left, result = row.how.split("->")
    operands = []
    extra = ""
    for part in left.split(","):
        at, letters = part.split(":")
        arg = node.args[int(at)]
        assert isinstance(arg, fx.Node)
        if letters.startswith("..."):
            extra = "uvwxyz"[: len(fact(arg).axes) - 1]
            letters = extra + letters[3:]
        operands.append((arg, letters))
    return operands, result.replace("...", extra)


def _zero_or_finite(flow: Flow, node: fx.Node, places: Sequence[tuple[fx.Node, int]]) -> None:
    """0 * NaN is NaN: a zero in one factor helps only where the other is finite."""
    (a, da), (b, db) = places
    if not flow.is_padded(fact(a).axes[da]) and not flow.is_padded(fact(b).axes[db]):
        return
    ta, tb = fact(a).tails[da], fact(b).tails[db]
    if (ta.is_value(0) and tb.is_finite) or (tb.is_value(0) and ta.is_finite):
        return
    needed = [(x, d) for x, d, t, other in ((a, da, ta, tb), (b, db, tb, ta)) if not _zero(t, other)]
    first, *rest = needed or [(a, da)]
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    flow.want(
        node,
        first[0],
        first[1],
        0.0,
        message=f"padded rows reach live rows through `{name}`",
        label=f"`{name}` sums over a padded dimension",
        also=[Fix(x, d, 0.0) for x, d in rest if flow.can_fill(x, d)],
        notes=("a zero factor does not stop NaN: both factors need a fill",),
    )


def _zero(tail: Tail, other: Tail) -> bool:
    return tail.is_value(0) or (tail.is_finite and other.is_value(0))


def convolution(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Windows along padded dimensions: with stride 1, rows ahead of a live row must be what the padding is: zero."""
    source = _source(node)
    value = fact(source)
    out = val(node)
    axes = [value.axes[0], *[flow.space.axis(s) for s in out.shape[1:]]]
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    if flow.is_padded(value.axes[1]) or flow.padded_dims(fact(weight)):
        label = "channels or taps are a padded axis"
        flow.report(Hazard("CW202", node, "padded rows reach live rows through a convolution", label, (SEAM,)))
    for d in range(2, len(value.axes)):
        if not flow.is_padded(value.axes[d]):
            continue
        axes[d] = _window(flow, node, source, d, val(weight).shape[d])
    flow.fresh(node, axes, flow.plain_tails(axes), [source])


def _window(flow: Flow, node: fx.Node, source: fx.Node, d: int, taps: object) -> Axis:
    stride, padding, dilation = (_arg(node, n)[d - 2] for n in ("stride", "padding", "dilation"))
    axis = fact(source).axes[d]
    size = val(node).shape[d]
    leading = flow.space.layout(axis)[0] == "leading"
    if stride != 1 or not isinstance(taps, int) or not leading or _arg(node, "transposed"):
        label = "windows over a padded axis at a stride"
        flow.report(Hazard("CW202", node, "padded rows reach live rows through a convolution", label, (SEAM,)))
        return flow.space._fallback(size)
    if padding:
        # Output row i reads up to `padding` rows ahead, which eager sees as zeros past the end.
        flow.want(
            node,
            source,
            d,
            0.0,
            message="padded rows reach live rows through a convolution",
            label="the window looks ahead into the tail, where eager sees zeros",
        )
    return _causal(flow, axis, (taps - 1) * dilation - 2 * padding, size)


def _causal(flow: Flow, axis: Axis, lost: int, size: object) -> Axis:
    """The axis of the output: `lost` rows shorter. A left pad of that many rows gives back the rows themselves."""
    if lost == 0:
        return axis
    atom = axis[0]
    if len(axis) == 1 and isinstance(atom, Cat) and len(atom.parts) == 2 and flow.space.size(atom.parts[0]) == lost:
        return atom.parts[1]
    if len(axis) == 1 and isinstance(atom, Rows):
        return (Rows(atom.symbol, atom.lo, atom.hi - lost),)
    return flow.space.axis(size)


def attention(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Scaled dot product: keys and values are summed over; causal order keeps the tail behind every live query."""
    query, key, value = (node.args[i] for i in range(3))
    assert isinstance(query, fx.Node) and isinstance(key, fx.Node) and isinstance(value, fx.Node)
    for d in range(3):
        flow.agree(node, [fact(a).axes[d] for a in (query, key, value)[bool(d == 2) :]], ONE)
    for arg in (query, key, value):
        demand(flow, node, arg, [3], None)
    causal = bool(_arg(node, "is_causal", False))
    masked = _arg(node, "attn_mask", None) is not None
    for arg in (key, value):
        neutral = 0.0 if causal and not masked else None
        flow.want(
            node,
            arg,
            2,
            neutral,
            message="padded rows reach live rows through attention",
            label="keys and values of padded rows are attended to",
            notes=("a causal mask multiplies by zero, which does not stop NaN",) if causal else (),
        )
    axes = [*fact(query).axes[:3], fact(value).axes[3]]
    _set_results(flow, node, axes, flow.plain_tails(axes), query)
