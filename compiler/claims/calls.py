"""One sample call of an op: run on copies, at its own extents or padded to larger ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from capwise import compat
from capwise.labels import InputError, bind_extents, normalise
from capwise.ops import contract as c
from capwise.verify.compare import difference
from capwise.verify.inputs import moved

Sample = tuple[tuple[Any, ...], Mapping[str, Any]]
Values = dict[str, Any]
# Rows that a padded call has more than its sample, along every symbol.
MORE = 3


@dataclass(frozen=True)
class Refuted:
    """A field of a contract with what contradicts it."""

    field: str
    seen: str

    def __str__(self) -> str:
        return f"{self.field}: {self.seen}"


@dataclass
class Result:
    """What a call gave, by "out" or "out0", and what its tensor arguments held afterwards."""

    outs: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    error: str = ""

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**self.after, **self.outs}


def resolved(op: Any) -> torch._ops.OpOverload:
    """The overload behind what a user calls the op.

    Raises:
        ValueError: nothing of that name, or no op.
    """
    if isinstance(op, str):
        return c.resolve(op)
    if isinstance(op, torch._ops.OpOverloadPacket):
        return op.default
    op = getattr(op, "_opoverload", op)
    if not isinstance(op, torch._ops.OpOverload):
        raise ValueError(f"op: expected an overload, a custom op or 'namespace::name'; got {type(op).__name__}")
    return op


class Calls:
    """A sample and what its contract says of it.

    given: the arguments by name. live: the extent of every symbol. axes: of arguments with a symbol in them.
    """

    def __init__(self, op: torch._ops.OpOverload, contract: c.Contract, sample: Sample) -> None:
        self.op, self.contract = op, contract
        args, kwargs = sample
        schema = op._schema.arguments
        defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
        self.given: Values = {**defaults, **dict(zip((a.name for a in schema), args)), **kwargs}
        names = [n for n, v in self.given.items() if isinstance(v, torch.Tensor) and n in contract.arguments]
        self.axes = {n: contract.arguments[n] for n in names if _changes(contract.arguments[n])}
        labels = {n: (*a.axes, *[None] * (self.given[n].dim() - len(a.axes))) for n, a in self.axes.items()}
        self.specs = normalise(labels)
        self.live = bind_extents(self.specs, self.given)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {n: v for n, v in self.given.items() if isinstance(v, torch.Tensor)}

    @property
    def written(self) -> set[str]:
        """Arguments that the schema says are written."""
        return {a.name for a in self.op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}

    def run(self, given: Mapping[str, Any] | None = None) -> Result:
        """Calls the op on copies; what it raises becomes the result's `error`."""
        mine = copied(self.given if given is None else given)
        try:
            with torch.no_grad(), compat.eager_kernels(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                leaves = [t for t in tree_leaves(self.op(**mine)) if isinstance(t, torch.Tensor)]
        except Exception as error:  # whatever an op makes of a call that its contract allows
            said = (str(error).strip().splitlines() or [""])[0]
            return Result(error=f"{type(error).__name__}: {said[:120]}")
        names = ["out"] if len(leaves) == 1 else [f"out{i}" for i in range(len(leaves))]
        after = {n: v for n, v in mine.items() if isinstance(v, torch.Tensor)}
        return Result(dict(zip(names, leaves)), after)

    # ------------------------------------------------------------------------------------------------ padded calls
    def padded(self, symbols: frozenset[str], tails: Mapping[str, Any] = MappingProxyType({})) -> Values:
        """The sample at larger extents of some symbols. tails: what the tail of an argument holds, where it is not what
        the contract asks for."""
        most = {s: n + (MORE if s in symbols else 0) for s, n in self.live.items()}
        given = dict(self.given)
        for name, axes in self.axes.items():
            live = self.given[name]
            shape = [n if d.symbol is None else d.extent(most) for d, n in zip(self.specs[name].dims, live.shape)]
            if list(live.shape) == shape:
                continue
            given[name] = self._with_tail(live, shape, tails[name] if name in tails else self.wanted(axes))
        return given

    def wanted(self, axes: c.Axes) -> Any:
        """What a contract asks a tail to hold; zero where anything goes."""
        if isinstance(axes.tail, c.Last):
            return "last"
        value = axes.tail.value if isinstance(axes.tail, c.Fill) else 0
        return self.given[value] if isinstance(value, str) else value

    def _with_tail(self, live: torch.Tensor, shape: list[int | None], value: Any) -> torch.Tensor:
        sizes = [int(n) for n in shape if n is not None]
        if isinstance(value, str):
            dim = next(d for d, (n, m) in enumerate(zip(live.shape, sizes)) if n != m)
            if not live.shape[dim]:
                return live.new_zeros(sizes)
            last = live.narrow(dim, live.shape[dim] - 1, 1)
            return torch.cat([live, last.repeat_interleave(sizes[dim] - live.shape[dim], dim)], dim)
        made = torch.full(sizes, 0, dtype=live.dtype)
        made.copy_(value if isinstance(value, torch.Tensor) else torch.full(sizes, value, dtype=live.dtype))
        made[tuple(slice(0, n) for n in live.shape)] = live
        return made

    # ------------------------------------------------------------------------------------------------ comparing
    def apart(self, right: Result, got: Result, exact: bool, but: Mapping[str, torch.Tensor] | None = None) -> str:
        """Where two results differ, live rows only; nothing where they do not. but: masks of elements by name that
        may differ."""
        if right.error or got.error:
            return "" if right.error else f"raises {got.error}"
        mine = got.tensors()
        for name, value in right.tensors().items():
            if name in self.axes and name not in self.written:
                continue
            other = mine[name]
            if other.dim() != value.dim() or any(n < m for n, m in zip(other.shape, value.shape)):
                return f"{name} has shape {tuple(other.shape)}, not {tuple(value.shape)}"
            other = other[tuple(slice(0, n) for n in value.shape)]
            value, other = value.clone(), other.clone()
            for at in self._nobodys(name, value):
                other[at] = value[at]
            if but is not None and name in but:
                other = torch.where(but[name], value, other)
            found = difference(value, other, exact)
            if found is not None:
                return f"{name} differs in rows {list(found[0][:4])}"
        return ""

    def _nobodys(self, name: str, value: torch.Tensor) -> Iterator[int]:
        """Null rows of state."""
        for axes in self.contract.arguments.values():
            if axes.into == name and axes.null is not None and 0 <= axes.null < len(value):
                yield axes.null


def copied(given: Mapping[str, Any]) -> Values:
    """Arguments with memory of their own: the same layout, and the same sharing between them."""
    storages: dict[int, torch.Tensor] = {}

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        key = value.untyped_storage()._cdata
        if key not in storages:
            storages[key] = moved(value, torch.device("cpu"))
        whole = torch.empty(0, dtype=value.dtype)
        return whole.set_(storages[key].untyped_storage(), value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]

    return {n: one(v) for n, v in given.items()}


def _changes(axes: c.Axes) -> bool:
    return any(isinstance(label, str) for label in axes.axes)


__all__ = ["MORE", "Calls", "InputError", "Refuted", "Result", "Sample", "Values", "copied", "resolved"]
