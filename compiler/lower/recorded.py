"""Triton launches as they were made, and every launch that the ops of `capwise.ops` make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import capwise.ops  # noqa: F401  registers the ops
from capwise import compat
from capwise.ops.launch import device_tiles
from capwise.ops.samples import CALLS, Sizes, sample


@dataclass(frozen=True)
class Recorded:
    """One launch at some extents; `bound` holds the kernel's arguments, constexprs and launch options by name."""

    kernel: Any
    grid: tuple[int, ...]
    bound: Mapping[str, Any]
    extents: Mapping[str, int]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


def launches_of(run: Callable[[], Any], extents: Mapping[str, int]) -> list[Recorded]:
    """What `run()` would launch on a device; nothing is launched."""
    found: list[Recorded] = []

    def record(kernel: Any, grid: Any, bound: dict[str, Any]) -> None:
        found.append(Recorded(kernel, tuple(grid(bound) if callable(grid) else grid), bound, extents))

    with device_tiles(), compat.recording_launches(record), torch.no_grad():
        run()
    return found


def op_launches(op: str, lengths: Sequence[int], sizes: Sizes, seed: int = 0) -> list[Recorded]:
    """The launches of a sample call of `capwise::<op>`."""
    call = sample(op, lengths, sizes, seed)
    extents = {"T": sum(lengths), "R": len(lengths)}
    return launches_of(lambda: getattr(torch.ops.capwise, op)(**call), extents)


# Largest first: it is the one that is compiled. The others show how the grid depends on T and R, the last ones also
# where a bound on it holds.
EXTENTS = ((1536, 64), (1536, 12), (700, 12), (331, 64), (3, 2), (2, 1))


def catalogue(sizes: Sizes | None = None, extents: Iterable[tuple[int, int]] = EXTENTS) -> dict[str, list[Recorded]]:
    """Kernel -> its launches at several (T, R), over all ops. Where a second op launches a kernel, with other
    constants, it is another row: `name#2`."""
    found: dict[str, list[Recorded]] = {}
    users: dict[str, list[str]] = {}
    for tokens, requests in extents:
        lengths = [tokens // requests] * (requests - 1)
        lengths.append(tokens - sum(lengths))
        for op in CALLS:
            for launch in op_launches(op, lengths, sizes or Sizes()):
                ops = users.setdefault(launch.name, [])
                if op not in ops:
                    ops.append(op)
                label = f"{launch.name}#{ops.index(op) + 1}" if ops.index(op) else launch.name
                found.setdefault(label, []).append(launch)
    return found
