"""What the user says about inputs: the names of their axes, and what is known beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from capwise.options import nearest

_LABEL = re.compile(r"^(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)(?:\s*([+-])\s*(\d+))?$")


class InputError(ValueError):
    """A batch or a description of inputs that cannot be right; names the argument, what was expected, what came."""


@dataclass(frozen=True)
class Dim:
    """One labelled dimension: `scale * symbol + offset`, or a constant where `symbol` is None (offset None: any)."""

    symbol: str | None
    scale: int = 1
    offset: int | None = 0

    def extent(self, symbols: Mapping[str, int]) -> int | None:
        if self.symbol is None:
            return self.offset
        return self.scale * symbols[self.symbol] + (self.offset or 0)

    def __str__(self) -> str:
        if self.symbol is None:
            return "*" if self.offset is None else str(self.offset)
        text = self.symbol if self.scale == 1 else f"{self.scale}*{self.symbol}"
        return f"{text}{self.offset:+d}" if self.offset else text


class Input:
    """Axes of a staged input, then what else is known of it.

    Args:
        axes: one label a dimension: "T", "R+1", "2*T", an int, or None for a dimension that never changes.
        null: the row number that stands for nothing: tails are filled with it, the row is scratch.
        fill: the value that makes the tail harmless, where the user knows better than the analysis.
        range: (lowest, highest) live value.
        default: what an optional input stands for at a step without it: its buffer is filled with this number then, and
            one program serves both. Left out, each is a program of its own.
    """

    kind: Literal["staged", "buffer"] = "staged"

    def __init__(
        self,
        *axes: str | int | None,
        null: int | None = None,
        fill: float | int | bool | None = None,
        range: tuple[int, int] | None = None,
        default: float | int | bool | None = None,
    ) -> None:
        self.axes = axes
        self.null, self.fill, self.range, self.default = null, fill, range, default

    def __repr__(self) -> str:
        names = ("null", "fill", "range", "default")
        extra = [f"{n}={getattr(self, n)!r}" for n in names if getattr(self, n) is not None]
        return f"{type(self).__name__}({', '.join([*map(repr, self.axes), *extra])})"


class Buffer(Input):
    """An engine's own persistent buffer: the batch hands over a view of its live part, capwise fills the tail there
    and copies nothing. The storage behind the view must reach to the captured extent."""

    kind = "buffer"


@dataclass(frozen=True)
class Live:
    """An int or a 0-d integer tensor that holds the live extent of a symbol."""

    symbol: str


@dataclass(frozen=True)
class Spec:
    """One described argument, checked and normalised."""

    name: str
    kind: Literal["staged", "buffer", "int", "live"]
    dims: tuple[Dim, ...] = ()
    null: int | None = None
    fill: float | int | bool | None = None
    range: tuple[int, int] | None = None
    default: float | int | bool | None = None

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(d.symbol for d in self.dims if d.symbol is not None)


def parse_dim(label: object, where: str) -> Dim:
    """A label to a Dim.

    Raises:
        InputError: the label is no symbol expression, int or None.
    """
    if label is None:
        return Dim(None, offset=None)
    if isinstance(label, int) and not isinstance(label, bool):
        return Dim(None, offset=label)
    match = _LABEL.match(label) if isinstance(label, str) else None
    if match is None:
        raise InputError(f"{where}: expected a label such as 'T', 'R+1', '2*T', an int or None; got {label!r}")
    scale, symbol, sign, offset = match.groups()
    return Dim(symbol, int(scale or 1), int(f"{sign or '+'}{offset or 0}"))


def normalise(inputs: Mapping[str, Any] | None) -> dict[str, Spec]:
    """`inputs={...}` as the user wrote it -> one Spec an argument.

    Raises:
        InputError: a description that is none of tuple, Input, Buffer, Live, symbol name.
    """
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InputError(f"inputs: expected argument name -> axis labels; got {type(inputs).__name__}")
    return {name: _spec(name, value) for name, value in (inputs or {}).items()}


def _spec(name: str, value: Any) -> Spec:
    where = f"inputs[{name!r}]"
    if isinstance(value, Live):
        return Spec(name, "live", (parse_dim(value.symbol, where),))
    if isinstance(value, str):
        return Spec(name, "int", (parse_dim(value, where),))
    if isinstance(value, (tuple, list)):
        value = Input(*value)
    if not isinstance(value, Input):
        raise InputError(f"{where}: expected a tuple of labels, Input, Buffer, Live or a symbol name; got {value!r}")
    dims = tuple(parse_dim(label, where) for label in value.axes)
    if value.default is not None and value.kind == "buffer":
        raise InputError(f"{where}: expected no default of a Buffer, the caller's own memory; got {value.default!r}")
    if value.default is not None and any(d.symbol is None and d.offset is None for d in dims):
        raise InputError(f"{where}: expected every dimension named or an int where a default is given; got {value!r}")
    return Spec(name, value.kind, dims, value.null, value.fill, value.range, value.default)


def extents_of(symbols: Iterable[str], extents: Mapping[str, int]) -> dict[str, int]:
    """Extents by the names that a graph uses: a symbol that only "R+1" carries is known there by that label."""
    return {s: e for s in symbols if (e := _extent_of(s, extents)) is not None}


def _extent_of(symbol: str, extents: Mapping[str, int]) -> int | None:
    dim = parse_dim(symbol, symbol)
    return dim.extent(extents) if dim.symbol in extents else None


def infer(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Names axes where the user did not: the first tensor's leading axis is T, another leading extent is R.

    Returns:
        inputs as the user could have written them, and what was assumed, in words.
    """
    tensors = {n: v for n, v in batch.items() if isinstance(v, torch.Tensor) and v.dim()}
    names: dict[int, str] = {}
    for value in tensors.values():
        size = value.shape[0]
        if names and size not in names and len(names) == 1:
            names |= {size: "R", size + 1: "R+1"} if size + 1 not in names else {size: "R"}
        elif not names:
            names[size] = "T"
    inputs: dict[str, Any] = {}
    for name, value in tensors.items():
        label = names.get(value.shape[0], value.shape[0])
        inputs[name] = (label, *value.shape[1:])
    said = [f"axes of {n!r} were inferred as {tuple(v)}: name them with inputs={{...}}" for n, v in inputs.items()]
    return inputs, said


def bind_extents(specs: Mapping[str, Spec], batch: Mapping[str, Any]) -> dict[str, int]:
    """The extent of every symbol in this batch.

    Raises:
        InputError: an unknown argument, a wrong rank, or extents that contradict each other.
    """
    found: dict[str, tuple[int, str]] = {}
    for name, spec in specs.items():
        value = batch.get(name)
        if value is None:
            continue
        for size, dim, where in _sizes(spec, value):
            _bind(found, dim, size, where)
    for name, spec in specs.items():
        _check_live(name, spec, batch.get(name), found)
    return {symbol: extent for symbol, (extent, _) in found.items()}


def check_names(specs: Mapping[str, Spec], known: list[str]) -> None:
    """Raises InputError where `inputs` describes an argument that the model does not take."""
    for name in specs:
        if name not in known:
            raise InputError(
                f"inputs[{name!r}]: expected an argument of the model: {', '.join(known)}{nearest(name, known)}"
            )


def _sizes(spec: Spec, value: Any) -> list[tuple[int, Dim, str]]:
    if spec.kind == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{spec.name}: expected an int ({spec.dims[0]}); got {type(value).__name__}")
        return [(value, spec.dims[0], spec.name)]
    if spec.kind == "live":
        return []
    if not isinstance(value, torch.Tensor):
        raise InputError(f"{spec.name}: expected a tensor of axes {_labels(spec)}; got {type(value).__name__}")
    if value.dim() != len(spec.dims):
        raise InputError(
            f"{spec.name}: expected {len(spec.dims)} dimensions {_labels(spec)}; got shape {tuple(value.shape)}"
        )
    return [(size, dim, f"{spec.name} dimension {i}") for i, (size, dim) in enumerate(zip(value.shape, spec.dims))]


def _bind(found: dict[str, tuple[int, str]], dim: Dim, size: int, where: str) -> None:
    if dim.symbol is None:
        if dim.offset is not None and size != dim.offset:
            raise InputError(f"{where}: expected {dim.offset}; got {size}")
        return
    rest = size - (dim.offset or 0)
    if rest < 0 or rest % dim.scale:
        raise InputError(f"{where}: expected an extent of the form {dim}; got {size}")
    extent = rest // dim.scale
    known = found.setdefault(dim.symbol, (extent, where))
    if known[0] != extent:
        raise InputError(
            f"{where}: expected {dim.extent({dim.symbol: known[0]})} "
            f"({dim} with {dim.symbol} = {known[0]} from {known[1]}); got {size}"
        )


def _check_live(name: str, spec: Spec, value: Any, found: Mapping[str, tuple[int, str]]) -> None:
    if spec.kind != "live" or value is None:
        return
    (symbol,) = spec.symbols
    if symbol not in found:
        raise InputError(f"{name}: Live({symbol!r}) names a symbol that no input carries")
    # A device scalar is not read back: that would sync.
    if isinstance(value, int) and value != found[symbol][0]:
        raise InputError(f"{name}: expected the live extent {symbol} = {found[symbol][0]}; got {value}")


def _labels(spec: Spec) -> str:
    return "(" + ", ".join(map(str, spec.dims)) + ")"
