"""A kernel's grid as expressions in T and R, found from launches at several extents.

An expression is accepted iff it gives the grid of every launch seen, and T and R each took two values there. It may use
the kernel's constants by name, as tile sizes differ between small batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capwise.lower.artifacts import evaluate
from capwise.lower.recorded import Recorded


class GridError(ValueError):
    """A grid that no expression tried gives; the message says which, and at which extents."""


def fit_grid(launches: Sequence[Recorded]) -> tuple[str, ...]:
    """One expression a dimension.

    Raises:
        GridError: no expression fits, or the launches are too few to tell.
    """
    name = launches[0].name
    fixed = [s for s in launches[0].extents if len({launch.extents[s] for launch in launches}) < 2]
    dims = {len(launch.grid) for launch in launches}
    if len(dims) > 1:
        raise GridError(f"grid of {name}: {sorted(dims)} dimensions")
    fitted = tuple(_fit(name, d, launches) for d in range(dims.pop()))
    if fixed:
        raise GridError(f"grid of {name}: {', '.join(fixed)} took one value only, so what depends on it is not seen")
    return fitted


def _fit(name: str, dim: int, launches: Sequence[Recorded]) -> str:
    wanted = [launch.grid[dim] for launch in launches]
    scopes = [{**_integers(launch.bound), **launch.extents} for launch in launches]
    for expr in _candidates(wanted, launches):
        if all(evaluate(expr, scope, name) == size for scope, size in zip(scopes, wanted)):
            return expr
    seen = ", ".join(f"{dict(launch.extents)}: {size}" for launch, size in zip(launches, wanted))
    raise GridError(f"grid of {name}: no expression in {', '.join(launches[0].extents)} gives dimension {dim} ({seen})")


def _candidates(wanted: Sequence[int], launches: Sequence[Recorded]) -> Iterator[str]:
    """Simplest first: a number, an extent, a multiple of one or a fixed size; each also over a kernel constant. Then
    tiles of groups that share no tile: full ones, and one more a request or for each of a fixed number of groups. Last,
    the requests that can have so many tokens, and the tiles of those."""
    if len(set(wanted)) == 1:
        yield str(wanted[0])
    symbols = list(launches[0].extents)
    sizes = _fixed_sizes(launches)
    numerators = [*symbols, *(f"{n} * {s}" for n in sizes for s in symbols), *map(str, sizes)]
    constants = [p.name for p in launches[0].kernel.params if p.is_constexpr]
    tiles = [n for n in constants if all(type(launch.bound[n]) is int and launch.bound[n] > 0 for launch in launches)]
    yield from numerators[: len(symbols)]
    yield from tiles
    yield from (f"cdiv({numerator}, {tile})" for numerator in numerators for tile in tiles)
    yield from numerators[len(symbols) :]
    # A fixed size that only shapes tell.
    yield from (f"{wanted[0] // launches[0].extents[symbol]} * {symbol}" for symbol in symbols)
    for numerator in numerators[: -len(sizes) or None]:
        for tile in tiles:
            full = f"{numerator} // {tile}"
            yield from (f"{full} + {symbol}" for symbol in symbols)
            yield from _clamped(full, numerator, wanted, launches)
    for (few, all_), least in itertools.product(itertools.permutations(symbols, 2), tiles):
        large = f"min({few}, {all_} // {least})"
        yield from (large, *(f"{all_} // {tile} + {large}" for tile in tiles))


def _clamped(full: str, most: str, wanted: Sequence[int], launches: Sequence[Recorded]) -> Iterator[str]:
    """`full` and a constant, which the launch with the largest grid tells; also where it is never above `most`."""
    largest = max(range(len(wanted)), key=wanted.__getitem__)
    one = launches[largest]
    more = wanted[largest] - evaluate(full, {**_integers(one.bound), **one.extents}, one.name)
    if more > 0:
        yield f"{full} + {more}"
        yield f"min({full} + {more}, {most})"


def _fixed_sizes(launches: Sequence[Recorded]) -> list[int]:
    """Integers above 1 that every launch passes alike, smallest first."""
    shared = set.intersection(*[{(n, v) for n, v in _integers(launch.bound).items()} for launch in launches])
    return sorted({v for _, v in shared if v > 1})


def _integers(bound: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in bound.items() if type(value) is int}
