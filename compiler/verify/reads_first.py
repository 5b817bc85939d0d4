"""The order of elements that eager is compared in: all reads of an ATen op come before all of its writes.

Where an op reads a view of what it writes, eager's own result depends on the order that a kernel takes, which differs
from device to device. A temporary is the one meaning that depends on no order, and it is what functionalisation gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from capwise import compat
from capwise.axes import Space
from capwise.ops import aten
from capwise.report import Span
from capwise.transfer.overlap import share
from capwise.verify.compare import difference
from capwise.verify.result import Place

_NUMBERS = Space({}, ())


class ReadsFirst(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, an ATen op takes a copy of every argument that shares a place with one that it writes. `found`: the ops
    of which that changed the result."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Place] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """A model that compiles a part of itself, as flex_attention does, does so under this mode too."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or not aten.is_core(func) or not aten.written(func):
            return func(*args, **kwargs)
        written = list(_tensors(func, args, kwargs, aten.written(func)))
        names = [a.name for a in func._schema.arguments if a.name not in aten.written(func)]
        shared = {id(t) for t in _tensors(func, args, kwargs, names) if any(_may_share(t, w) for w in written)}
        if not shared:
            return func(*args, **kwargs)
        return self._run(func, *_with_copies(func, args, kwargs, names, shared), written, args, kwargs)

    def _run(self, func: Any, copied: Any, named: Any, written: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """The op as it is, for what eager gives by itself (an error too), then from the same state with copies."""
        if aten.is_random(func):
            return func(*copied, **named)
        before = [t.clone() for t in written]
        func(*args, **kwargs)
        plain = [t.clone() for t in written]
        for tensor, kept in zip(written, before):
            tensor.copy_(kept)
        result = func(*copied, **named)
        if any(difference(t, other, exact=True) is not None for t, other in zip(written, plain)):
            place = Place("eager", str(func), _caller())
            self.found += [place] if place not in self.found else []
        return result


def _tensors(func: Any, args: Any, kwargs: Mapping[str, Any], names: Sequence[str]) -> Iterator[torch.Tensor]:
    for name in names:
        value = aten.argument(func, args, kwargs, name)
        yield from (t for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, torch.Tensor))


def _may_share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata and share(a, b, _NUMBERS) is not False


def _with_copies(func: Any, args: Any, kwargs: Any, names: Sequence[str], shared: set[int]) -> tuple[Any, Any]:
    """The arguments of a call, with copies for those that are read and share a place."""

    def copied(value: Any) -> Any:
        return tree_map(lambda t: t.clone() if id(t) in shared else t, value)

    by_place = [a.name for a in func._schema.arguments]
    positional = [copied(v) if name in names else v for name, v in zip(by_place, args)]
    return positional, {name: copied(v) if name in names else v for name, v in kwargs.items()}


def _caller() -> Span:
    """The line of the model: the innermost frame outside torch and this file."""
    frame = sys._getframe()
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if file != __file__ and compat.TORCH_ROOT not in file:
            return Span(file, frame.f_lineno)
        frame = frame.f_back
    return Span()
