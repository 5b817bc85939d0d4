"""Finding a node's contract: declared, else derived from schema, tags and table or from the kernel, else unknown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import sympy
import torch
from torch import fx

from capwise.derive import Derivation, derive
from capwise.ops import aten
from capwise.ops import contract as c
from capwise.runtime.kernel_call import call_of


@dataclass(frozen=True)
class Found:
    """What is known of a node's op, and on whose word. derived: what was read off a kernel, also where that is not
    enough for a contract."""

    source: Literal["declared", "derived", "table", "host", "unknown"]
    contract: c.Contract | None = None
    row: aten.Row | None = None
    derived: Derivation | None = None


HOST = Found("host")
UNKNOWN = Found("unknown")
_NONE: Mapping[torch._ops.OpOverload, c.Contract] = MappingProxyType({})
_OPENED: ContextVar[Mapping[torch._ops.OpOverload, c.Contract]] = ContextVar("capwise_opened_contracts", default=_NONE)


@contextlib.contextmanager
def opened(contracts: Mapping[torch._ops.OpOverload, c.Contract]) -> Iterator[None]:
    """Inside, ops that nobody declares have these contracts, as `opening.open_op` read them off sample calls; without
    it an opaque op stays a seam."""
    token = _OPENED.set({**_OPENED.get(), **contracts})
    try:
        yield
    finally:
        _OPENED.reset(token)


def find(node: fx.Node, names: Mapping[sympy.Symbol, str] | None = None) -> Found:
    """The contract of a call_function node. Host nodes (arithmetic on sizes, getitem) need none.

    Args:
        names: the symbols that batches decide, for launches of kernels; every symbol where None.
    """
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return UNKNOWN if isinstance(op, torch._ops.HigherOrderOperator) else HOST
    declared = c.declared(op)
    if declared is not None:
        return Found("declared", contract=declared)
    if op in _OPENED.get():
        return Found("derived", contract=_OPENED.get()[op])
    if call_of(op) is not None:
        found = derive(node, names)
        return Found("unknown" if found.contract is None else "derived", found.contract, derived=found)
    if op.namespace == "aten" and aten.base_name(op).startswith("sym_"):
        return HOST
    row = aten.row(op)
    return Found("table", row=row) if row is not None else UNKNOWN
