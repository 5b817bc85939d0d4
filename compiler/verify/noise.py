"""The poison adversary: harmful values in every tail, which must not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Noise:
    """What stands in tails. Round 0: NaN and large integers; round 1: numbers, and integers seen before, decreasing."""

    def __init__(self, seed: int, in_range_only: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.in_range_only, self.round = in_range_only, 0
        self.seen: dict[str, torch.Tensor] = {}

    def learn(self, batch: Mapping[str, Any]) -> None:
        """Remembers the integers that an input has held: in range, and wrong in a tail."""
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and value.numel() and not value.dtype.is_floating_point:
                known = set(self.seen.get(name, torch.zeros(0)).tolist())
                self.seen[name] = torch.tensor(sorted(known | set(value.flatten().tolist())), dtype=torch.int64)

    def __call__(self, name: str, place: torch.Tensor) -> None:
        wild = self.round == 0 and not self.in_range_only
        if place.dtype.is_floating_point or place.dtype.is_complex:
            drawn = torch.randn(place.shape, generator=self.generator) * 10
            place.copy_(torch.full_like(drawn, float("nan")) if wild else drawn)
        elif place.dtype == torch.bool:
            place.copy_(torch.rand(place.shape, generator=self.generator) < 0.5)
        elif wild:
            place.fill_(torch.iinfo(place.dtype).max // 2)
        else:
            known = self.seen.get(name, torch.zeros(1, dtype=torch.int64))
            at = torch.randint(len(known), place.shape, generator=self.generator)
            place.copy_(known[at].flatten().sort(descending=True).values.view(place.shape))
