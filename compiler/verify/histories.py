"""The history adversary: orders of a case's batches that leave tails, and failing ones made short."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from capwise.case import Case
from capwise.labels import Spec, bind_extents

Order = list[int]


def history(count: int, number: int, seed: int) -> Order:
    """Indices of batches: the case's own order first, then orders that repeat and reverse it."""
    order = list(range(count))
    if number == 0:
        return order
    rng = random.Random(f"{seed}/{number}")
    drawn = order + [rng.randrange(count) for _ in range(count)]
    rng.shuffle(drawn)
    return drawn


def orders(case: Case, specs: Mapping[str, Spec], count: int, seed: int) -> list[Order]:
    """`count` histories of a case: its own, then what its batches offer of the orders that leave most behind, then
    random ones."""
    made: list[Order] = [history(len(case.batches), 0, seed)]
    wanted = iter([*_pointed(case, specs), *(history(len(case.batches), n, seed) for n in range(1, count))])
    while len(made) < count:
        order = next(wanted, None)
        if order is None:
            order = history(len(case.batches), len(made) + count, seed)
        elif order in made:
            continue
        made.append(order)
    return made


def _pointed(case: Case, specs: Mapping[str, Spec]) -> Iterator[Order]:
    """Larger before smaller; equal T and different R, and the other way round; strided before contiguous."""
    extents = [bind_extents(specs, {k: v for k, v in b.items() if v is not None}) for b in case.batches]
    every = range(len(extents))
    for symbol in sorted({s for e in extents for s in e}, key=lambda s: s != "T"):
        yield sorted(every, key=lambda i: -extents[i].get(symbol, 0))
    for same, other in (("T", "R"), ("R", "T")):
        pairs = [
            (i, j)
            for i in every
            for j in every
            if same in extents[i] and extents[i].get(same) == extents[j].get(same)
            if extents[i].get(other, 0) > extents[j].get(other, 0)
        ]
        if pairs:
            yield [i for pair in pairs for i in pair]
    strided = [any(_is_strided(v) for v in b.values()) for b in case.batches]
    if any(strided) and not all(strided):
        yield sorted(every, key=lambda i: not strided[i])


def _is_strided(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_contiguous()


def shortest(order: Sequence[int], at: int, fails: Callable[[Order], bool], steps: int) -> Order:
    """A shortest history found that still fails.

    Args:
        order: fails at index `at`.
        fails: runs a history.
        steps: how many steps may be run for it.
    """
    best, last = list(order[: at + 1]), order[at]

    def tries(candidate: Order) -> bool:
        nonlocal best, steps
        steps -= len(candidate)
        if len(candidate) >= len(best) or steps < 0 or not fails(candidate):
            return False
        best = candidate
        return True

    # Most faults need one step before the one that shows them.
    if at == 0 or tries([last]):
        return best
    for earlier in dict.fromkeys(reversed(best[:-1])):
        if tries([earlier, last]):
            return best
    size = len(best) // 2
    while size and steps > 0:
        cuts = range(0, len(best) - 1, size)
        if not any(tries([*best[:i], *best[i + size : -1], last]) for i in cuts):
            size //= 2
    return best
