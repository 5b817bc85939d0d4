"""Who owns which blocks of keys and values and which slots of state."""

from __future__ import annotations

import random
from collections.abc import Hashable


class PoolError(RuntimeError):
    """Not enough free blocks or slots; nothing was given out."""


class Pool:
    """Blocks and slots, each owned by one request or free. Number 0 of both is the null one and is never owned.

    Args:
        blocks, slots: how many rows the pools have, the null one included.
        page_size: tokens a block holds.
        num_spec: S; a request owns 1+S slots.
        order: where given, free numbers are handed out in random order: neighbours in time are none in memory.

    Raises:
        ValueError: no block or slot beside the null one.
    """

    def __init__(
        self, blocks: int, slots: int, page_size: int, num_spec: int = 0, order: random.Random | None = None
    ) -> None:
        for name, count in (("blocks", blocks), ("slots", slots)):
            if count < 2:
                raise ValueError(f"{name}: expected at least 2, the null one included; got {count}")
        self.page_size, self.num_spec, self.order = page_size, num_spec, order
        self._free = {"blocks": list(range(blocks - 1, 0, -1)), "slots": list(range(slots - 1, 0, -1))}
        self._owned: dict[Hashable, dict[str, list[int]]] = {}

    def reserve(self, owner: Hashable, tokens: int) -> None:
        """Gives `owner` its slots, and blocks for `tokens` tokens in all.

        Raises:
            PoolError: says what was short; no block and no slot changed hands.
        """
        mine = self._owned.get(owner, {"blocks": [], "slots": []})
        need = {
            "blocks": max(0, -(-tokens // self.page_size) - len(mine["blocks"])),
            "slots": 1 + self.num_spec - len(mine["slots"]),
        }
        for what, count in need.items():
            if count > len(self._free[what]):
                raise PoolError(f"{what}: expected {count} free for request {owner!r}; got {len(self._free[what])}")
        for what, count in need.items():
            if self.order is not None:
                self.order.shuffle(self._free[what])
            mine[what] = mine[what] + [self._free[what].pop() for _ in range(count)]
        self._owned[owner] = mine

    def release(self, owner: Hashable) -> None:
        """Takes back everything that `owner` has.

        Raises:
            PoolError: it owns nothing.
        """
        mine = self._owned.pop(owner, None)
        if mine is None:
            raise PoolError(f"owner: expected one that owns something; got {owner!r}")
        for what, numbers in mine.items():
            self._free[what].extend(numbers)

    def blocks(self, owner: Hashable) -> list[int]:
        return list(self._owned[owner]["blocks"])

    def slots(self, owner: Hashable) -> list[int]:
        return list(self._owned[owner]["slots"])

    @property
    def free(self) -> dict[str, int]:
        return {what: len(numbers) for what, numbers in self._free.items()}
