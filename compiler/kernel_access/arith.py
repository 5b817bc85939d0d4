"""Meaning of the operations that compute values: integer arithmetic, comparisons, casts, tensor shapes.

Each function takes the space, the operation, its operand values and its result type, and gives the result, or None
where the result is not followed (the machine then makes an opaque value of that type).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from capwise.kernel_access.parse import Op, Type
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly, interval
from capwise.kernel_access.values import Bool, Case, Int, Ptr, Unknown, Value, choose, lanes, reindex

Meaning = Callable[[Space, Op, Sequence[Value], Type], "Value | None"]


def bits_of(kind: Type) -> int:
    """Machine width of an integer type; index counts as 64."""
    match = re.fullmatch(r"i(\d+)", kind.elem)
    return int(match.group(1)) if match else 64


def is_int(kind: Type) -> bool:
    """An integer wider than a truth value."""
    return kind.elem == "index" or (bool(re.fullmatch(r"i\d+", kind.elem)) and kind.elem != "i1")


def constant(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """arith.constant; dense only where it is a splat."""
    text = op.text.removeprefix("dense<").removesuffix(">").strip()
    if kind.elem == "i1" and text in ("true", "false"):
        return Bool(space.true if text == "true" else space.false, kind.shape)
    if is_int(kind) and re.fullmatch(r"-?\d+", text):
        return Int(Poly.of(int(text)), kind.shape, bits_of(kind))
    return None


def widened(value: Int) -> frozenset[Poly]:
    """What must fit 32 bits once the value is used at full width."""
    if value.bits > 32 or value.poly.const is not None or value.poly.node is not None:
        return value.narrow
    return value.narrow | {value.poly}


def _ring(compute: Callable[[Poly, Poly], Poly]) -> Meaning:
    """Addition and multiplication: wrapping agrees with mathematics as long as the last result fits."""

    def meaning(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
        a, b = args
        if isinstance(a, Int) and isinstance(b, Int):
            return Int(compute(a.poly, b.poly), kind.shape, bits_of(kind), a.narrow | b.narrow)
        return None

    return meaning


def _exact(compute: Callable[[Space, Poly, Poly], Poly | None]) -> Meaning:
    """Operations whose operands must not have wrapped."""

    def meaning(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
        a, b = args
        if not (isinstance(a, Int) and isinstance(b, Int)):
            return None
        result = compute(space, a.poly, b.poly)
        return None if result is None else Int(result, kind.shape, bits_of(kind), widened(a) | widened(b))

    return meaning


def _natural(poly: Poly) -> bool:
    low, _ = interval(poly)
    return low is not None and low >= 0


def _unsigned(compute: Callable[[Space, Poly, Poly], Poly]) -> Meaning:
    """Unsigned forms equal the signed ones on values known to be natural; else not followed."""
    return _exact(lambda space, a, b: compute(space, a, b) if _natural(a) and _natural(b) else None)


def _ceil(space: Space, a: Poly, b: Poly) -> Poly | None:
    divisor = b.const
    return -space.floor(-a, divisor) if divisor and divisor > 0 else None


def _floor(space: Space, a: Poly, b: Poly) -> Poly | None:
    divisor = b.const
    return space.floor(a, divisor) if divisor and divisor > 0 else None


def _shift_left(space: Space, a: Poly, b: Poly) -> Poly | None:
    by = b.const
    return a * (1 << by) if by is not None and 0 <= by < 63 else None


def _shift_right(space: Space, a: Poly, b: Poly) -> Poly | None:
    by = b.const
    return space.floor(a, 1 << by) if by is not None and 0 <= by < 63 else None


def _bit_and(space: Space, a: Poly, b: Poly) -> Poly | None:
    """With a mask 2**k - 1: the remainder, in two's complement for negative values too."""
    for value, mask in ((a, b.const), (b, a.const)):
        if mask is not None and mask >= 0 and (mask + 1) & mask == 0:
            return space.mod(value, mask + 1)
    return None


def _bit_or(space: Space, a: Poly, b: Poly) -> Poly | None:
    """Of a multiple of 2**k and something below 2**k: the sum."""
    for value, other in ((a, b), (b, a)):
        low, high = interval(other)
        if low is None or low < 0 or high is None:
            continue
        step = 1 << high.bit_length()
        if all(c % step == 0 for c in value.terms.values()):
            return value + other
    return None


def logic(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """andi, ori, xori: on truth values, else on bits."""
    a, b = args
    if isinstance(a, Bool) and isinstance(b, Bool):
        if op.name == "arith.andi":
            return Bool(space.both([a.node, b.node]), kind.shape)
        if op.name == "arith.ori":
            return Bool(space.either([a.node, b.node]), kind.shape)
        return Bool(space.pick(a.node, space.negate(b.node), b.node), kind.shape)
    if op.name == "arith.xori":
        return None
    return _exact(_bit_and if op.name == "arith.andi" else _bit_or)(space, op, args, kind)


def compare(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """arith.cmpi on integers and truth values."""
    predicate = op.text.split(",")[0].strip()
    a, b = args
    if isinstance(a, Bool) and isinstance(b, Bool):
        if predicate not in ("eq", "ne"):
            return None
        same = space.pick(a.node, b.node, space.negate(b.node))
        return Bool(same if predicate == "eq" else space.negate(same), kind.shape)
    if not (isinstance(a, Int) and isinstance(b, Int)):
        return None
    if predicate[0] == "u" and not (_natural(a.poly) and _natural(b.poly)):
        return None
    return Bool(_order(space, predicate.lstrip("su"), a.poly, b.poly), kind.shape)


def _order(space: Space, predicate: str, a: Poly, b: Poly) -> Node:
    if predicate in ("eq", "ne"):
        same = space.eq(a - b)
        return same if predicate == "eq" else space.negate(same)
    gap = {"lt": b - a - 1, "le": b - a, "gt": a - b - 1, "ge": a - b}[predicate]
    return space.ge(gap)


def select(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """arith.select."""
    condition, a, b = args
    return choose(space, condition.node, a, b) if isinstance(condition, Bool) else None


def cast(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """extsi, extui, trunci, index_cast: the same integer, if it fits; a truth value becomes 0 or 1 (sign: -1)."""
    (value,) = args
    if isinstance(value, Bool) and is_int(kind):
        one = Poly.of(-1 if op.name == "arith.extsi" else 1)
        return Int(space.choose(value.node, one, Poly.of(0)), kind.shape, bits_of(kind))
    if not isinstance(value, Int):
        return None
    if op.name == "arith.trunci":
        return _truncate(space, value, kind)
    return Int(value.poly, kind.shape, bits_of(kind), widened(value))


def bitcast(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """arith.bitcast between integers of one width."""
    (value,) = args
    return value if isinstance(value, Int) and is_int(kind) and bits_of(kind) == value.bits else None


def _truncate(space: Space, value: Int, kind: Type) -> Value | None:
    bits = bits_of(kind)
    low, high = interval(value.poly)
    if kind.elem == "i1":
        return Bool(space.negate(space.eq(space.mod(value.poly, 2))), kind.shape)
    fits = low is not None and high is not None and -(1 << bits - 1) <= low and high < 1 << bits - 1
    if bits < 32 and not fits:
        return None
    return Int(value.poly, kind.shape, bits, value.narrow if fits else value.narrow | {value.poly})


def address(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.addptr."""
    pointer, offset = args
    if not isinstance(pointer, Ptr):
        return None
    if not isinstance(offset, Int):
        return Ptr((Case(space.true, None, Poly.of(0)),), kind.shape, pointer.pointee)
    narrow = widened(offset) if offset.poly.node is None or offset.bits > 32 else offset.narrow | {offset.poly}
    cases = tuple(replace(c, offset=c.offset + offset.poly, narrow=c.narrow | narrow) for c in pointer.cases)
    return Ptr(cases, kind.shape, pointer.pointee)


# tensors ----------------------------------------------------------------------------------------------------------


def number(text: str, key: str) -> int:
    """`key = 16 : i32` in an attribute list."""
    match = re.search(rf"\b{key} = (-?\d+)", text)
    return int(match.group(1)) if match else 0


def make_range(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.make_range."""
    start = number(op.text, "start")
    return Int(space.lane(0, kind.shape[0]) + start, kind.shape)


def spread(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.splat and tt.broadcast: no new lanes in the expression."""
    value = args[0]
    return None if isinstance(value, Unknown) else replace(value, shape=kind.shape)


def expand_dims(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.expand_dims."""
    axis = number(op.text, "axis")
    out = lanes(space, kind.shape)
    return reindex(space, args[0], kind.shape, out[:axis] + out[axis + 1 :])


def transpose(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.trans: dimension i of the result is dimension order[i] of the operand."""
    match = re.search(r"order = array<i32: ([\d, ]+)>", op.text)
    if match is None:
        return None
    order = [int(x) for x in match.group(1).split(",")]
    out = lanes(space, kind.shape)
    return reindex(space, args[0], kind.shape, [out[order.index(dim)] for dim in range(len(order))])


def reshape(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.reshape in row-major order; one that may reorder is not followed."""
    if "allow_reorder" in op.text:
        return None
    flat = Poly.of(0)
    for lane, size in zip(lanes(space, kind.shape), kind.shape, strict=True):
        flat = flat * size + lane
    index: list[Poly] = []
    for size in reversed(args[0].shape):
        index.append(space.rem(flat, Poly.of(size)))
        flat = space.div(flat, Poly.of(size))
    return reindex(space, args[0], kind.shape, index[::-1])


def join(space: Space, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.join: a new last dimension of extent 2."""
    last = space.eq(lanes(space, kind.shape)[-1])
    a, b = (replace(v, shape=kind.shape) for v in args)
    return choose(space, last, a, b)


MEANINGS: dict[str, Meaning] = {
    "arith.constant": constant,
    "arith.addi": _ring(lambda a, b: a + b),
    "arith.subi": _ring(lambda a, b: a - b),
    "arith.muli": _ring(lambda a, b: a * b),
    "arith.divsi": _exact(Space.div),
    "arith.remsi": _exact(Space.rem),
    "arith.divui": _unsigned(Space.div),
    "arith.remui": _unsigned(Space.rem),
    "arith.floordivsi": _exact(_floor),
    "arith.ceildivsi": _exact(_ceil),
    "arith.minsi": _exact(Space.minimum),
    "arith.maxsi": _exact(Space.maximum),
    "arith.minui": _unsigned(Space.minimum),
    "arith.maxui": _unsigned(Space.maximum),
    "arith.shli": _exact(_shift_left),
    "arith.shrsi": _exact(_shift_right),
    "arith.shrui": _exact(lambda space, a, b: _shift_right(space, a, b) if _natural(a) else None),
    "arith.andi": logic,
    "arith.ori": logic,
    "arith.xori": logic,
    "arith.cmpi": compare,
    "arith.select": select,
    "arith.extsi": cast,
    "arith.extui": cast,
    "arith.trunci": cast,
    "arith.index_cast": cast,
    "arith.bitcast": bitcast,
    "tt.addptr": address,
    "tt.make_range": make_range,
    "tt.splat": spread,
    "tt.broadcast": spread,
    "tt.expand_dims": expand_dims,
    "tt.trans": transpose,
    "tt.reshape": reshape,
    "tt.join": join,
}
