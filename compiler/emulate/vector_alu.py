"""Vector ALU instructions: the table's, and those with carries, masks, a tied accumulator or a form of their own."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from capwise.emulate import arithmetic as ar
from capwise.emulate.arrays import DTYPES, F16, F32, F64, I64, U8, U16, U32, U64, Array, kind_bits
from capwise.emulate.context import Context, Evaluate, Step, Write
from capwise.emulate.errors import Unsupported
from capwise.emulate.float_formats import from_bf16, to_bf16
from capwise.emulate.operands import Operand, lane_mask, vector_source
from capwise.emulate.parser import Inst
from capwise.emulate.vector_forms import destination, plain_destination, sources
from capwise.emulate.vector_table import VECTOR_OPS
from capwise.emulate.wave import Waves

_ACCUMULATE = re.compile(r"v_(fmac|mac)(?:_dx9_zero|_legacy)?_(f16|f32|f64)")
_WITH_LITERAL = re.compile(r"v_(?:fma|mad)(?:ak|mk)_(f16|f32)")
_SATURATING = re.compile(r"v_(add|sub|subrev)_(?:nc_)?([ui](?:16|32))")


# -- one result, ordinary write
def compute(inst: Inst, ctx: Context) -> tuple[Evaluate, Write]:
    """(evaluate, write) of an instruction with one ordinary result; dual issue evaluates both halves before writing."""
    operands = ctx.operands(inst)
    match = _ACCUMULATE.fullmatch(inst.mnemonic)
    if match:
        if "_dx9" in inst.mnemonic or "_legacy" in inst.mnemonic:
            raise Unsupported("a legacy multiply-accumulate")
        kind = match.group(2)
        tied = [operands[1], operands[2], operands[0].bare()]
        return _apply(ar.FMA[kind], inst, tied, [kind] * 3, ctx), destination(inst, operands[0], kind, ctx)
    match = _WITH_LITERAL.fullmatch(inst.mnemonic)
    if match:
        kind = match.group(1)
        return _apply(ar.FMA[kind], inst, operands[1:], [kind] * 3, ctx), destination(inst, operands[0], kind, ctx)
    if inst.mnemonic in ("v_cndmask_b32", "v_cndmask_b16"):
        return _conditional_mask(inst, operands, ctx)
    if _SATURATING.fullmatch(inst.mnemonic) and "clamp" in inst.modifiers:
        return _saturating(inst, operands, ctx)
    return _from_table(inst, operands, ctx)


def _apply(
    function: Callable[..., Array], inst: Inst, operands: list[Operand], kinds: list[str], ctx: Context
) -> Evaluate:
    if len(operands) != len(kinds):
        raise Unsupported(f"{len(operands)} sources where {len(kinds)} were expected")
    reads = sources(inst, operands, kinds, ctx)
    if len(reads) == 1:
        (first,) = reads
        return lambda w: function(first(w))
    if len(reads) == 2:
        first, second = reads
        return lambda w: function(first(w), second(w))
    first, second, third = reads
    return lambda w: function(first(w), second(w), third(w))


def _from_table(inst: Inst, operands: list[Operand], ctx: Context) -> tuple[Evaluate, Write]:
    row = VECTOR_OPS.get(inst.mnemonic.removeprefix("v_"))
    if row is None:
        raise Unsupported("unknown instruction")
    result, kinds = row.result, list(row.sources)
    if inst.mnemonic == "v_mov_b32" and (operands[1].negate or operands[1].absolute):
        result, kinds = "f32", ["f32"]  # a sign modifier makes the move a floating-point one
    evaluate = _apply(row.function, inst, operands[1:], kinds, ctx)
    return evaluate, destination(inst, operands[0], result, ctx)


def _conditional_mask(inst: Inst, operands: list[Operand], ctx: Context) -> tuple[Evaluate, Write]:
    kind = "u32" if inst.mnemonic.endswith("32") else "u16"
    if any(op.negate or op.absolute for op in operands[1:3]):
        kind = "f" + kind[1:]
    unset, set_ = sources(inst, operands[1:3], [kind] * 2, ctx)
    mask = lane_mask(operands[3] if len(operands) > 3 else ctx.vcc(), ctx.lanes)
    return (lambda w: np.where(mask(w), set_(w), unset(w))), destination(inst, operands[0], kind, ctx)


def _saturating(inst: Inst, operands: list[Operand], ctx: Context) -> tuple[Evaluate, Write]:
    match = _SATURATING.fullmatch(inst.mnemonic)
    assert match is not None
    operation, kind = match.groups()
    dtype, limits = DTYPES[kind], np.iinfo(DTYPES[kind])
    inst.flag("clamp")

    def function(a: Array, b: Array) -> Array:
        a, b = a.astype(I64), b.astype(I64)
        exact = a + b if operation == "add" else a - b if operation == "sub" else b - a
        return np.asarray(np.clip(exact, limits.min, limits.max), dtype)

    evaluate = _apply(function, inst, operands[1:], [kind] * 2, ctx)
    return evaluate, plain_destination(inst, operands[0], kind, ctx)


def build_computed(inst: Inst, ctx: Context) -> Step:
    evaluate, write = compute(inst, ctx)
    return lambda w: write(w, w.broadcast(evaluate(w)))


def build_dual(inst: Inst, ctx: Context) -> Step:
    """Dual issue: both halves read their sources before either writes."""
    assert inst.pair is not None
    (first, write_first), (second, write_second) = (compute(half, ctx) for half in inst.pair)

    def step(w: Waves) -> None:
        # A move's value is a view of its source, which the other half may be about to write.
        a, b = w.broadcast(first(w)).copy(), w.broadcast(second(w)).copy()
        write_first(w, a)
        write_second(w, b)

    return step


# -- comparisons
def build_compare(inst: Inst, ctx: Context) -> Step:
    """v_cmp writes a lane mask; v_cmpx writes EXEC (and on gfx9 the mask too)."""
    match = re.fullmatch(r"v_cmp(x?)_(\w+?)_([iufb]\d+)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown comparison")
    to_exec, relation, kind = match.groups()
    operands = ctx.operands(inst)
    target = operands[0] if len(operands) == 3 else None
    if relation == "class":
        first, second = sources(inst, operands[-2:], [kind, "u32"], ctx)
        function: Callable[[Array, Array], Array] = ar.classify
    elif relation in ar.COMPARISONS:
        first, second = sources(inst, operands[-2:], [kind, kind], ctx)
        function = ar.COMPARISONS[relation]
    else:
        raise Unsupported("unknown comparison")
    rows = [op.index for op in (target, ctx.exec() if to_exec else None) if op is not None]

    def step(w: Waves) -> None:
        bits = function(first(w), second(w)) & w.exec
        for row in rows:
            w.set_mask(row, bits)

    return step


# -- carries and wide products
def build_carry(inst: Inst, ctx: Context) -> Step:
    """Addition or subtraction with a carry out, and a carry in if there is a fifth operand."""
    result, carry_out, *inputs = ctx.operands(inst)
    first, second = sources(inst, inputs[:2], ["u32", "u32"], ctx)
    carry_in = lane_mask(inputs[2], ctx.lanes) if len(inputs) > 2 else None
    reverse, subtract = "rev" in inst.mnemonic, "sub" in inst.mnemonic
    write = destination(inst, result, "u32", ctx)

    def step(w: Waves) -> None:
        a, b = first(w).astype(I64), second(w).astype(I64)
        a, b = (b, a) if reverse else (a, b)
        carry = carry_in(w).astype(I64) if carry_in else I64(0)
        exact = w.broadcast(a - b - carry if subtract else a + b + carry)
        write(w, (exact & 0xFFFFFFFF).astype(U32))
        w.set_mask(carry_out.index, ((exact < 0) | (exact > 0xFFFFFFFF)) & w.exec)

    return step


def build_mad_64(inst: Inst, ctx: Context) -> Step:
    """32 x 32 + 64 bits; all forms but ``nc`` also write the carry mask."""
    operands = ctx.operands(inst)
    narrow, wide = ("i32", I64) if "i64" in inst.mnemonic else ("u32", U64)
    carry_out = None if "_nc_" in inst.mnemonic else operands[1]
    first, second, addend = sources(inst, operands[-3:], [narrow, narrow, "u64"], ctx)
    register = operands[0].index

    def step(w: Waves) -> None:
        product = (first(w).astype(wide) * second(w).astype(wide)).view(U64)
        extra = addend(w)
        total = product + extra
        if carry_out is not None:
            w.set_v64(register, w.broadcast(total))
            w.set_mask(carry_out.index, _carry_of(product, extra, total, narrow) & w.exec)
        else:
            w.set_v64(register, w.broadcast(total))

    return step


def _carry_of(product: Array, extra: Array, total: Array, narrow: str) -> Array:
    """Bit 64 of the sum; for signed operands the sum is of sign-extended 65-bit numbers."""
    unsigned = np.asarray(total < extra)
    if narrow == "u32":
        return unsigned
    signs = (product >> U64(63)).astype(bool) ^ (extra >> U64(63)).astype(bool)
    return np.asarray(unsigned ^ signs)


# -- division
def build_div_scale(inst: Inst, ctx: Context) -> Step:
    result, undo_mask, *inputs = ctx.operands(inst)
    value, denominator, numerator = sources(inst, inputs, ["f32"] * 3, ctx)

    def step(w: Waves) -> None:
        scaled, undo = ar.div_scale(value(w), denominator(w), numerator(w))
        w.set_v(result.index, w.broadcast(scaled))
        w.set_mask(undo_mask.index, undo & w.exec)

    return step


def build_div_fmas(inst: Inst, ctx: Context) -> Step:
    result, *inputs = ctx.operands(inst)
    a, b, c = sources(inst, inputs, ["f32"] * 3, ctx)
    undo = lane_mask(ctx.vcc(), ctx.lanes)
    return lambda w: w.set_v(result.index, w.broadcast(ar.div_fmas(a(w), b(w), c(w), undo(w))))


# -- others
def build_swap(inst: Inst, ctx: Context) -> Step:
    first, second = (op.index for op in ctx.operands(inst))

    def step(w: Waves) -> None:
        a, b = w.v(first).copy(), w.v(second).copy()
        w.set_v(first, b)
        w.set_v(second, a)

    return step


def build_accumulator_move(inst: Inst, ctx: Context) -> Step:
    """v_accvgpr_read, _write and _mov: a copy between the vector and the accumulator file."""
    target, source = ctx.operands(inst)
    (read,) = ctx.sources([source], "u32")
    return lambda w: w.set_v(target.index, w.broadcast(read(w)), accumulator=target.is_agpr)


def build_scalar_result(inst: Inst, ctx: Context) -> Step:
    """v_s_rcp_f32 and its kin: a vector function of one scalar."""
    row = VECTOR_OPS.get(inst.mnemonic.removeprefix("v_s_"))
    if row is None or len(row.sources) != 1:
        raise Unsupported("unknown instruction")
    target, source = ctx.operands(inst)
    function, (read,) = row.function, sources(inst, [source], list(row.sources), ctx)
    write = destination(inst, target, row.result, ctx)
    return lambda w: write(w, w.broadcast(function(read(w))))


def build_bitop3(inst: Inst, ctx: Context) -> Step:
    operands = ctx.operands(inst)
    kind = f"u{inst.mnemonic[-2:]}"
    reads = sources(inst, operands[1:], [kind] * 3, ctx)
    write, table = destination(inst, operands[0], kind, ctx), inst.integer("bitop3")
    return lambda w: write(w, w.broadcast(ar.bit_operation(table, [read(w) for read in reads])))


def build_fma_mix(inst: Inst, ctx: Context) -> Step:
    """fma in float32 of operands that op_sel_hi makes float16; mixlo and mixhi round the result to half a register."""
    operands = ctx.operands(inst)
    is_half, high = inst.integers("op_sel_hi", [0, 0, 0]), inst.integers("op_sel", [0, 0, 0])
    reads = [
        vector_source(op, "f16" if is_half[i] else "f32", high=bool(is_half[i] and high[i]))
        for i, op in enumerate(operands[1:])
    ]
    register, half = operands[0].index, inst.mnemonic.partition("mix")[2][:2]

    def step(w: Waves) -> None:
        total = w.broadcast(ar.fma_f32(*(read(w).astype(F32) for read in reads)))
        if half not in ("lo", "hi"):
            w.set_v(register, total)
            return
        bits, old = total.astype(F16).view(U16).astype(U32), w.v(register)
        low = half == "lo"
        w.set_v(register, (old & U32(0xFFFF0000)) | bits if low else (old & U32(0xFFFF)) | (bits << U32(16)))

    return step


# -- dot products inside a register
def _lanes_of(words: Array, element: str, signed: bool) -> list[Array]:
    """The packed elements of uint32 words as float64 (``f16``, ``bf16``) or int64 (``8`` bits)."""
    if element == "8":
        octets = [(words >> U32(8 * i)).astype(U8) for i in range(4)]
        return [o.view(np.int8).astype(I64) if signed else o.astype(I64) for o in octets]
    halves = [(words >> U32(16 * i)).astype(U16) for i in range(2)]
    return [(from_bf16(h) if element == "bf16" else h.view(F16)).astype(F64) for h in halves]


def build_dot(inst: Inst, ctx: Context) -> Step:
    """v_dot2 of halves and v_dot4 of bytes: the exact sum of products plus the addend, rounded once."""
    match = re.fullmatch(r"v_dot(?:2c?|2acc|4c?)_(f32|i32|u32|f16|bf16)_(f16|bf16|i8|u8|iu8)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown dot product")
    result, element = match.groups()
    operands = ctx.operands(inst)
    addend = operands[3] if len(operands) > 3 else operands[0].bare()
    negate = inst.integers("neg_lo", [0, 0, 0])
    signed = [bool(n) for n in negate] if element == "iu8" else [element == "i8"] * 2
    if element != "iu8" and any(negate):
        raise Unsupported("a sign modifier on a packed dot product")
    first, second, third = ctx.sources([operands[1], operands[2], addend], "u32", "u32", result)
    element = "8" if element.endswith("8") else element
    write = destination(inst, operands[0], result, ctx)

    def step(w: Waves) -> None:
        a, b = _lanes_of(first(w), element, signed[0]), _lanes_of(second(w), element, signed[1])
        products = [x * y for x, y in zip(a, b, strict=True)]
        c = from_bf16(third(w)) if result == "bf16" else third(w)
        total = w.broadcast(np.sum(np.broadcast_arrays(*products, c.astype(products[0].dtype)), axis=0))
        write(w, _round_dot(total, result))

    return step


def _round_dot(total: Array, result: str) -> Array:
    if result == "bf16":
        return to_bf16(total.astype(F32))
    if result in ("i32", "u32"):
        return (total & ((1 << kind_bits(result)) - 1)).astype(U32)
    return total.astype(DTYPES[result])
