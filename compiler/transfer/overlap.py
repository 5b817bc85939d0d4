"""Whether two views of one storage hold a place in common: by physical location, not by index."""

from __future__ import annotations

from typing import Any

import torch

from capwise.axes import as_expr


def are_disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True iff no element of the one is an element of the other, at whatever extents; False where that is not shown.

    Two ways to show it: one ends before the other starts; or both step by the same stride over periods of the storage
    and hold other places within a period (columns 0..3 and 4..7 of one matrix).
    """
    if a.element_size() != b.element_size():
        return False
    one, other = _steps(a), _steps(b)
    if one is None or other is None:
        return False
    start, more = as_expr(a.storage_offset()), as_expr(b.storage_offset())
    if _is_positive(more - start - _span(one)) or _is_positive(start - more - _span(other)):
        return True
    shared = {s for _, s in one if s.is_Integer} & {s for _, s in other if s.is_Integer}
    return any(_apart(int(period), (start, one), (more, other)) for period in shared)


def _steps(view: torch.Tensor) -> list[tuple[Any, Any]] | None:
    """(size, stride) of each dimension that has more than one element."""
    steps = [(as_expr(n), as_expr(s)) for n, s in zip(view.shape, view.stride())]
    return None if any(s.is_number and s < 0 for _, s in steps) else [(n, s) for n, s in steps if n != 1]


def _span(steps: list[tuple[Any, Any]]) -> Any:
    """From the first element to the last."""
    return sum(((n - 1) * s for n, s in steps), as_expr(0))


def _is_positive(expr: Any) -> bool:
    known = expr.expand()
    return bool(known.is_Integer and known > 0)


def _apart(period: int, *views: tuple[Any, list[tuple[Any, Any]]]) -> bool:
    """Whether both views hold, in each period, one range of places, and these ranges do not meet."""
    ranges = []
    for start, steps in views:
        inside = [(n, s) for n, s in steps if not (s.is_Integer and int(s) % period == 0)]
        span = _span(inside)
        if not (start.is_Integer and span.is_Integer) or period <= 1:
            return False
        first = int(start) % period
        if first + int(span) >= period:
            return False
        ranges.append((first, first + int(span)))
    (low, high), (more, most) = sorted(ranges)
    return high < more
