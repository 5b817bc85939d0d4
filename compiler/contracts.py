"""Finding a node's contract: declared, else derived from schema, tags and table, else unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx

from capwise.ops import aten
from capwise.ops import contract as c


@dataclass(frozen=True)
class Found:
    """What is known of a node's op, and on whose word."""

    source: Literal["declared", "table", "host", "unknown"]
    contract: c.Contract | None = None
    row: aten.Row | None = None


HOST = Found("host")
UNKNOWN = Found("unknown")


def find(node: fx.Node) -> Found:
    """The contract of a call_function node. Host nodes (arithmetic on sizes, getitem) need none."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return UNKNOWN if isinstance(op, torch._ops.HigherOrderOperator) else HOST
    declared = c.declared(op)
    if declared is not None:
        return Found("declared", contract=declared)
    if op.namespace == "aten" and aten.base_name(op).startswith("sym_"):
        return HOST
    row = aten.row(op)
    return Found("table", row=row) if row is not None else UNKNOWN
