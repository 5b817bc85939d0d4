"""Scalar ALU instructions: the table's, and those that work on EXEC, SCC or a 16-bit immediate."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from capwise.emulate import arithmetic as ar
from capwise.emulate.arrays import DTYPES, I32, I64, PAIR_KINDS, U32, U64, Array, raw_bits
from capwise.emulate.context import Context, Step, Write
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Operand, scalar_source
from capwise.emulate.parser import Inst
from capwise.emulate.vector_table import VECTOR_OPS
from capwise.emulate.wave import EXEC, Waves

SccRule = Callable[..., Array]


class ScalarRow(NamedTuple):
    """Result kind, source kinds, function, and SCC as a function of (result, sources...); None keeps SCC."""

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Array]
    scc: SccRule | None


def _nonzero(result: Array, *sources: Array) -> Array:
    flag: Array = result != 0
    return flag


def _row(result: str, sources: str, function: Callable[..., Array], scc: SccRule | None = None) -> ScalarRow:
    return ScalarRow(result, tuple(sources.split()), function, scc)


def _logic_rows(bits: int) -> dict[str, ScalarRow]:
    kind = f"u{bits}"
    two = f"{kind} {kind}"
    rows = {f"{name}_b{bits}": _row(kind, two, function, _nonzero) for name, function in LOGIC.items()}
    rows[f"not_b{bits}"] = _row(kind, kind, np.invert, _nonzero)
    rows[f"mov_b{bits}"] = _row(kind, kind, lambda a: a)
    rows[f"bcnt1_i32_b{bits}"] = _row("u32", kind, ar.count_ones, _nonzero)
    rows[f"lshl_b{bits}"] = _row(kind, f"{kind} u32", ar.shift_left, _nonzero)
    rows[f"lshr_b{bits}"] = _row(kind, f"{kind} u32", ar.shift_right, _nonzero)
    rows[f"ashr_i{bits}"] = _row(f"i{bits}", f"i{bits} u32", ar.shift_right, _nonzero)
    rows[f"bfe_u{bits}"] = _row(kind, f"{kind} u32", ar.scalar_bit_field, _nonzero)
    rows[f"bfe_i{bits}"] = _row(f"i{bits}", f"i{bits} u32", ar.scalar_bit_field, _nonzero)
    for name in (f"ff1_i32_b{bits}", f"ctz_i32_b{bits}"):
        rows[name] = _row("i32", kind, ar.count_trailing_zeros)
    for name in (f"flbit_i32_b{bits}", f"clz_i32_u{bits}"):
        rows[name] = _row("i32", kind, ar.count_leading_zeros)
    return rows


LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b, "and_not1": lambda a, b: a & ~b, "and_not0": lambda a, b: ~a & b,
    "orn2": lambda a, b: a | ~b, "or_not1": lambda a, b: a | ~b, "or_not0": lambda a, b: ~a | b,
    "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip


def _min_max_rows(kind: str) -> dict[str, ScalarRow]:
    two = f"{kind} {kind}"
    return {
        f"min_{kind}": _row(kind, two, np.minimum, lambda r, a, b: a < b),
        f"max_{kind}": _row(kind, two, np.maximum, lambda r, a, b: a > b),
    }


def _pack(low_shift: int, high_shift: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: ((a >> U32(low_shift)) & U32(0xFFFF)) | ((b >> U32(high_shift)) << U32(16))


def _shift_add_row(bits: int) -> ScalarRow:
    def carry(result: Array, a: Array, b: Array) -> Array:
        return (a.astype(U64) << U64(bits)) + b.astype(U64) > U64(0xFFFFFFFF)

    return _row("u32", "u32 u32", lambda a, b: (a << U32(bits)) + b, carry)


def _sum_row(kind: str, subtract: bool) -> ScalarRow:
    """Addition or subtraction; SCC is the carry (borrow) of unsigned kinds and the overflow of signed ones."""
    sign = -1 if subtract else 1
    limits = np.iinfo(DTYPES[kind])

    def exact(a: Array, b: Array) -> Array:
        return a.astype(I64) + sign * b.astype(I64)

    def out_of_range(result: Array, a: Array, b: Array) -> Array:
        total = exact(a, b)
        return (total < limits.min) | (total > limits.max)

    return _row("u32", f"{kind} {kind}", lambda a, b: exact(a, b).astype(U32), out_of_range)


def _sum_rows() -> dict[str, ScalarRow]:
    rows = {}
    for operation in ("add", "sub"):
        for kind, names in (("u32", ("u32", "co_u32")), ("i32", ("i32", "co_i32"))):
            for name in names:
                rows[f"{operation}_{name}"] = _sum_row(kind, operation == "sub")
    return rows


SCALAR_OPS: dict[str, ScalarRow] = {
    **_logic_rows(32),
    **_logic_rows(64),
    **_min_max_rows("i32"),
    **_min_max_rows("u32"),
    **_sum_rows(),
    **{f"lshl{bits}_add_u32": _shift_add_row(bits) for bits in range(1, 5)},
    "brev_b32": _row("u32", "u32", ar.reverse_bits),
    "flbit_i32": _row("i32", "i32", ar.count_leading_signs),
    "cls_i32": _row("i32", "i32", ar.count_leading_signs),
    "abs_i32": _row("i32", "i32", np.abs, _nonzero),
    "absdiff_i32": _row("i32", "i32 i32", lambda a, b: np.abs(a - b), _nonzero),
    "sext_i32_i8": _row("i32", "i32", lambda a: (a << I32(24)) >> I32(24)),
    "sext_i32_i16": _row("i32", "i32", lambda a: (a << I32(16)) >> I32(16)),
    "mul_i32": _row("u32", "u32 u32", np.multiply),
    "mul_hi_u32": _row("u32", "u32 u32", ar.multiply_high),
    "mul_hi_i32": _row("i32", "i32 i32", ar.multiply_high),
    "mul_u64": _row("u64", "u64 u64", np.multiply),
    "add_nc_u64": _row("u64", "u64 u64", np.add),
    "sub_nc_u64": _row("u64", "u64 u64", np.subtract),
    "add_u64": _row("u64", "u64 u64", np.add),
    "sub_u64": _row("u64", "u64 u64", np.subtract),
    "bfm_b32": _row("u32", "u32 u32", ar.bit_mask),
    "pack_ll_b32_b16": _row("u32", "u32 u32", _pack(0, 0)),
    "pack_lh_b32_b16": _row("u32", "u32 u32", _pack(0, 16)),
    "pack_hh_b32_b16": _row("u32", "u32 u32", _pack(16, 16)),
    "pack_hl_b32_b16": _row("u32", "u32 u32", _pack(16, 0)),
}


def _writer(target: Operand, kind: str) -> Write:
    register = target.index
    if kind in PAIR_KINDS:
        return lambda w, values: w.set_s64(register, values)
    return lambda w, values: w.set_s(register, raw_bits(values))


def build_scalar(inst: Inst, ctx: Context) -> Step:
    """An instruction of the table, or a floating-point one that the vector table describes."""
    name = inst.mnemonic.removeprefix("s_")
    row = SCALAR_OPS.get(name)
    if row is None:
        shared = VECTOR_OPS.get(name)
        if shared is None or not re.search(r"_(f16|f32)$|^cvt_", name):
            raise Unsupported("unknown instruction")
        row = ScalarRow(*shared, None)
    target, *operands = ctx.operands(inst)
    if len(operands) != len(row.sources):
        raise Unsupported(f"{len(operands)} sources where {len(row.sources)} were expected")
    reads = [scalar_source(op, kind) for op, kind in zip(operands, row.sources, strict=True)]
    write, function, scc = _writer(target, row.result), row.function, row.scc

    def step(w: Waves) -> None:
        values = [read(w) for read in reads]
        result = w.per_wave(function(*values)).copy()
        # Before the write: a source may be a view of the register that is written.
        flag = None if scc is None else w.per_wave(scc(result, *values)).copy()
        write(w, result)
        if flag is not None:
            w.set_scc(flag)

    return step


def build_carry(inst: Inst, ctx: Context) -> Step:
    """s_addc and s_subb: SCC is the carry in and the carry out."""
    target, *operands = ctx.operands(inst)
    first, second = (scalar_source(op, "u32") for op in operands)
    subtract = "sub" in inst.mnemonic

    def step(w: Waves) -> None:
        a, b, carry = first(w).astype(I64), second(w).astype(I64), w.scc().astype(I64)
        exact = w.per_wave(a - b - carry if subtract else a + b + carry)
        w.set_s(target.index, (exact & 0xFFFFFFFF).astype(U32))
        w.set_scc((exact < 0) | (exact > 0xFFFFFFFF))

    return step


def build_exec_logic(inst: Inst, ctx: Context) -> Step:
    """s_<op>_saveexec keeps the old EXEC in the target, s_<op>_wrexec the new one; SCC says whether a lane is left."""
    match = re.fullmatch(r"s_(\w+)_(saveexec|wrexec)_b(32|64)", inst.mnemonic)
    if match is None or match.group(1) not in LOGIC:
        raise Unsupported("unknown instruction")
    function, saves, kind = LOGIC[match.group(1)], match.group(2) == "saveexec", f"u{match.group(3)}"
    target, source = ctx.operands(inst)
    read, read_exec = scalar_source(source, kind), scalar_source(Operand("sgpr", EXEC), kind)
    write, write_exec = _writer(target, kind), _writer(Operand("sgpr", EXEC), kind)

    def step(w: Waves) -> None:
        old = read_exec(w).copy()
        new = w.per_wave(function(read(w), old)).copy()
        write(w, old if saves else new)
        write_exec(w, new)
        w.set_scc(new != 0)

    return step


def _immediate(inst: Inst, ctx: Context) -> int:
    """The signed 16-bit immediate of an s_*k_* instruction."""
    value = int(ctx.operand(inst.operands[1]).value) & 0xFFFF
    return value - 0x10000 if value & 0x8000 else value


def build_compare(inst: Inst, ctx: Context) -> Step:
    """s_cmp and s_cmpk: SCC is the outcome."""
    match = re.fullmatch(r"s_cmp(k?)_(\w+)_([iuf]\d+)", inst.mnemonic)
    if match is None or match.group(2) not in ar.COMPARISONS:
        raise Unsupported("unknown comparison")
    function, kind = ar.COMPARISONS[match.group(2)], match.group(3)
    first, second = (scalar_source(op, kind) for op in ctx.operands(inst))
    return lambda w: w.set_scc(w.per_wave(function(first(w), second(w))))


def build_bit_compare(inst: Inst, ctx: Context) -> Step:
    """s_bitcmp0 and s_bitcmp1: SCC says whether the bit has that value."""
    match = re.fullmatch(r"s_bitcmp([01])_b(32|64)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown instruction")
    wanted, kind = int(match.group(1)), f"u{match.group(2)}"
    value, position = ctx.operands(inst)
    read, bit = scalar_source(value, kind), scalar_source(position, "u32")
    one = DTYPES[kind](1)
    return lambda w: w.set_scc(w.per_wave((ar.shift_right(read(w), bit(w)) & one) == wanted))


def build_bit_set(inst: Inst, ctx: Context) -> Step:
    """s_bitset0 and s_bitset1: clear or set one bit of the target."""
    target, position = ctx.operands(inst)
    old, bit, sets = scalar_source(target, "u32"), scalar_source(position, "u32"), "bitset1" in inst.mnemonic

    def step(w: Waves) -> None:
        mask = U32(1) << (bit(w) & U32(31))
        w.set_s(target.index, old(w) | mask if sets else old(w) & ~mask)

    return step


def build_select(inst: Inst, ctx: Context) -> Step:
    """s_cselect picks a source by SCC; s_cmov and s_cmovk keep the target where SCC is 0."""
    kind = "u64" if inst.mnemonic.endswith("64") else "u32"
    target, *operands = ctx.operands(inst)
    if inst.mnemonic.startswith("s_cmovk"):
        operands = [Operand("const", value=_immediate(inst, ctx))]
    taken = scalar_source(operands[0], kind)
    other = scalar_source(operands[1] if len(operands) > 1 else target, kind)
    write = _writer(target, kind)
    return lambda w: write(w, np.where(w.scc(), taken(w), other(w)))


def build_immediate(inst: Inst, ctx: Context) -> Step:
    """s_movk, s_mulk, s_addk; only the addition touches SCC (signed overflow)."""
    target = ctx.operand(inst.operands[0])
    value, read = _immediate(inst, ctx), scalar_source(target, "i32")
    if inst.mnemonic == "s_movk_i32":
        constant = np.array([value], I32)
        return lambda w: w.set_s(target.index, constant)
    if inst.mnemonic == "s_mulk_i32":
        return lambda w: w.set_s(target.index, read(w) * I32(value))
    if inst.mnemonic not in ("s_addk_i32", "s_addk_co_i32"):
        raise Unsupported("unknown instruction")

    def step(w: Waves) -> None:
        exact = read(w).astype(I64) + value
        w.set_s(target.index, exact.astype(I32))
        w.set_scc((exact > 2**31 - 1) | (exact < -(2**31)))

    return step


def build_fma(inst: Inst, ctx: Context) -> Step:
    """s_fmac adds to the target; s_fmaak and s_fmamk carry a literal."""
    target, *operands = ctx.operands(inst)
    kind = inst.mnemonic[-3:]
    if inst.mnemonic.startswith("s_fmac"):
        operands = [*operands, target]
    a, b, c = (scalar_source(op, kind) for op in operands)
    write, function = _writer(target, kind), ar.FMA[kind]
    return lambda w: write(w, w.per_wave(function(a(w), b(w), c(w))))
