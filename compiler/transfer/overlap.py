"""Which places two views of one storage hold: by physical location, not by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from capwise.axes import Space

# Candidates that numpy may try for one pair of views. Layouts of real tensors take a few.
_WORK = 10_000

Steps = list[tuple[sympy.Expr, sympy.Expr]]


def share(a: torch.Tensor, b: torch.Tensor, space: Space) -> bool | None:
    """Whether some byte of the one is a byte of the other: False where that is so at no extents, True where it is so
    at the largest, None where neither is shown.

    Three ways to show that it is so at no extents: one view ends before the other starts; or both step by the same
    stride over periods of the storage and hold other places within a period (columns 0..3 and 4..7 of one matrix); or
    strides and offsets are numbers, and no element of the one at the largest extents is one of the other.
    """
    one, other = _places(a, space), _places(b, space)
    if one is None or other is None:
        return None
    if _is_after(one, other, space) or _is_after(other, one, space):
        return False
    shared = {s for _, s in one.steps if s.is_Integer} & {s for _, s in other.steps if s.is_Integer}
    if any(_apart(int(period), one, other) for period in shared):
        return False
    if one.is_fixed and other.is_fixed and _meet(one.widest(space), other.widest(space)) is False:
        return False
    return _meet(one.at_most(space), other.at_most(space)) or None


def coincide(a: torch.Tensor, b: torch.Tensor, space: Space) -> bool:
    """True iff each element of `b`, broadcast to the shape of `a`, is the element of `a` at the same index, at whatever
    extents; False where that is not shown."""
    if a.element_size() != b.element_size() or b.dim() > a.dim():
        return False
    mine = [(space.expr(n), space.expr(s)) for n, s in zip(a.shape, a.stride())]
    theirs = [(space.expr(n), space.expr(s)) for n, s in zip(b.shape, b.stride())]
    theirs = [(sympy.Integer(1), sympy.Integer(0))] * (len(mine) - len(theirs)) + theirs
    same = all(_same(n, m) and (n == 1 or _same(s, t)) for (n, s), (m, t) in zip(mine, theirs))
    return same and _same(space.expr(a.storage_offset()), space.expr(b.storage_offset()))


def stays(a: torch.Tensor, b: torch.Tensor, space: Space) -> bool:
    """True iff `b`, broadcast to the shape of `a`, holds rows of `a` itself, and a copy of it to `a` leaves these rows
    as they are: `a.copy_(a[3])`. False where that is not shown."""
    if a.element_size() != b.element_size() or b.dim() > a.dim():
        return False
    missing = a.dim() - b.dim()
    sizes, strides = [1] * missing + list(b.shape), [0] * missing + list(b.stride())
    gap = space.expr(b.storage_offset()) - space.expr(a.storage_offset())
    repeated = []
    for n, s, m, t in zip(a.shape, a.stride(), sizes, strides):
        if space.expr(m) == 1 or space.expr(t) == 0:
            repeated.append((space.expr(n), space.expr(s)))
        elif not _same(space.expr(s), space.expr(t)):
            return False
    return _is_index(sympy.expand(gap), repeated)


def _is_index(gap: sympy.Expr, steps: Steps) -> bool:
    """Whether an offset leads to the same row at whatever extents: a number of steps along each dimension that is known
    to have so many."""
    if gap == 0:
        return True
    if not gap.is_Integer or not all(n.is_Integer and s.is_Integer and s > 0 for n, s in steps):
        return False
    for n, s in sorted(steps, key=lambda step: -step[1]):
        gap -= s * max(0, min(gap // s, n - 1))
    return bool(gap == 0)


@dataclass(frozen=True)
class _Places:
    """The bytes of a view: where it starts, and (size, stride) of each dimension that has more than one element."""

    start: sympy.Expr
    steps: Steps

    @property
    def is_fixed(self) -> bool:
        """Whether only sizes depend on extents, so that larger ones hold the places of smaller ones too."""
        return bool(self.start.is_Integer and all(s.is_Integer for _, s in self.steps))

    def widest(self, space: Space) -> _Places | None:
        """With every size at its largest; None where one has no bound."""
        sizes = [_bounds(n, space)[1] for n, _ in self.steps]
        return _Places(self.start, list(zip(sizes, self.strides))) if all(n.is_Integer for n in sizes) else None

    def at_most(self, space: Space) -> _Places | None:
        """At the largest extents; None where they are not known."""
        most = {s: space.most[n] for s, n in space.names.items() if n in space.most}
        start, *rest = [e.subs(most) for e in (self.start, *[e for step in self.steps for e in step])]
        return _Places(start, list(zip(rest[::2], rest[1::2]))) if all(e.is_Integer for e in (start, *rest)) else None

    @property
    def strides(self) -> list[sympy.Expr]:
        return [s for _, s in self.steps]

    def array(self) -> np.ndarray:
        """An array of these places, which nobody must read."""
        layout = {"shape": tuple(int(n) for n, _ in self.steps), "strides": tuple(int(s) for s in self.strides)}
        at = (1 << 20) + int(self.start)  # any address but null
        return np.asarray(_Interface({**layout, "typestr": "|u1", "data": (at, True), "version": 3}))


@dataclass(frozen=True)
class _Interface:
    __array_interface__: dict[str, Any]


def _places(view: torch.Tensor, space: Space) -> _Places | None:
    size = view.element_size()
    steps = [(space.expr(n), space.expr(s) * size) for n, s in zip(view.shape, view.stride())]
    if any(s.is_number and s < 0 for _, s in steps):
        return None
    inner = sympy.Integer(size), sympy.Integer(1)
    start = space.expr(view.storage_offset()) * size
    return _Places(start, [step for step in (*steps, inner) if step[0] != 1])


def _span(steps: Sequence[tuple[Any, Any]]) -> Any:
    """From the first place to the last."""
    return sum(((n - 1) * s for n, s in steps), sympy.Integer(0))


def _is_after(later: _Places, earlier: _Places, space: Space) -> bool:
    gap = later.start - earlier.start - _span(earlier.steps)
    return bool(_bounds(gap, space)[0] > 0)


def _bounds(expr: Any, space: Space) -> tuple[Any, Any]:
    """The least and the largest value of an expression over extents; they are infinite where there is no bound."""
    ranges = {s: ValueRanges(0, space.most[n]) for s, n in space.names.items() if n in space.most}
    found = bound_sympy(sympy.expand(expr), ranges)
    return found.lower, found.upper


def _same(a: Any, b: Any) -> bool:
    return bool(sympy.expand(a - b) == 0)


def _meet(one: _Places | None, other: _Places | None) -> bool | None:
    """Whether two views of known places hold one in common; None where that is too hard to say."""
    if one is None or other is None:
        return None
    try:
        return bool(np.shares_memory(one.array(), other.array(), max_work=_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return None


def _apart(period: int, *views: _Places) -> bool:
    """Whether both views hold, in each period, one range of places, and these ranges do not meet."""
    ranges = []
    for view in views:
        inside = [(n, s) for n, s in view.steps if not (s.is_Integer and int(s) % period == 0)]
        span = _span(inside)
        if not (view.start.is_Integer and span.is_Integer) or period <= 1:
            return False
        first = int(view.start) % period
        if first + int(span) >= period:
            return False
        ranges.append((first, first + int(span)))
    (low, high), (more, most) = sorted(ranges)
    return high < more
