"""Finding a node's contract: declared, else derived from schema, tags and table or from the kernel, else unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    if call_of(op) is not None:
        found = derive(node, names)
        return Found("unknown" if found.contract is None else "derived", found.contract, derived=found)
    if op.namespace == "aten" and aten.base_name(op).startswith("sym_"):
        return HOST
    row = aten.row(op)
    return Found("table", row=row) if row is not None else UNKNOWN
