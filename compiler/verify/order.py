"""The lane-order adversary: the programs of a Triton launch in another order.

Nothing orders the programs of a launch, and between a load and a later store of one of them any other may run. Two
schedules cover what two programs can do to each other: one goes through the grid backwards or shuffled, one lets all
loads happen before any store is seen. Warps inside a program are the emulator's business: its serial schedule.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import torch

from capwise import compat
from capwise.runtime.tape import KernelExecutor

Order = Literal["natural", "permuted", "deferred"]


def ordered(order: Order, seed: int = 0) -> KernelExecutor:
    """Runs launches in the interpreter, programs in that order. A launch that uses atomics is never permuted: they
    are how programs agree on an order, and a sum of floats has other last bits in another one."""
    if order == "natural":
        return compat.run_interpreted
    return _deferred if order == "deferred" else _Permuted(seed)


def _deferred(kernel: Any, grid: Any, **bound: Any) -> None:
    with compat.stores_deferred():
        compat.run_interpreted(kernel, grid, **bound)


class _Permuted:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.launches = 0

    def __call__(self, kernel: Any, grid: Any, **bound: Any) -> None:
        """Backwards at first: every pair of programs changes places."""
        self.launches += 1
        backwards = self.launches % 2 == 1
        places = [v for v in bound.values() if isinstance(v, torch.Tensor)]
        before = [p.clone() for p in places]
        try:
            with compat.programs_in_order(lambda every: self._order(every, backwards)):
                compat.run_interpreted(kernel, grid, **bound)
        except Exception as error:
            if not isinstance(error.__cause__, compat.UsesAtomics):
                raise
            for place, kept in zip(places, before):
                place.copy_(kept)
            compat.run_interpreted(kernel, grid, **bound)

    def _order(self, every: list[tuple[int, int, int]], backwards: bool) -> list[tuple[int, int, int]]:
        return every[::-1] if backwards else self.rng.sample(every, len(every))
