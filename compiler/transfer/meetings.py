"""Arguments that a call reads where another one of the same call is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from capwise.axes import Space
from capwise.derive import Derivation
from capwise.facts import facts, is_tensor, storage_of, val
from capwise.kernel_access.overlap import overlaps
from capwise.ops import aten
from capwise.transfer.overlap import coincide, share, stays

# Families of ops of which the data says what is read or written.
_BY_DATA = ("gather", "scatter", "search", "bins", "patch", "data")


@dataclass(frozen=True)
class Meeting:
    """Argument `name` of `node`, which holds `arg`, is read; `written` may be written at a place of it. is_sure: some
    element is read at a place where another one is written."""

    node: fx.Node
    name: str
    arg: fx.Node
    written: str
    is_sure: bool

    def __str__(self) -> str:
        return f"{self.node.target} reads {self.name} and writes {self.written}, which share memory"


@dataclass(frozen=True)
class _Member:
    """A tensor that a call takes: of which argument, and at which position of it if that is a list."""

    name: str
    at: int | None
    node: fx.Node


def meetings(node: fx.Node, space: Space) -> list[Meeting]:
    """An argument that is read meets one that is written iff both are views of one storage which may hold a place in
    common, unless what is read there is what stood there before the call.

    The latter is known of an elementwise op whose two views are the same places in the same order, of a copy of rows to
    themselves, of the `out=` form of an op that has an in-place form, of a custom op whose contract says that rows do
    not see each other, and of a kernel whose programs keep apart. Of an op that neither ATen nor a contract nor a
    kernel speaks for nothing is said: what it does with its arguments is its author's.
    """
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return []
    written = list(_members(node, aten.written(op)))
    read = [m for m in _members(node, _names(node)) if m.name not in aten.written(op)]
    found: dict[tuple[str, fx.Node], Meeting] = {}
    for one in read:
        for other in written:
            shared = _share(one.node, other.node, space)
            if shared is not False and not _keeps(node, one, other, space):
                sure = bool(shared) and _is_static(op)
                found.setdefault((one.name, one.node), Meeting(node, one.name, one.node, other.name, sure))
    return list(found.values())


def _names(node: fx.Node) -> tuple[str, ...]:
    """Arguments of which somebody says what is done with them."""
    op, found = node.target, facts(node).found
    if isinstance(op, torch._ops.OpOverload) and aten.is_core(op):
        return tuple(a.name for a in op._schema.arguments)
    if found is not None and found.contract is not None:
        return tuple(found.contract.arguments)
    return tuple(found.derived.call.pointers) if found is not None and found.derived is not None else ()


def _members(node: fx.Node, names: tuple[str, ...]) -> Iterator[_Member]:
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    for name in names:
        value: Any = aten.argument(op, node.args, node.kwargs, name)
        members = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
        yield from (_Member(name, at, one) for at, one in members if is_tensor(one))


def _share(a: fx.Node, b: fx.Node, space: Space) -> bool | None:
    return storage_of(val(a)) == storage_of(val(b)) and share(val(a), val(b), space)


def _is_static(op: torch._ops.OpOverload) -> bool:
    """Whether shapes alone say which places an op reads and writes."""
    row = aten.row(op)
    return aten.elementwise(op) is not None or row is not None and row.family not in _BY_DATA


def _keeps(node: fx.Node, one: _Member, other: _Member, space: Space) -> bool:
    """Whether every element of `one` that is read is, when it is read, what it was before the call."""
    op, found = node.target, facts(node).found
    assert isinstance(op, torch._ops.OpOverload)
    row = aten.elementwise(op)
    if one.at != other.at:
        return False
    if row is not None and row.how == "move" and stays(val(other.node), val(one.node), space):
        return True
    if not coincide(val(other.node), val(one.node), space):
        return False
    if found is not None and found.derived is not None:
        return _keeps_apart(found.derived, one.name, other.name)
    if found is not None and found.contract is not None:
        return found.contract.locality == "row"
    return row is not None or one.name == aten.overwritten(op)


def _keeps_apart(found: Derivation, name: str, written: str) -> bool:
    """Whether a kernel's loads through one pointer and its stores through another to the same tensor do not meet, from
    program to program."""
    accesses = found.call.summary.accesses
    loads = [a for a in accesses if a.arg == name and a.kind == "load"]
    others = [a for a in accesses if a.arg == written]
    stores = [a for a in others if a.kind == "store"]
    lost = any(a.reason for a in (*loads, *stores)) or len(stores) < len(others)
    return not lost and not overlaps([*loads, *stores])
