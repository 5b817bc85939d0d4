"""Rows chosen and rows written by integer values: gathers, scatters, searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from capwise.axes import ONE, Axis
from capwise.facts import FINITE, LIVE, PADDED, Fact, Tail, fact, filled, is_tensor, val
from capwise.ops import aten
from capwise.transfer.flow import LAST, SEAM, Fix, Flow, Hazard, Remedy, broadcast_dim, extreme
from capwise.transfer.row_numbers import is_bounded, want_in_range, want_numbered, want_wrapped


def _arg(node: fx.Node, name: str, default: Any = None) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    return aten.argument(node.target, node.args, node.kwargs, name, default)


# ---------------------------------------------------------------------------------------------------------- gather
def gather(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    if row.how == "index":
        _index(flow, node)
    elif row.how == "gather":
        _gather_along(flow, node)
    else:
        _index_select(flow, node, row.how)


def _is_mask(index: fx.Node) -> bool:
    """Whether an index says of each row if it is meant: which rows these are is known to the data alone."""
    return val(index).dtype in (torch.bool, torch.uint8)


def _check_index(flow: Flow, node: fx.Node, index: fx.Node, source: fx.Node, dim: int, extent: object) -> None:
    what = f"dimension {dim} of {source.name}"
    want_numbered(flow, node, fact(source).axes[dim], what)
    if not want_wrapped(flow, node, index, fact(source).axes[dim], what):
        want_in_range(flow, node, index, extent, what)


def _index(flow: Flow, node: fx.Node) -> None:
    source, indices = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    assert isinstance(source, fx.Node)
    value = fact(source)
    at = [d for d, i in enumerate(indices) if isinstance(i, fx.Node)]
    used = [indices[d] for d in at]
    if any(_is_mask(i) for i in used):
        # Reached only where the number of true elements is known; the rows still depend on data.
        flow.report(Hazard("CW002", node, "output size depends on data", "boolean index", (SEAM,)))
    for d, index in zip(at, used):
        _check_index(flow, node, index, source, d, val(source).shape[d])
    axes, tails = _broadcast(flow, node, used)
    front, back = value.axes[: at[0]], value.axes[at[-1] + 1 :]
    lead = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    rest = [d for d in range(len(value.axes)) if d not in at]
    if lead != at[0] or lead == 0:
        front, back = (), tuple(value.axes[d] for d in rest)
    outer_tails = [value.tails[d] for d in rest]
    all_axes = [*front, *axes, *back]
    all_tails = [*outer_tails[: len(front)], *tails, *outer_tails[len(front) :]]
    flow.fresh(node, all_axes, all_tails, [source, *used], low=value.low, below=value.below)


def _broadcast(flow: Flow, node: fx.Node, indices: Sequence[fx.Node]) -> tuple[list[Axis], list[Tail]]:
    """Axes of broadcast indices, and the tails of what is gathered by them."""
    rank = max(len(fact(i).axes) for i in indices)
    axes, tails = [], []
    for d in range(rank):
        met, owns = [], []
        for index in indices:
            mine = broadcast_dim(rank, len(fact(index).axes), d)
            if mine is not None and fact(index).axes[mine] != ONE:
                met.append(fact(index).axes[mine])
                owns.append(fact(index).tails[mine].own)
        axis = flow.agree(node, met, ONE)
        axes.append(axis)
        own = bool(owns) and all(owns)
        tails.append((filled(None, own=True) if own else PADDED) if flow.is_padded(axis) else LIVE)
    return axes, tails


def _index_select(flow: Flow, node: fx.Node, how: str) -> None:
    source, index = (node.args[0], node.args[1]) if how == "embedding" else (node.args[0], _arg(node, "index"))
    assert isinstance(source, fx.Node) and isinstance(index, fx.Node)
    value = fact(source)
    dim = 0 if how == "embedding" else (_arg(node, "dim", 0) or 0) % max(len(value.axes), 1)
    if how == "take" and any(flow.is_padded(a) for a in value.axes):
        flow.report(Hazard("CW202", node, "a padded tensor is indexed flat", "counts over the tail", (SEAM,)))
    _check_index(flow, node, index, source, dim, val(source).shape[dim])
    axes, tails = _broadcast(flow, node, [index])
    if how == "take":
        flow.fresh(node, axes, tails, [source, index], low=value.low, below=value.below)
        return
    flow.fresh(
        node,
        [*value.axes[:dim], *axes, *value.axes[dim + 1 :]],
        [*value.tails[:dim], *tails, *value.tails[dim + 1 :]],
        [source, index],
        low=value.low,
        below=value.below,
    )


def _gather_along(flow: Flow, node: fx.Node) -> None:
    source, index = node.args[0], _arg(node, "index")
    assert isinstance(source, fx.Node) and isinstance(index, fx.Node)
    dim = _arg(node, "dim") % max(len(fact(source).axes), 1)
    _check_index(flow, node, index, source, dim, val(source).shape[dim])
    axes, value = fact(index).axes, fact(source)
    for d, (mine, other) in enumerate(zip(axes, value.axes)):
        if d != dim:
            flow.agree(node, [mine, other], mine)
    flow.fresh(node, axes, flow.plain_tails(axes), [source, index], low=value.low, below=value.below)


# ---------------------------------------------------------------------------------------------------------- search
def search(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Tail entries of the sorted sequence must stand behind every value that is looked for."""
    sequence, values = node.args[:2] if row.how == "searchsorted" else (node.args[1], node.args[0])
    assert isinstance(sequence, fx.Node)
    last = len(fact(sequence).axes) - 1
    flow.want(
        node,
        sequence,
        last,
        extreme(val(sequence).dtype, "max"),
        code="CW201",
        message="the search runs over entries past the live extent",
        label="the captured search sees the tail of the boundaries",
        notes=("a tail of older boundaries is not sorted: other rows are found",),
    )
    if not isinstance(values, fx.Node) or not is_tensor(values):
        flow.scalars(node, [values], can_be_tensor=False)
        axes = flow.axes_of(node)
    else:
        axes = list(fact(values).axes)
    if last and is_tensor(values):
        for mine, other in zip(fact(sequence).axes[:last], axes):
            flow.agree(node, [mine, other], mine)
    tails = flow.plain_tails(axes, FINITE)
    flow.fresh(node, axes, tails, [sequence, *([values] if is_tensor(values) else [])], low=0)  # type: ignore[list-item]


# ---------------------------------------------------------------------------------------------------------- scatter
def scatter(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Padded rows must write nothing: to a null row, a neutral value, or what the last live row writes anyway."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    target = node.args[0]
    assert isinstance(target, fx.Node)
    indices, source, lead = _operands(node, row.how)
    for d, index in indices:
        # The index may run over a dimension that it shares with the target row by row.
        _check_write_range(flow, node, index, target, d)
        if not _is_mask(index):
            want_numbered(flow, node, fact(target).axes[d], f"dimension {d} of {target.name}")
    for dim in _padded_index_dims(flow, indices):
        if row.how.startswith("scatter") and dim != lead:
            # Rows of index and target run together here: a padded row writes a padded row.
            want_in_range(flow, node, indices[0][1], val(target).shape[lead], f"dimension {lead} of {target.name}")
            continue
        _neutral_write(flow, node, row, target, indices, source, dim)
    _line_up(flow, node, row.how, indices, source, lead)
    if op._schema.is_mutable and _other_padded(flow, target, indices):
        flow.keep_rows(node, target)
    _set_target(flow, node, op, target)


def _other_padded(flow: Flow, target: fx.Node, indices: Sequence[tuple[int, fx.Node]]) -> bool:
    """Whether rows are written whole along a padded dimension that is not the one indexed."""
    return bool(set(flow.padded_dims(fact(target))) - {d for d, _ in indices})


def _line_up(
    flow: Flow, node: fx.Node, how: str, indices: Sequence[tuple[int, fx.Node]], source: Any, lead: int
) -> None:
    """Index, written values and target run together along dimensions: live parts must stand at the same places."""
    target = fact(node.args[0])  # type: ignore[arg-type]
    written = fact(source).axes if is_tensor(source) else ()
    index = fact(indices[0][1]).axes if indices else ()
    if how.startswith("scatter"):
        for d, axis in enumerate(index):
            flow.agree(node, [axis, *written[d : d + 1], *([target.axes[d]] if d != lead else [])], axis)
        return
    if how == "index_put":
        if any(_is_mask(i) for _, i in indices):
            return
        shape = _put_axes(flow, node, target.axes, indices)
    else:
        shape = [index[0] if d == lead and index else a for d, a in enumerate(target.axes)]
    for mine, axis in zip(reversed(written), reversed(shape)):
        flow.agree(node, [mine, axis], axis)


def _put_axes(flow: Flow, node: fx.Node, target: Sequence[Axis], indices: Sequence[tuple[int, fx.Node]]) -> list[Axis]:
    """Axes of what an indexed assignment writes."""
    at = [d for d, _ in indices]
    axes, _ = _broadcast(flow, node, [i for _, i in indices])
    front = [a for d, a in enumerate(target) if d < at[0]]
    back = [a for d, a in enumerate(target) if d > at[0] and d not in at]
    together = at == list(range(at[0], at[-1] + 1))
    return [*front, *axes, *back] if together else [*axes, *front, *back]


def _operands(node: fx.Node, how: str) -> tuple[list[tuple[int, fx.Node]], Any, int]:
    """(target dimension, index) pairs, the written values, and the dimension along which rows are written."""
    rank = len(fact(node.args[0]).axes)  # type: ignore[arg-type]
    if how == "index_put":
        indices = [(d, i) for d, i in enumerate(node.args[1]) if isinstance(i, fx.Node)]  # type: ignore[arg-type]
        return indices, _arg(node, "values"), -1
    dim = _arg(node, "dim") % rank
    source = _arg(node, "source") if how.startswith("index_") else _arg(node, "src")
    return [(dim, _arg(node, "index"))], source if source is not None else _arg(node, "value"), dim


def _check_write_range(flow: Flow, node: fx.Node, index: fx.Node, target: fx.Node, dim: int) -> None:
    if _is_mask(index):
        flow.report(Hazard("CW002", node, "a boolean mask chooses the rows to write", "needs a host sync", (SEAM,)))
        return
    want_wrapped(flow, node, index, fact(target).axes[dim], f"dimension {dim} of {target.name}")


def _padded_index_dims(flow: Flow, indices: Sequence[tuple[int, fx.Node]]) -> list[int]:
    """Dimensions of the (broadcast) index along which padded rows write."""
    if not indices or _is_mask(indices[0][1]):
        return []
    rank = max(len(fact(i).axes) for _, i in indices)
    found = []
    for d in range(rank):
        for _, index in indices:
            mine = broadcast_dim(rank, len(fact(index).axes), d)
            if mine is not None and flow.is_padded(fact(index).axes[mine]) and d not in found:
                found.append(d)
    return found


def _neutral_write(
    flow: Flow, node: fx.Node, row: aten.Row, target: fx.Node, indices: Sequence[tuple[int, fx.Node]], source: Any,
    dim: int,
) -> None:  # fmt: skip
    rank = max(len(fact(i).axes) for _, i in indices)
    owned = flow.is_owned(target)
    places = [(i, broadcast_dim(rank, len(fact(i).axes), dim)) for _, i in indices]
    places = [(i, m) for i, m in places if m is not None and flow.is_padded(fact(i).axes[m])]
    if _null_filled(flow, target, indices, places):
        return
    source_place = _source_place(flow, node, row, source, indices, rank, dim)
    if source_place is not None and source_place[1] is None:
        source_place = None
    adds = row.how == "index_put" and bool(_arg(node, "accumulate", False))
    neutral = 0 if adds else row.neutral
    dims = {i: d for d, i in indices}
    extents = [val(target).shape[dims[i]] for i, _ in places]
    if _already(flow, places, source_place, neutral, not _accumulates(node, row), extents):
        return
    remedies = _write_remedies(flow, node, target, row, places, source_place, neutral, extents)
    chosen = _report_write(flow, node, target, owned, places, remedies)
    if chosen is not None and chosen.label == "null slot fill":
        fix = chosen.fixes[0]
        flow.prospective.append((flow.owner(target), dims[fix.arg], fix.value))


def _null_filled(
    flow: Flow, target: fx.Node, indices: Sequence[tuple[int, fx.Node]], places: Sequence[tuple[fx.Node, Any]]
) -> bool:
    """A tail that points at a row which the user gave away as scratch, and which nobody reads."""
    if flow.owner(target) in flow.whole:
        return False
    for index, mine in places:
        spec = flow.spec(flow.root(index) or "")
        if spec is not None and spec.null is not None and fact(index).tails[mine].is_value(spec.null):
            dim = next(d for d, i in indices if i is index)
            flow.scratch.append((flow.owner(target), dim, spec.null))
            return True
    return False


def _source_place(
    flow: Flow, node: fx.Node, row: aten.Row, source: Any, indices: Sequence[tuple[int, fx.Node]], rank: int, dim: int
) -> tuple[fx.Node, int | None] | None:  # fmt: skip
    """Which dimension of the written values runs along with the index."""
    if not isinstance(source, fx.Node) or not is_tensor(source):
        return None
    axes = fact(source).axes
    if row.how in ("scatter", "scatter_add", "scatter_reduce"):
        mine: int | None = dim
    elif row.how == "index_put":
        first = min(d for d, _ in indices)
        full = len(fact(node.args[0]).axes) - len(indices) + rank  # type: ignore[arg-type]
        mine = broadcast_dim(full, len(axes), first + dim)
    else:
        mine = _arg(node, "dim") % len(axes)
    if mine is None or axes[mine] == ONE:
        return (source, None)
    return (source, mine)


def _is_safe(flow: Flow, index: fx.Node, dim: int, extent: object) -> bool:
    """Whether the tail of an index holds rows that exist."""
    tail = fact(index).tails[dim]
    return tail.own or tail.is_value(0) or is_bounded(index, extent)


def _already(
    flow: Flow, places: Sequence[tuple[fx.Node, Any]], source: tuple[fx.Node, int | None] | None, neutral: Any,
    repeats: bool, extents: Sequence[object],
) -> bool:  # fmt: skip
    indices_own = repeats and all(fact(i).tails[m].own for i, m in places)
    if neutral is not None:
        idle = source is not None and source[1] is not None and fact(source[0]).tails[source[1]].is_value(neutral)
        return idle and all(_is_safe(flow, i, m, e) for (i, m), e in zip(places, extents))
    return indices_own and (source is None or source[1] is None or fact(source[0]).tails[source[1]].own)


def _accumulates(node: fx.Node, row: aten.Row) -> bool:
    """Whether a row that is written twice counts twice. The extreme of a value and itself is that value."""
    if row.how not in ("scatter", "scatter_reduce", "index_reduce") or not aten.has_argument(node.target, "reduce"):  # type: ignore[arg-type]
        return row.how in ("scatter_reduce", "index_reduce")
    return _arg(node, "reduce") not in ("amax", "amin")


def _write_remedies(
    flow: Flow, node: fx.Node, target: fx.Node, row: aten.Row, places: Sequence[tuple[fx.Node, Any]],
    source: tuple[fx.Node, int | None] | None, neutral: Any, extents: Sequence[object],
) -> list[Remedy]:  # fmt: skip
    remedies: list[Remedy] = []
    for index, mine in places if flow.owner(target) not in flow.whole else ():
        spec = flow.spec(flow.root(index) or "")
        if spec is not None and spec.null is not None and spec.name not in flow.staged_fills:
            remedies.append(Remedy("fill", "null slot fill", (Fix(index, mine, spec.null),)))
    fillable = all(flow.can_fill(i, m) for i, m in places)
    if source is not None and source[1] is not None:
        fillable = fillable and flow.can_fill(source[0], source[1])
    if fillable and neutral is not None and source is not None and source[1] is not None:
        fixes = [Fix(i, m, 0) for (i, m), e in zip(places, extents) if not _is_safe(flow, i, m, e)]
        # Plus zero turns minus zero into plus zero.
        value = -0.0 if neutral == 0 and val(source[0]).dtype.is_floating_point else neutral
        remedies.append(Remedy("fill", f"fill {neutral}", (*fixes, Fix(source[0], source[1], value)), cost=0.2))
    elif fillable and neutral is None and not _accumulates(node, row):
        fixes = [Fix(i, m, LAST) for i, m in places]
        if source is not None and source[1] is not None:
            fixes.append(Fix(source[0], source[1], LAST))
        remedies.append(Remedy("fill", "fill last", tuple(fixes), cost=0.2))
    return remedies


def _report_write(
    flow: Flow, node: fx.Node, target: fx.Node, owned: bool, places: Sequence[tuple[fx.Node, Any]],
    remedies: Sequence[Remedy],
) -> Remedy | None:  # fmt: skip
    index, mine = places[0]
    symbols = ", ".join(sorted(flow.space.symbols(fact(index).axes[mine]) & flow.space.padded))
    if owned:
        message = f"padded rows write persistent state {flow.owner(target)!r}"
    else:
        message = "padded rows write into live rows"
    reader = flow.whole.get(flow.owner(target)) if owned else None
    kept = (f"no row of {flow.owner(target)!r} can be scratch: {reader} reads all of it",) if reader else ()
    return flow.report(
        Hazard(
            "CW204" if owned else "CW202",
            node,
            message,
            f"writes one row for every {symbols}, tail rows too",
            (*remedies, SEAM),
            index,
            symbols,
            (f"{index.name} is {fact(index)}", *kept),
        )
    )


def _set_target(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, target: fx.Node) -> None:
    value = fact(target)
    if op._schema.is_mutable:
        flow.mutate(node, target, [(a, PADDED) for a in value.axes])
        value = fact(target)
        flow.set(node, Fact(value.axes, value.tails, value.storage, value.origin, value.source, inputs=value.inputs))
    else:
        flow.fresh(node, value.axes, flow.plain_tails(value.axes), [target])
