"""Strides: what the contract does not ask for is taken as it comes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from capwise.claims.calls import Calls, Refuted
from capwise.ops import contract as c


def check(calls: Calls) -> Iterator[Refuted]:
    base = calls.run()
    for name, value in calls.tensors.items():
        need = calls.contract.strides.get(name)
        for what, other in strided(value, need):
            got = calls.run({**calls.given, name: other})
            # An op that refuses a layout by an error reads none of it wrongly.
            seen = "" if got.error else calls.apart(base, got, exact=True)
            if seen:
                yield Refuted(f"strides of {name}", f"with strides {tuple(other.stride())} ({what}) {seen}")
                break


def strided(value: torch.Tensor, need: c.Stride | None) -> Iterator[tuple[str, torch.Tensor]]:
    """The same content in other layouts that a need allows; room between elements holds other numbers."""
    if value.dim() == 0 or isinstance(need, c.Contiguous) or not value.numel():
        return
    if value.dim() > 1:
        wide = _room(value, [*value.shape[:-1], value.shape[-1] + 2])
        yield "rows apart", _filled(wide[..., : value.shape[-1]], value)
    if not isinstance(need, c.Unit):
        wide = _room(value, [*value.shape[:-1], value.shape[-1] * 2])
        yield "elements apart", _filled(wide[..., ::2], value)


def _room(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    fill = True if value.dtype == torch.bool else 7
    return torch.full(shape, fill, dtype=value.dtype)


def _filled(place: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    place.copy_(value)
    return place
