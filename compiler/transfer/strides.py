"""Strides that contracts ask for, and whether a value has them whatever the extents are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

from capwise.axes import as_expr
from capwise.facts import facts, is_tensor
from capwise.ops import aten
from capwise.ops import contract as c


def needs(node: fx.Node) -> Iterator[tuple[str, c.Stride, fx.Node]]:
    """(argument's name, stride that the node's contract asks for, argument)."""
    op, found = node.target, facts(node).found
    contract = found.contract if found is not None else None
    if contract is None:
        return
    assert isinstance(op, torch._ops.OpOverload)
    for name, need in contract.strides.items():
        arg = aten.argument(op, node.args, node.kwargs, name)
        if isinstance(arg, fx.Node) and is_tensor(arg):
            yield name, need, arg


def is_satisfied(need: c.Stride, value: torch.Tensor) -> bool:
    """Whether a value has the stride at every extent."""
    if isinstance(need, c.Contiguous):
        return is_dense(value, need.raw)
    last = value.dim() - 1
    return value.dim() == 0 or _is(value.shape[last], 1) or _is(value.stride(last), 1)


def is_dense(value: torch.Tensor, raw: bool = False) -> bool:
    """Row-major with no gaps, shown without guarding on symbols. raw: dimensions of one element count as well."""
    expected: Any = 1
    for size, stride in reversed(list(zip(value.shape, value.stride()))):
        if (raw or not _is(size, 1)) and not _same(stride, expected):
            return False
        expected = size * expected
    return True


def _is(size: object, number: int) -> bool:
    return isinstance(size, int) and size == number


def _same(a: object, b: object) -> bool:
    x, y = as_expr(a), as_expr(b)
    if x == y:
        return True
    # Torch writes strides as products of Max(1, size): with no empty axis that is the size.
    return bool(x.replace(_is_max, _size_of).expand() == y.replace(_is_max, _size_of).expand())


def _is_max(expr: sympy.Basic) -> bool:
    return type(expr).__name__ == "Max" and len(expr.args) == 2 and sympy.Integer(1) in expr.args


def _size_of(expr: sympy.Basic) -> sympy.Basic:
    return next(arg for arg in expr.args if arg != 1)
