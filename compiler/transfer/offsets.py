"""How large an offset that a kernel computes in 32 bits can become, at the extents that are captured."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from capwise.kernel_access.symbolic import Node, Poly
from capwise.launch import Launch


def largest(launch: Launch, name: str, most: Mapping[sympy.Symbol, int], ranges: Mapping[str, int]) -> int | None:
    """The largest magnitude of what is computed in 32 bits on the way to an argument's addresses; None where that has
    no bound.

    Args:
        most: the largest value of each symbol of the graph.
        ranges: slot argument -> the largest value that it may hold, where somebody says so.
    """
    parts = [launch.poly(p) for a in launch.view.accesses if a.arg == name for p in a.narrow]
    found = [_magnitude(launch, part, most, ranges) for part in parts]
    known = [n for n in found if n is not None]
    return max(known, default=0) if len(known) == len(found) else None


def _magnitude(launch: Launch, part: Poly, most: Mapping[sympy.Symbol, int], ranges: Mapping[str, int]) -> int | None:
    """The larger of the sums of all positive and of all negative terms, each at its largest."""
    sums = {True: 0, False: 0}
    for monomial, coefficient in part.terms.items():
        value = abs(coefficient)
        for node in monomial:
            high = _high(launch, node, most, ranges)
            if high is None:
                return None
            value *= high
        sums[coefficient > 0] += value
    return max(sums.values())


def _high(launch: Launch, node: Node, most: Mapping[sympy.Symbol, int], ranges: Mapping[str, int]) -> int | None:
    if node.op == "pid" and isinstance(node.args[0], int):
        grid = launch.grid[node.args[0]].subs(most)
        return max(int(grid) - 1, 0) if grid.is_Integer else None
    if node.op == "sym":
        value = launch.scalars.get(str(node.args[0]))
        value = value.subs(most) if value is not None else None
        return abs(int(value)) if value is not None and value.is_Integer else None
    if node.op == "load":
        return ranges.get(str(node.args[0]))
    if node.high is None or node.low is None:
        return None
    return max(abs(node.high), abs(node.low))
