"""Which recording serves a batch."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from capwise.options import Key


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


def captured_extents(
    key: Key, extents: Mapping[str, int], sizes: Sequence[int], capacity: Mapping[str, int]
) -> dict[str, int] | None:
    """The extents that the recording for a batch is made at; None where it runs uncaptured.

    The first symbol of the key goes to its bucket, further ones are exact, all others are at capacity.
    """
    captured: dict[str, int] = {}
    for symbol, live in extents.items():
        if symbol == key[0] if key else False:
            size = bucket(live, sizes)
            if size is None:
                return None
            captured[symbol] = size
        else:
            captured[symbol] = live if symbol in key else capacity[symbol]
    return captured
