"""What an op declares about capture.

A contract answers, for each tensor argument: what its axes index, which tails leave the live rows alone, which
strides it needs, whether it is a slot number into persistent state. For the op: how far rows see each other, which
host values shape its launch, whether it syncs, allocates or reads anything hidden. Silence is not an answer: a padded
argument that a contract does not name is treated as an unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

import torch

Locality = Literal["row", "prefix", "segment", "block", "global"]
LOCALITIES: tuple[Locality, ...] = ("row", "prefix", "segment", "block", "global")


class Tail:
    """What rows past the live extent must hold so that they are harmless to one consumer."""


@dataclass(frozen=True)
class Any(Tail):
    """Every tail is harmless, NaN and out-of-range integers included."""


@dataclass(frozen=True)
class Last(Tail):
    """The last live value, repeated: what keeps a boundary list monotone."""


@dataclass(frozen=True)
class Fill(Tail):
    """A constant; a string names the op's scalar argument that holds it."""

    value: float | int | bool | str


@dataclass(frozen=True)
class Finite(Tail):
    """Any finite value: the op masks the tail by multiplying, which does not stop NaN."""


@dataclass(frozen=True)
class Axes:
    """One argument's axes and what its padded rows may do.

    `axes` names what each dimension indexes, in the contract's own symbols: "T" tokens, "R" requests, "R+1"
    boundaries; an int or None is a dimension that no batch changes.
    """

    axes: tuple[str | int | None, ...]
    tail: Tail = Any()
    write: bool = False
    # Where the values of this argument are row numbers: of which argument, and the number that the op skips.
    into: str | None = None
    null: int | None = None


def _axes(axis: str, more: tuple[int | None, ...], dim: int) -> tuple[str | int | None, ...]:
    return (*more[:dim], axis, *more[dim:])


def Rows(axis: str = "T", *more: int | None, dim: int = 0, tail: Tail | None = None, write: bool = False) -> Axes:
    """Token rows: row i of the output needs nothing of this argument's rows after i."""
    return Axes(_axes(axis, more, dim), tail or Any(), write)


def Boundaries(axis: str = "R+1", tail: Tail | None = None) -> Axes:
    """A monotone list of request boundaries (`query_start_loc`)."""
    return Axes((axis,), tail or Last())


def PerRequest(axis: str = "R", *more: int | None, tail: Tail | None = None) -> Axes:
    """One row a request."""
    return Axes((axis, *more), tail or Any())


def Slots(axis: str = "R", *more: int | None, into: str, null: int, tail: Tail | None = None) -> Axes:
    """Row numbers of the persistent argument `into`; the op neither reads nor writes the row `null`."""
    return Axes((axis, *more), tail or Fill(null), into=into, null=null)


@dataclass(frozen=True)
class Stride:
    """What an argument's strides must be; an argument not named takes its strides at run time."""


@dataclass(frozen=True)
class Unit(Stride):
    """Stride 1 along every dimension that the op steps through by one (the last)."""


@dataclass(frozen=True)
class Contiguous(Stride):
    """Dense, row-major. raw: dimensions of one element too, whose stride is anything where nobody steps along them; for
    a kernel that makes a memory descriptor of the strides as they are."""

    raw: bool = False


@dataclass(frozen=True)
class Frozen(Stride):
    """Any strides, but the launch freezes them: a replay must bring the same."""


@dataclass(frozen=True)
class Contract:
    """A declaration about one op. `out` (or `out0`, `out1`, ...) names what the op returns; Fill as its tail says what
    its padded rows hold once the arguments' tails are as asked.

    rows, requests: argument name -> Axes. strides: argument name -> Stride. host: names of scalar arguments, or of
    other host values, that shape the launch. state: names of arguments that are persistent and written. until: for an
    op that goes on when the next launch starts (a collective, a peer that reads), the op that waits for its end: before
    that is called with its result, the result is not to be read and its arguments are not to be written.
    """

    rows: Mapping[str, Axes] = field(default_factory=dict)
    requests: Mapping[str, Axes] = field(default_factory=dict)
    locality: Locality = "global"
    strides: Mapping[str, Stride] = field(default_factory=dict)
    host: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    syncs: bool = False
    allocates: bool = False
    hidden: bool = False
    overlap: bool = False
    offset_bits: int = 64
    until: str | None = None
    source: str = "declared"

    @property
    def arguments(self) -> dict[str, Axes]:
        return {**self.rows, **self.requests}


_DECLARED: dict[torch._ops.OpOverload, Contract] = {}
_WITHHELD: ContextVar[bool] = ContextVar("capwise_contracts_withheld", default=False)


def resolve(name: str) -> torch._ops.OpOverload:
    """ "ns::op" or "ns::op.overload" -> the overload.

    Raises:
        ValueError: no such op is registered (import the module that registers it first).
    """
    namespace, _, rest = name.partition("::")
    op, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), op), overload or "default")
    except AttributeError:
        raise ValueError(f"contract: expected a registered op 'namespace::name[.overload]'; got {name!r}") from None


def declare(op: str | torch._ops.OpOverload, value: Contract) -> Contract:
    """Registers a contract for an op; a later declaration replaces an earlier one.

    Raises:
        ValueError: the op does not exist, or the contract names an argument that the op does not have.
    """
    overload = resolve(op) if isinstance(op, str) else op
    _validate(overload, value)
    _DECLARED[overload] = value
    return value


def contract(op: str | torch._ops.OpOverload) -> Callable[[Callable[[], Contract]], Callable[[], Contract]]:
    """Decorates a function that returns the contract of `op`, and registers what it returns."""

    def register(make: Callable[[], Contract]) -> Callable[[], Contract]:
        declare(op, make())
        return make

    return register


def declared(op: torch._ops.OpOverload) -> Contract | None:
    """The contract that was declared for an op, or None (also while contracts are withheld)."""
    return None if _WITHHELD.get() else _DECLARED.get(op)


def all_declared() -> dict[torch._ops.OpOverload, Contract]:
    return dict(_DECLARED)


@contextlib.contextmanager
def withheld() -> Iterator[None]:
    """Hides every declared contract: what is still found then is found without anybody's word."""
    token = _WITHHELD.set(True)
    try:
        yield
    finally:
        _WITHHELD.reset(token)


def _validate(op: torch._ops.OpOverload, value: Contract) -> None:
    names = {a.name for a in op._schema.arguments}
    returns = len(op._schema.returns)
    outs = {"out", *(f"out{i}" for i in range(returns))}
    named = {*value.arguments, *value.strides, *value.state}
    if unknown := sorted(n for n in named if n not in names | outs):
        raise ValueError(f"contract of {op}: expected arguments of {op._schema}; got {', '.join(unknown)}")
    if value.locality not in LOCALITIES:
        raise ValueError(f"contract of {op}: locality: expected one of {LOCALITIES}; got {value.locality!r}")
    if value.until is not None:
        resolve(value.until)
    for name, axes in value.arguments.items():
        if axes.into is not None and axes.into not in names:
            raise ValueError(f"contract of {op}: {name} indexes {axes.into!r}, which is no argument of {op._schema}")
        if isinstance(axes.tail, Fill) and isinstance(axes.tail.value, str) and axes.tail.value not in names:
            raise ValueError(f"contract of {op}: {name}: fill {axes.tail.value!r} names no argument of {op._schema}")
