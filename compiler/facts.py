"""What is known of a value. Facts live in node.meta under one key and are read through the accessors here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import sympy
import torch
from torch import fx

from capwise.axes import Axis, show

_KEY = "capwise"

Origin = Literal["state", "static", "staged", "buffer", "pool", "eager", "constant"]


@dataclass(frozen=True)
class Tail:
    """What the rows past the live extent of one axis hold.

    live: there is no tail. filled: the tail holds `value` (a number, or a sympy expression over the last live values
    of inputs); `own` if that is also the value of the last live row. finite: any finite value. padded: anything, NaN
    too, but it stays in tail rows.
    """

    kind: Literal["live", "filled", "finite", "padded"]
    value: Any = None
    own: bool = False

    def is_value(self, wanted: float | int | bool) -> bool:
        if self.kind != "filled" or isinstance(self.value, sympy.Basic) or self.value is None:
            return False
        return bool(self.value == wanted)

    @property
    def constant(self) -> float | int | bool | None:
        """The fill, where it is a plain number."""
        return None if self.kind != "filled" or isinstance(self.value, sympy.Basic) else self.value

    @property
    def is_finite(self) -> bool:
        constant = self.constant
        if constant is not None:
            return math.isfinite(constant)
        return self.kind in ("live", "finite", "filled") and self.kind != "live"

    def __str__(self) -> str:
        return f"filled({self.value})" if self.kind == "filled" else self.kind


LIVE = Tail("live")
FINITE = Tail("finite")
PADDED = Tail("padded")
_ORDER = {"live": 0, "filled": 1, "finite": 2, "padded": 3}


def filled(value: Any, own: bool = False) -> Tail:
    return Tail("filled", value, own)


def join(tails: Iterable[Tail]) -> Tail:
    """The least tail that covers all of them."""
    result = LIVE
    for tail in tails:
        if result.kind == "live" or result == tail:
            result = tail
        elif tail.kind != "live":
            both_finite = result.is_finite and tail.is_finite
            result = FINITE if both_finite else PADDED
    return result


@dataclass
class Fact:
    """Facts of one tensor value.

    axes and tails have one entry a dimension. storage is the alias class. position: the dimension along which each
    element is its own row number (an arange). live: what this 0-d tensor holds, over live extents. low: a proved
    lower bound of every element, live_low: of live ones; below: a live extent that every element is below. keeps: the
    value that the tail rows were taken from, unchanged.
    """

    axes: tuple[Axis, ...]
    tails: tuple[Tail, ...]
    storage: int
    origin: Origin
    source: str = ""
    position: int | None = None
    live: sympy.Expr | None = None
    low: int | None = None
    live_low: int | None = None
    below: sympy.Expr | None = None
    keeps: fx.Node | None = None
    inputs: frozenset[str] = frozenset()

    def with_tail(self, dim: int, tail: Tail) -> Fact:
        tails = list(self.tails)
        tails[dim] = tail
        return replace(self, tails=tuple(tails))

    def __str__(self) -> str:
        dims = [show(a) + ("" if t.kind == "live" else f":{t}") for a, t in zip(self.axes, self.tails)]
        return f"[{', '.join(dims)}] {self.origin}"


@dataclass
class NodeFacts:
    """Everything that passes attach to one node.

    found: the contract (annotate). extents: symbols in the sizes that the op works at; unnamed: symbols there that no
    input carries, which only the data decides (provenance). value: rows and axes (padding). eager: runs as a seam.
    """

    found: Any = None
    extents: frozenset[str] = frozenset()
    unnamed: frozenset[str] = frozenset()
    value: Fact | tuple[Fact | None, ...] | None = None
    eager: bool = False
    why_eager: str = ""


def facts(node: fx.Node) -> NodeFacts:
    """The record of a node, made at first use."""
    record: NodeFacts | None = node.meta.get(_KEY)
    if record is None:
        record = node.meta[_KEY] = NodeFacts()
    return record


def fact(node: fx.Node) -> Fact:
    """The fact of a tensor node.

    Raises:
        KeyError: no fact was derived, or the node has several results.
    """
    value = facts(node).value
    if not isinstance(value, Fact):
        raise KeyError(f"{node.name}: no single fact")
    return value


def has_fact(node: object) -> bool:
    return isinstance(node, fx.Node) and isinstance(facts(node).value, Fact)


def clear(graph: fx.Graph) -> None:
    for node in graph.nodes:
        node.meta.pop(_KEY, None)


def val(node: fx.Node) -> Any:
    """The fake value of a node: FakeTensor, SymInt, tuple of them or None."""
    return node.meta.get("val")


def is_tensor(node: object) -> bool:
    return isinstance(node, fx.Node) and isinstance(val(node), torch.Tensor)


def storage_of(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata
