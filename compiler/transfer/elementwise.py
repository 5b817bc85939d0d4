"""Elementwise ops: a padded row stays in its row. Constants fold, so that masks are seen to work."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from capwise.axes import ONE, Axis, as_expr
from capwise.facts import FINITE, LIVE, PADDED, Fact, Tail, fact, facts, filled, has_fact, is_tensor, val
from capwise.ops import aten
from capwise.transfer.flow import Flow, broadcast_dim

_SYMBOLIC: dict[str, Callable[[Any, Any], Any]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_COMPARE = {"lt", "le", "gt", "ge"}
_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
# What comes out is no number or not below zero, whatever goes in.
_NOT_NEGATIVE = {"abs", "relu", "exp", "sigmoid", "sqrt", "square"}
_KEEP_VALUE = {"_to_copy", "clone", "copy", "alias", "to"}


def tensor_args(node: fx.Node) -> list[fx.Node]:
    return [a for a in node.all_input_nodes if is_tensor(a)]


def pointwise(flow: Flow, node: fx.Node, row: aten.Row) -> None:
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    flow.scalars(node, _scalar_args(node), can_be_tensor=True)
    operands = _operands(node, op)
    value = val(node)
    first = value if isinstance(value, torch.Tensor) else value[0]
    axes = _result_axes(flow, node, operands, flow.axes_by_size(first))
    tails = [_tail(flow, node, operands, d, axes) for d in range(len(axes))]
    if first is not value:
        _several(flow, node, operands, axes)
        return
    if not op._schema.is_mutable:
        extra = _value_facts(flow, node, operands)
        flow.fresh(node, axes, tails, operands, **extra)
        return
    for name in aten.written(op):
        _write(flow, node, aten.argument(op, node.args, node.kwargs, name), axes, tails)


def _several(flow: Flow, node: fx.Node, operands: Sequence[fx.Node], axes: Sequence[Axis]) -> None:
    """An op with several results, each of them elementwise: a value and its exponent, a value and what was kept."""
    inputs = frozenset().union(*[fact(o).inputs for o in operands])
    tails = tuple(flow.plain_tails(axes))
    storages = [part.untyped_storage()._cdata for part in val(node)]
    facts(node).value = tuple(Fact(tuple(axes), tails, s, "pool", node.name, inputs=inputs) for s in storages)


def _scalar_args(node: fx.Node) -> list[Any]:
    """Arguments that are numbers of the content. A `dtype` or a memory format is none."""
    return [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node) and not is_tensor(a)]


def _operands(node: fx.Node, op: torch._ops.OpOverload) -> list[fx.Node]:
    """Tensors whose elements are read; what `copy_` and `out=` only write is left out."""
    overwritten = set()
    if op._schema.is_mutable and aten.base_name(op) in ("copy", "fill", "zero"):
        overwritten = {aten.argument(op, node.args, node.kwargs, "self")}
    overwritten |= {node.kwargs[n] for n in aten.written(op) if n in node.kwargs}
    return [a for a in tensor_args(node) if a not in overwritten]


def _result_axes(flow: Flow, node: fx.Node, operands: Sequence[fx.Node], plain: list[Axis]) -> list[Axis]:
    axes: list[Axis] = []
    for d, by_size in enumerate(plain):
        met: list[Axis] = []
        for operand in operands:
            mine = broadcast_dim(len(plain), len(fact(operand).axes), d)
            if mine is not None:
                met.append(fact(operand).axes[mine])
        axes.append(flow.agree(node, met, by_size))
    return axes


def _tail(flow: Flow, node: fx.Node, operands: Sequence[fx.Node], d: int, axes: Sequence[Axis]) -> Tail:
    if not flow.is_padded(axes[d]):
        return LIVE
    seen: list[Tail | None] = []
    for operand in operands:
        mine = broadcast_dim(len(axes), len(fact(operand).axes), d)
        has = mine is not None and fact(operand).axes[mine] != ONE
        seen.append(fact(operand).tails[mine] if has and mine is not None else None)
    folded = _masked(flow, node, operands, d, len(axes)) or _folded(node, operands, seen)
    if folded is not None:
        return folded
    dtype = val(node).dtype if is_tensor(node) else None
    exact = dtype is not None and not dtype.is_floating_point and not dtype.is_complex
    return FINITE if exact else PADDED


def _folded(node: fx.Node, operands: Sequence[fx.Node], seen: Sequence[Tail | None]) -> Tail | None:
    """A constant tail where the op makes constants out of constants, or picks one."""
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    chosen = _selected(name, node, operands, seen)
    if chosen is not None:
        return chosen
    own = bool(seen) and all(t is None or t.own for t in seen) and any(t is not None for t in seen)
    if any(t is None or t.kind != "filled" for t in seen) or not seen:
        return filled(None, own=True) if own else None
    values = [t.value for t in seen if t is not None]
    result = _evaluate(name, node, operands, values)
    if result is None:
        return filled(None, own=True) if own else None
    return filled(result, own)


def _selected(name: str, node: fx.Node, operands: Sequence[fx.Node], seen: Sequence[Tail | None]) -> Tail | None:
    """where and masked_fill with a constant condition, and products with zero."""
    by_node = dict(zip(operands, seen))
    if name == "where" and len(node.args) == 3:
        return _chosen(node.args[0], node.args[1], node.args[2], by_node)
    if name == "masked_fill":
        return _chosen(node.args[1], node.args[2], node.args[0], by_node)
    if name == "logical_and" or name in ("bitwise_and", "__and__"):
        return filled(False) if any(t is not None and t.is_value(False) for t in seen) and _is_bool(node) else None
    if name == "mul" and len(seen) == 2 and all(t is not None for t in seen):
        zero = any(t.is_value(0) for t in seen if t)
        return filled(0) if zero and all(t.is_finite for t in seen if t) else None
    return None


def _chosen(condition: Any, yes: Any, no: Any, by_node: dict[fx.Node, Tail | None]) -> Tail | None:
    """The tail of the branch that a constant condition takes; of both where they hold the same."""
    tail = by_node.get(condition)
    if tail is not None and tail.constant is not None:
        return _pick(yes if tail.constant else no, by_node)
    first, second = _pick(yes, by_node), _pick(no, by_node)
    if tail is not None or first is None or second is None or first.constant is None:
        return None
    return filled(first.constant) if second.is_value(first.constant) else None


def _is_bool(node: fx.Node) -> bool:
    return is_tensor(node) and val(node).dtype == torch.bool


def _pick(arg: Any, by_node: dict[fx.Node, Tail | None]) -> Tail | None:
    if isinstance(arg, (int, float, bool)):
        return filled(arg)
    if not isinstance(arg, fx.Node):
        return None
    if arg in by_node and by_node[arg] is not None:
        return by_node[arg]
    return _constant_operand(arg)


def _constant_operand(arg: fx.Node) -> Tail | None:
    """A 0-d tensor made from a literal, such as `torch.where(m, x, 0.)` traces to."""
    if arg.target in (torch.ops.aten.scalar_tensor.default, torch.ops.aten.full.default):
        literal = arg.args[-1]
        if isinstance(literal, (int, float, bool)):
            return filled(literal)
    return None


def _evaluate(name: str, node: fx.Node, operands: Sequence[fx.Node], values: Sequence[Any]) -> Any:
    if name in _KEEP_VALUE and len(values) == 1:
        return _converted(values[0], val(operands[0]).dtype, val(node).dtype if is_tensor(node) else None)
    if any(v is None for v in values):
        return None
    if any(isinstance(v, sympy.Basic) for v in values):
        return _symbolic(name, node, dict(zip(operands, values)))
    return _concrete(node, dict(zip(operands, values)))


def _converted(value: Any, source: torch.dtype, target: torch.dtype | None) -> Any:
    if target is None or source == target or isinstance(value, sympy.Basic) or value is None:
        return value
    return torch.tensor(value, dtype=source).to(target).item()


def _symbolic(name: str, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if name not in _SYMBOLIC or len(node.args) != 2 or node.kwargs:
        return None
    a, b = (values.get(x, x) if isinstance(x, fx.Node) else x for x in node.args)
    if not all(isinstance(v, (int, sympy.Basic)) and not isinstance(v, bool) for v in (a, b)):
        return None
    result = sympy.expand(_SYMBOLIC[name](a, b))
    return int(result) if result.is_Integer else result


def _concrete(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Runs the op itself on one element."""
    op = node.target
    if op._schema.is_mutable or not isinstance(val(node), torch.Tensor):  # type: ignore[union-attr]
        return None

    def literal(arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            if arg not in values:
                raise LookupError(arg.name)
            return torch.tensor(values[arg], dtype=val(arg).dtype)
        return arg

    try:
        args = fx.node.map_aggregate(node.args, literal)
        kwargs = {k: literal(v) for k, v in node.kwargs.items() if k not in ("device", "pin_memory")}
        result = op(*args, **kwargs)  # type: ignore[operator]
        return result.item() if isinstance(result, torch.Tensor) and result.numel() == 1 else None
    except (LookupError, RuntimeError, TypeError, ValueError, OverflowError):
        return None


def _masked(flow: Flow, node: fx.Node, operands: Sequence[fx.Node], d: int, rank: int) -> Tail | None:
    """`arange(S) < live S` is False on the tail of S, `>=` is True; `minimum(arange(S), live S - 1)` repeats the last
    live row there."""
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    if name not in (*_COMPARE, "minimum") or len(node.args) != 2:
        return None
    left, right = node.args
    if not _is_position(left, d, rank):
        left, right, name = right, left, _FLIPPED.get(name, name)
    if not _is_position(left, d, rank) or live_expr(flow, right) is None:
        return None
    assert isinstance(left, fx.Node)
    axis = fact(left).axes[fact(left).position]  # type: ignore[index]
    if flow.space.layout(axis)[0] != "leading":
        return None
    beyond = sympy.expand(live_expr(flow, right) - flow.space.size(axis))
    if name == "minimum":
        return filled(None, own=True) if beyond == -1 else None
    return filled(name == "ge") if beyond == 0 and name in ("lt", "ge") else None


def _is_position(arg: Any, d: int, rank: int) -> bool:
    if not has_fact(arg) or fact(arg).position is None:
        return False
    return broadcast_dim(rank, len(fact(arg).axes), d) == fact(arg).position


def live_expr(flow: Flow, arg: Any) -> sympy.Expr | None:
    """What this operand is over live extents: a live scalar, or a host integer (which the analysis has a device scalar
    put in place of)."""
    if has_fact(arg):
        return fact(arg).live
    value = val(arg) if isinstance(arg, fx.Node) else arg
    if isinstance(value, torch.SymInt) or isinstance(value, int) and not isinstance(value, bool):
        return as_expr(value)
    return None


def _value_facts(flow: Flow, node: fx.Node, operands: Sequence[fx.Node]) -> dict[str, Any]:
    """What more is known of the elements: row numbers, live scalars, bounds."""
    name = aten.base_name(node.target)  # type: ignore[arg-type]
    if name in _KEEP_VALUE and len(operands) == 1:
        source = fact(operands[0])
        names = ("position", "live", "low", "live_low", "below", "keeps")
        # What is no number becomes the lowest integer.
        from_float = val(operands[0]).dtype.is_floating_point and not val(node).dtype.is_floating_point
        return {n: getattr(source, n) for n in names if not (from_float and n in ("low", "live_low", "below"))}
    if name == "remainder":
        divisor = live_expr(flow, node.args[1])
        return {} if divisor is None else {"low": 0, "below": divisor}
    if name == "where":
        return _where_facts(node)
    if name in _NOT_NEGATIVE and val(node).dtype.is_floating_point:
        return {"low": 0}
    if name in _SYMBOLIC and len(node.args) == 2 and not node.kwargs:
        return _arithmetic_facts(flow, node, name)
    return _bounds(flow, node, name, operands)


def _bounds(flow: Flow, node: fx.Node, name: str, operands: Sequence[fx.Node]) -> dict[str, Any]:
    if name in ("clamp", "clamp_min") and len(node.args) > 1:
        upper = live_expr(flow, node.args[2]) if len(node.args) > 2 else None
        below = None if upper is None else upper + 1
        if node.args[1] is not None:
            lows = [_literal(node.args[1]), *([] if upper is None else [flow.least(upper)])]
            return {"low": None if None in lows else min(v for v in lows if v is not None), "below": below}
        lows = [fact(operands[0]).low, None if upper is None else flow.least(upper)]
        return {"low": None if None in lows else min(v for v in lows if v is not None), "below": below}
    if name == "maximum" and len(operands) == 2:
        known = [low for o in operands if (low := fact(o).low) is not None]
        return {"low": max(known, default=None)}
    if name == "minimum" and len(operands) == 2:
        lows = [fact(o).low for o in operands]
        return {"low": None if None in lows else min(v for v in lows if v is not None)}
    return {}


def _literal(arg: Any) -> int | None:
    """A number, also where it was made a 0-d tensor to stand beside one."""
    if isinstance(arg, fx.Node) and arg.target is torch.ops.aten.full.default:
        arg = arg.args[1]
    return arg if isinstance(arg, int) and not isinstance(arg, bool) else None


def _where_facts(node: fx.Node) -> dict[str, Any]:
    lows = [fact(a).low if has_fact(a) else _literal(a) for a in node.args[1:]]  # type: ignore[arg-type]
    known: dict[str, Any] = {"low": None if None in lows else min(v for v in lows if v is not None)}
    if has_fact(node.args[2]) and takes_tail_only(node):
        known["keeps"] = node.args[2]
    return known


def takes_tail_only(node: fx.Node) -> bool:
    """Whether a `where` takes its last operand on tail rows."""
    condition = node.args[0]
    tails = [t for t in fact(condition).tails if t.kind != "live"] if has_fact(condition) else []  # type: ignore[arg-type]
    return bool(tails) and all(t.is_value(False) for t in tails)


def _arithmetic_facts(flow: Flow, node: fx.Node, name: str) -> dict[str, Any]:
    left, right = (live_expr(flow, a) for a in node.args)
    known: dict[str, Any] = {}
    if left is not None and right is not None and not val(node).shape:
        known["live"] = sympy.expand(_SYMBOLIC[name](left, right))
        known["low"] = flow.least(known["live"])
    low = fact(node.args[0]).low if has_fact(node.args[0]) else None  # type: ignore[arg-type]
    if low is None or name == "mul" or not isinstance(node.args[1], int):
        return known
    return {"low": low + (node.args[1] if name == "add" else -node.args[1]), **known}


def _write(flow: Flow, node: fx.Node, target: fx.Node, axes: Sequence[Axis], tails: Sequence[Tail]) -> None:
    """An in-place op: padded rows of owned state must keep what they hold."""
    place = fact(target)
    for mine, axis in zip(place.axes, axes):
        flow.agree(node, [mine, axis], mine)
    if not _keeps(node, target) and not flow.keep_rows(node, target):
        tails = flow.plain_tails(place.axes)
        axes = place.axes
    flow.mutate(node, target, list(zip(axes, tails)))
    value = fact(target)
    flow.set(node, Fact(value.axes, value.tails, value.storage, value.origin, value.source, inputs=value.inputs))


def _keeps(node: fx.Node, target: fx.Node) -> bool:
    """A copy whose padded rows were taken from the target itself writes them back unchanged."""
    if aten.base_name(node.target) != "copy" or not has_fact(node.args[1]):  # type: ignore[arg-type]
        return False
    kept = fact(node.args[1]).keeps  # type: ignore[arg-type]
    return kept is not None and (kept is target or _same_place(kept, target))


def _same_place(one: fx.Node, other: fx.Node) -> bool:
    """Whether two views are the same elements of one memory."""
    if fact(one).storage != fact(other).storage:
        return False
    a, b = val(one), val(other)
    mine, theirs = ((*v.shape, *v.stride(), v.storage_offset()) for v in (a, b))
    return len(mine) == len(theirs) and all(sympy.expand(as_expr(x) - as_expr(y)) == 0 for x, y in zip(mine, theirs))
