"""Ops with a sample a leading row: pools, resampling, pads, transforms, systems. Only the inner dimensions mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from capwise.axes import ONE, Axis
from capwise.facts import PADDED, Fact, fact, facts, is_tensor, val
from capwise.ops import aten
from capwise.transfer.flow import LAST, Flow
from capwise.transfer.mixing import demand, mix, spread

# Pads that repeat what stands at the edge: rows before the first and after the last.
_EDGES = ("replication_pad1d", "replication_pad2d", "replication_pad3d")


def _arg(node: fx.Node, name: str, default: Any = None) -> Any:
    assert isinstance(node.target, torch._ops.OpOverload)
    return aten.argument(node.target, node.args, node.kwargs, name, default)


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _mixed(node: fx.Node, row: aten.Row, rank: int) -> list[int]:
    """The dimensions that see each other: those that `dim` names, the last n, or all after the first n."""
    if row.dim is not None:
        dims = _arg(node, row.dim)
        return [d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
    where, number = row.how.split()
    return list(range(max(0, rank - int(number)) if where == "last" else int(number), rank))


def inner(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """A padded leading row stays in its row; a padded inner dimension reaches every place of its sample."""
    source = _source(node)
    value = fact(source)
    rank = len(value.axes)
    mixed = _mixed(node, row, rank)
    axes = dict(enumerate(value.axes))
    edges = _edges(flow, node, source, mixed)
    demand(flow, node, source, [d for d in mixed if d not in edges], None)
    for other in _others(node, source):
        theirs = fact(other).axes
        # Of another rank it is a parameter: it has no rows of samples.
        rows = [d for d in range(rank) if d not in mixed] if len(theirs) == rank else []
        demand(flow, node, other, [d for d in range(len(theirs)) if d not in rows], None)
        axes |= {d: flow.agree(node, [axes[d], theirs[d]], axes[d]) for d in rows}
    known = {**{d: axes[d] for d in range(rank) if d not in mixed}, **edges}
    _results(flow, node, known)


def _others(node: fx.Node, source: fx.Node) -> list[fx.Node]:
    return [a for a in node.all_input_nodes if is_tensor(a) and a is not source]


def _edges(flow: Flow, node: fx.Node, source: fx.Node, mixed: Sequence[int]) -> dict[int, Axis]:
    """Axes of padded dimensions that an edge is repeated along: before the first row there is always one; behind the
    last live row stands the tail."""
    if aten.base_name(node.target) not in _EDGES:  # type: ignore[arg-type]
        return {}
    found: dict[int, Axis] = {}
    pads = _arg(node, "padding")
    for i, (before, after) in enumerate(zip(pads[::2], pads[1::2])):
        d = len(fact(source).axes) - 1 - i
        plain = isinstance(before, int) and isinstance(after, int) and before >= 0 and after >= 0
        axis = fact(source).axes[d]
        if d not in mixed or not plain or not flow.is_padded(axis) or flow.space.layout(axis)[0] != "leading":
            continue
        if after:
            flow.want(
                node, source, d, LAST, message="padded rows reach live rows through a pad",
                label="rows past the end repeat the captured last row, which is a padded one",
            )  # fmt: skip
        found[d] = flow.space.concat([flow.space.axis(before), axis, flow.space.axis(after)])
    return found


def _results(flow: Flow, node: fx.Node, known: dict[int, Axis]) -> None:
    """Facts of everything returned: known axes where they have the size, the others by size."""
    results: list[Fact | None] = []
    for part in _parts(val(node)):
        axes = flow.axes_by_size(part) if part is not None else []
        for d, axis in known.items():
            if d < len(axes) and flow.space.same_size(axis, axes[d]):
                axes[d] = axis
        results.append(_fact(flow, node, part, axes) if part is not None else None)
    spread(flow, node, [a for r in results if r for d, a in enumerate(r.axes) if d not in known])
    _set(flow, node, results)


def _parts(value: Any) -> list[torch.Tensor | None]:
    parts = [value] if isinstance(value, torch.Tensor) else list(value)
    return [p if isinstance(p, torch.Tensor) else None for p in parts]


def _fact(flow: Flow, node: fx.Node, part: torch.Tensor, axes: Sequence[Axis]) -> Fact:
    inputs = frozenset().union(*[fact(a).inputs for a in node.all_input_nodes if is_tensor(a)])
    tails = flow.plain_tails(axes)
    return Fact(tuple(axes), tuple(tails), part.untyped_storage()._cdata, "pool", node.name, inputs=inputs)


def _set(flow: Flow, node: fx.Node, results: Sequence[Fact | None]) -> None:
    if isinstance(val(node), torch.Tensor):
        assert results[0] is not None
        flow.set(node, results[0])
    else:
        facts(node).value = tuple(results)


def channels(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Batch norm: with running statistics each element from its own channel's; in training all samples mix."""
    source = _source(node)
    if _arg(node, "training", False) or "no_stats" in str(node.target):
        mix(flow, node, row)
        return
    value = fact(source)
    axes = list(value.axes)
    for other in _others(node, source):
        axes[1] = flow.agree(node, [axes[1], *fact(other).axes], axes[1])
    parts = _parts(val(node))
    results = [None if p is None else _fact(flow, node, p, flow.axes_by_size(p)) for p in parts]
    assert parts[0] is not None
    results[0] = _fact(flow, node, parts[0], axes)
    _set(flow, node, results)


def solve(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Triangular systems: unknowns see each other. In a lower one the tail comes last, but solvers go by blocks that
    multiply it by zeros, which does not stop NaN; so no direction helps."""
    matrix, right = _source(node), _arg(node, "B")
    assert isinstance(right, fx.Node)
    rank = len(fact(right).axes)
    unknown = rank - 2 if _arg(node, "left", True) else rank - 1
    demand(flow, node, matrix, [len(fact(matrix).axes) - 2, len(fact(matrix).axes) - 1], None)
    demand(flow, node, right, [unknown], None)
    axes = list(fact(right).axes)
    for d in range(rank - 2):
        axes[d] = flow.agree(node, [a for a in (fact(matrix).axes[d], axes[d]) if a != ONE], ONE)
    flow.fresh(node, axes, flow.plain_tails(axes), [matrix, right])


def pairs(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Distances between rows of two operands: the features of a pair mix, no two pairs do."""
    first, second = node.args[:2]
    assert isinstance(first, fx.Node) and isinstance(second, fx.Node)
    mine, theirs = fact(first).axes, fact(second).axes
    for arg in (first, second):
        demand(flow, node, arg, [len(fact(arg).axes) - 1], None)
    lead = [flow.agree(node, [*met], ONE) for met in _leading(mine[:-2], theirs[:-2])]
    axes = [*lead, mine[-2], theirs[-2]]
    flow.fresh(node, axes, flow.plain_tails(axes), [first, second])


def _leading(a: Sequence[Axis], b: Sequence[Axis]) -> Iterator[tuple[Axis, Axis]]:
    """Leading dimensions of two operands as broadcasting pairs them."""
    rank = max(len(a), len(b))
    yield from zip([*[ONE] * (rank - len(a)), *a], [*[ONE] * (rank - len(b)), *b])


def grouped(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    """Rows of the first operand in runs, each run by a matrix of its own: a row needs nothing of another, and the live
    ends of runs stand before the tail. What is behind the last end is not written."""
    first, second, ends = node.args[0], node.args[1], _arg(node, "offs")
    assert isinstance(first, fx.Node) and isinstance(second, fx.Node)
    if len(fact(first).axes) != 2 or len(fact(second).axes) != 3 or not isinstance(ends, fx.Node):
        mix(flow, node, row)
        return
    demand(flow, node, first, [1], None)
    demand(flow, node, second, [0, 1], None)
    demand(flow, node, ends, [0], None)
    axes = [fact(first).axes[0], fact(second).axes[2]]
    if flow.is_padded(axes[0]) and flow.space.layout(axes[0])[0] != "leading":
        demand(flow, node, first, [0], None)
    flow.fresh(node, axes, [PADDED if flow.is_padded(a) else t for a, t in zip(axes, flow.plain_tails(axes))], [first])
