"""Host numbers as device scalars: which can be, and with which overload."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from capwise.axes import Space, as_expr
from capwise.facts import val

aten_ops = torch.ops.aten
# Host arithmetic as traced, and the op that does the same on 0-d tensors.
OPERATORS: dict[Any, Any] = {
    operator.add: aten_ops.add.Tensor,
    operator.sub: aten_ops.sub.Tensor,
    operator.mul: aten_ops.mul.Tensor,
    operator.truediv: aten_ops.div.Tensor,
    operator.floordiv: aten_ops.floor_divide.default,
    operator.mod: aten_ops.remainder.Tensor,
    operator.neg: aten_ops.neg.default,
    torch.sym_min: aten_ops.minimum.default,
    torch.sym_max: aten_ops.maximum.default,
    torch.sym_float: aten_ops._to_copy.default,
}


def is_affine(space: Space, node: fx.Node) -> bool:
    """Whether a host integer is a sum of multiples of named symbols and a constant."""
    if not isinstance(val(node), torch.SymInt):
        return False
    expr = as_expr(val(node))
    symbols = expr.free_symbols
    if not symbols or not symbols <= set(space.names):
        return False
    return bool(expr.is_polynomial(*symbols)) and all(expr.diff(s).is_Integer for s in symbols)


def convertible(space: Space, node: Any) -> bool:
    """Whether a host number can be computed on the device from live extents."""
    if isinstance(node, (int, float)):
        return True
    if not isinstance(node, fx.Node):
        return False
    if is_affine(space, node):
        return True
    return node.target in OPERATORS and all(convertible(space, a) for a in node.args)


def argument_name(op: torch._ops.OpOverload, node: fx.Node, arg: Any) -> str | None:
    for i, a in enumerate(node.args):
        if a is arg:
            return op._schema.arguments[i].name
    return next((k for k, v in node.kwargs.items() if v is arg), None)


def tensor_overload(node: fx.Node, arg: Any) -> tuple[torch._ops.OpOverload, tuple[str, ...]] | None:
    """The overload of the node's op that takes a tensor where it now takes this number, and the names of the other
    numbers that must become tensors with it; None where there is none."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return None
    name = argument_name(op, node, arg)
    if name is None:
        return None
    if _takes_tensor(op, name):
        return op, ()
    names = [a.name for a in op._schema.arguments]
    for overload in op.overloadpacket.overloads():
        other = getattr(op.overloadpacket, overload)
        theirs = [a.name for a in other._schema.arguments]
        given = names[: len(node.args)] + list(node.kwargs)
        if set(given) <= set(theirs) and theirs[: len(node.args)] == names[: len(node.args)]:
            if _takes_tensor(other, name) and "out" not in overload:
                rest = tuple(n for n in given if n != name and _takes_tensor(other, n) and not _takes_tensor(op, n))
                return other, rest
    return None


def _takes_tensor(op: torch._ops.OpOverload, name: str) -> bool:
    kind = next((str(a.type) for a in op._schema.arguments if a.name == name), "")
    return kind in ("Tensor", "Optional[Tensor]")
