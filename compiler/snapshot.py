"""What a model holds at one moment, so that a step can be run again from the same state."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any

import torch

Container = MutableMapping[Any, Any] | MutableSequence[Any] | MutableSet[Any]


class Snapshot:
    """Contents of a model's tensors and of further ones, and which objects its attributes and the containers among
    them hold: a step may write to the one and put others in place of the other."""

    def __init__(self, model: Any, more: Iterable[torch.Tensor] = ()) -> None:
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        held: list[Any] = [d for m in modules for d in (m.__dict__, m._buffers, m._parameters)]
        own = [v for m in modules for n, v in m.__dict__.items() if not n.startswith("_")]
        containers = [v for v in own if isinstance(v, (MutableMapping, MutableSequence, MutableSet))]
        self.held = [(one, copy.copy(one)) for one in (*held, *containers)]
        tensors = {id(t): t for t in (*more, *_tensors((*held, *containers)))}
        self.tensors = [(t.detach(), t.detach().clone()) for t in tensors.values()]

    def restore(self) -> None:
        for one, before in self.held:
            if isinstance(one, MutableSequence):
                one[:] = before
                continue
            one.clear()
            one |= before
        for tensor, before in self.tensors:
            tensor.copy_(before)


def _tensors(containers: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in containers:
        values = one.values() if isinstance(one, MutableMapping) else one
        yield from (v for v in values if isinstance(v, torch.Tensor))
