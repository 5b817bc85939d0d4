"""What a model and the ops it calls hold at one moment, so that a step can be run again from the same state."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any

import torch

from capwise.bodies import kept_places

Restore = Callable[[], object]
_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.nn.Module)
# Objects in objects: a plan in a workspace in a registry.
_DEPTH = 4


class Snapshot:
    """Contents of a model's tensors and of further ones; which objects its attributes and the containers among them
    hold; and what the bodies of opaque ops keep between calls. A step may write to the one and put others in place of
    the other."""

    def __init__(self, model: Any, more: Iterable[torch.Tensor] = ()) -> None:
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        held: list[Any] = [d for m in modules for d in (m.__dict__, m._buffers, m._parameters)]
        own = [v for m in modules for n, v in m.__dict__.items() if not n.startswith("_")]
        containers = [v for v in own if isinstance(v, (MutableMapping, MutableSequence, MutableSet))]
        tensors = {id(t): t for t in (*more, *_tensors((*held, *containers)))}
        self.restores = [_refill(one) for one in (*held, *containers)]
        self.restores += [_rewrite(t) for t in tensors.values()]
        self.kept = Kept()

    def restore(self) -> None:
        for restore in self.restores:
            restore()
        self.kept.restore()


class Kept:
    """What the bodies of custom ops keep between calls, in globals and objects, as far as they can be read."""

    def __init__(self) -> None:
        self.restores: list[Restore] = []
        for owner, name in kept_places():
            if name in owner:
                self.restores.append(_rebind(owner, name))
                self.restores += _contents(owner[name], set(), _DEPTH)

    def restore(self) -> None:
        for restore in self.restores:
            restore()


class OtherRun:
    """Another run of the same ops in this process, with what they keep for itself."""

    def __init__(self) -> None:
        self.theirs = Kept()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, ops find what they kept for the other run."""
        mine = Kept()
        self.theirs.restore()
        try:
            yield
        finally:
            self.theirs = Kept()
            mine.restore()


def _contents(value: Any, seen: set[int], depth: int) -> list[Restore]:
    if id(value) in seen or not depth or isinstance(value, _CODE):
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [_rewrite(value)]
    if isinstance(value, (MutableMapping, MutableSequence, MutableSet)):
        held: Any = value
    elif isinstance(getattr(value, "__dict__", None), dict):
        held = value.__dict__
    else:
        return []
    inside = held.values() if isinstance(held, MutableMapping) else held
    return [_refill(held), *[r for v in list(inside) for r in _contents(v, seen, depth - 1)]]


def _rebind(owner: dict[str, Any], name: str) -> Restore:
    value = owner[name]
    return lambda: owner.__setitem__(name, value)


def _refill(held: Any) -> Restore:
    before = copy.copy(held)

    def restore() -> None:
        if isinstance(held, MutableSequence):
            held[:] = before
            return
        held.clear()
        held.__ior__(before)

    return restore


def _rewrite(tensor: torch.Tensor) -> Restore:
    before = tensor.detach().clone()
    return lambda: tensor.detach().copy_(before)


def _tensors(containers: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in containers:
        values = one.values() if isinstance(one, MutableMapping) else one
        yield from (v for v in values if isinstance(v, torch.Tensor))
