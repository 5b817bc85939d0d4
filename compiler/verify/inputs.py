"""A run's own copies of batches and of the model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from capwise.labels import Spec


class Inputs:
    """A run's own copies of the batches: staged inputs new at every step, buffers and static inputs at one address."""

    def __init__(self, specs: Mapping[str, Spec], place: torch.device) -> None:
        self.specs, self.place = specs, place
        self.kept: dict[Any, torch.Tensor] = {}
        self._first: dict[Any, torch.Tensor] = {}

    def restart(self) -> None:
        """What stays at one address holds what it held at first, the room around it included."""
        for key, tensor in self.kept.items():
            _whole(tensor).copy_(self._first[key])

    def fresh(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {n: self._one(n, v) for n, v in batch.items()}

    def _one(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        spec = self.specs.get(name)
        if spec is None:
            key = (name, id(value))
            return self._keep(key, value)
        if spec.kind != "buffer":
            return moved(value, self.place)
        view = self._keep(name, value).as_strided(value.shape, value.stride(), value.storage_offset())
        view.copy_(value)
        return view

    def _keep(self, key: Any, value: torch.Tensor) -> torch.Tensor:
        if key not in self.kept:
            self.kept[key] = moved(value, self.place)
            self._first[key] = _whole(self.kept[key]).clone()
        return self.kept[key]

    def statics(self) -> Iterator[torch.Tensor]:
        yield from self.kept.values()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Everything in a tensor's storage, flat."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), 0, (size,), (1,))  # type: ignore[call-overload, no-any-return]


def moved(value: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A copy of a tensor with its storage around it, so that strides, offset and room behind it stay."""
    return _whole(value).to(place, copy=True).as_strided(value.shape, value.stride(), value.storage_offset())


def copied(model: Any, place: torch.device) -> Any:
    mine = copy.deepcopy(model)
    return mine.to(place) if isinstance(mine, torch.nn.Module) else mine
