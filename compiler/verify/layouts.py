"""The two-layout adversary: one key, two batches, two recordings that must be the same launches.

A recording made from another batch of the key may not differ in what a recording freezes: which kernels run, their
grids, scalars, sizes, strides, and the addresses they use. Addresses of the model's state and of what the engine owns
must be the same; staged inputs and pool memory stand elsewhere in another arena, so there the same place is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from capwise.runtime.tape import Frozen, Launch, Tape

Recordings = Mapping[str, Tape]


def differing(
    one: Recordings, other: Recordings, fixed: Mapping[int, str]
) -> Iterator[tuple[str, Launch | None, Any, Any]]:
    """Where two recordings of one bucket differ: (step, launch, what the first froze, what the second froze).

    Args:
        fixed: storages that are nobody's copy, by `_cdata`, and what they are called.
    """
    here, there = _Places(fixed), _Places(fixed)
    for name in one:
        if name not in other:
            continue
        mine, theirs = one[name].launches, other[name].launches
        if [m.name for m in mine] != [t.name for t in theirs]:
            yield name, _first_other(mine, theirs), f"{len(mine)} launches", f"{len(theirs)} launches"
            return
        for launch, twin in zip(mine, theirs):
            frozen, again = launch.geometry(here), twin.geometry(there)
            if frozen != again:
                yield name, launch, *_apart(frozen, again)


def _first_other(mine: Sequence[Launch], theirs: Sequence[Launch]) -> Launch | None:
    apart = next((m for m, t in zip(mine, theirs) if m.name != t.name), None)
    return apart or next(iter([*mine[len(theirs) :], *theirs[len(mine) :]]), None)


def _apart(frozen: tuple[Any, ...], again: tuple[Any, ...]) -> tuple[str, str]:
    apart = [(a, b) for a, b in zip(frozen, again) if a != b]
    return ", ".join(str(a) for a, _ in apart), ", ".join(str(b) for _, b in apart)


class _Places:
    """Names of storages that are the same in every recording of a bucket: pool memory by allocation, other memory in
    the order in which it is met."""

    def __init__(self, fixed: Mapping[int, str]) -> None:
        self._fixed = fixed
        self._met: dict[int, int] = {}
        self._first: int | None = None

    def __call__(self, value: Frozen) -> str:
        if value.number is not None:
            self._first = value.number if self._first is None else self._first
            return f"pool {value.number - self._first}"
        known = self._fixed.get(value.storage._cdata)
        if known is not None:
            return known
        return f"memory {self._met.setdefault(value.storage._cdata, len(self._met))}"
