"""Which recording serves a batch."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from capwise.options import Key

# Layouts seen lately that are remembered; each has some ten kilobytes of views that its steps copy to and return.
MAX_LAYOUTS = 2048


def choose_key(keys: Sequence[Key], extents: Mapping[str, int]) -> int:
    """Index of the most specific key that holds for a batch: one with more symbols only where requests are uniform.

    Args:
        keys: most specific first.
        extents: live extents.
    """
    for i, key in enumerate(keys[:-1]):
        first, *rest = key
        exact = all(s in extents for s in key)
        if exact and all(extents[s] and extents[first] % extents[s] == 0 for s in rest):
            return i
    return len(keys) - 1


def bucket(size: int, sizes: Sequence[int]) -> int | None:
    """The least capture size that holds `size`; None above the largest."""
    at = bisect.bisect_left(sizes, size)
    return sizes[at] if at < len(sizes) else None


def capped(sizes: Sequence[int], most: int | None) -> list[int]:
    """Buckets none of which is larger than `most`, which is one itself where it takes the place of larger ones."""
    if most is None or not sizes or sizes[-1] <= most:
        return list(sizes)
    return [s for s in sizes if s < most] + [most]


def captured_extents(
    key: Key,
    extents: Mapping[str, int],
    sizes: Sequence[int],
    capacity: Mapping[str, int],
    caps: Mapping[str, int] | None = None,
) -> dict[str, int] | None:
    """The extents that the recording for a batch is made at; None where it runs uncaptured.

    The first symbol of the key goes to its bucket, further ones are exact, all others are at capacity. `caps` bounds
    what may be recorded of a symbol.
    """
    caps = caps or {}
    captured: dict[str, int] = {}
    for symbol, live in extents.items():
        if symbol == key[0] if key else False:
            size = bucket(live, capped(sizes, caps.get(symbol)))
        elif symbol in key:
            size = live
        else:
            most = min(capacity[symbol], caps.get(symbol, capacity[symbol]))
            size = most if live <= most else None
        if size is None:
            return None
        captured[symbol] = size
    return captured


def layout_of(batch: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Everything about a batch (name, value) but its values: what decides which program runs, and at which extents.
    Of what is no tensor, the value itself is part of it."""
    return tuple(
        (n, v.shape, v.stride(), v.dtype, v.device, v.is_neg()) if isinstance(v, torch.Tensor) else (n, type(v), v)
        for n, v in batch
    )
