"""A run's own copies: of batches, of the model, and of what both hold."""

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

    def fresh(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {n: self._one(n, v) for n, v in batch.items()}

    def _one(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        spec = self.specs.get(name)
        if spec is None:
            key = (name, id(value))
            if key not in self.kept:
                self.kept[key] = moved(value, self.place)
            return self.kept[key]
        if spec.kind != "buffer":
            return moved(value, self.place)
        if name not in self.kept:
            self.kept[name] = moved(value, self.place)
        whole = self.kept[name]
        view = whole.as_strided(value.shape, value.stride(), value.storage_offset())
        view.copy_(value)
        return view

    def statics(self) -> Iterator[torch.Tensor]:
        yield from self.kept.values()


def moved(value: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A copy of a tensor with its storage around it, so that strides, offset and room behind it stay."""
    size = value.untyped_storage().nbytes() // value.element_size()
    flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage(), 0, (size,), (1,))
    return flat.to(place, copy=True).as_strided(value.shape, value.stride(), value.storage_offset())


def copied(model: Any, place: torch.device) -> Any:
    mine = copy.deepcopy(model)
    return mine.to(place) if isinstance(mine, torch.nn.Module) else mine


class State:
    """Everything that a model and the inputs at fixed addresses hold, to be put back: values, and which tensors and
    Python values the model's attributes are."""

    def __init__(self, model: Any, inputs: Inputs) -> None:
        tensors = list(inputs.statics())
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        if isinstance(model, torch.nn.Module):
            tensors += [*model.buffers(), *(p.data for p in model.parameters())]
        self._values = [(t, t.clone()) for t in tensors]
        held: list[dict[str, Any]] = [d for m in modules for d in (m.__dict__, m._buffers, m._parameters)]
        self._held = [(d, {k: v for k, v in d.items() if not _is_internal(d, k)}) for d in held]
        containers = [v for _, kept in self._held for v in kept.values() if type(v) in _CONTAINERS]
        self._containers = [(v, copy.copy(v)) for v in containers]

    def restore(self) -> None:
        for now, then in self._held:
            for name in [n for n in now if n not in then and not _is_internal(now, n)]:
                del now[name]
            for name, value in then.items():
                if now.get(name) is not value:
                    now[name] = value
        for container, kept in self._containers:
            _refill(container, kept)
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)


# What a model may change in place.
_CONTAINERS = (list, dict, set)


def _refill(container: Any, kept: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(kept)
    else:
        container.update(kept)


def _is_internal(held: Mapping[str, Any], name: str) -> bool:
    """What nn.Module keeps for itself: its registries, hooks and submodules."""
    return "_parameters" in held and name.startswith("_")
