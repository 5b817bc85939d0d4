"""Packed instructions (VOP3P): the same operation on both halves of a register, or on both registers of a pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from capwise.emulate import arithmetic as ar
from capwise.emulate.arrays import DTYPES, F32, U16, U32, Array, pack_halves
from capwise.emulate.context import Context, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.float_formats import from_bf16, to_bf16
from capwise.emulate.operands import Operand, Read, constant_bits, modify, vector_source
from capwise.emulate.parser import Inst
from capwise.emulate.vector_table import VECTOR_OPS
from capwise.emulate.wave import Waves


@dataclass(frozen=True)
class _Halves:
    """Per source operand: which half feeds the low and the high result, and whether it is negated there."""

    low: list[int]
    high: list[int]
    negate_low: list[int]
    negate_high: list[int]

    @staticmethod
    def of(inst: Inst, count: int) -> _Halves:
        zeros, ones = [0] * count, [1] * count
        return _Halves(
            inst.integers("op_sel", zeros),
            inst.integers("op_sel_hi", ones),
            inst.integers("neg_lo", zeros),
            inst.integers("neg_hi", zeros),
        )


def build_packed(inst: Inst, ctx: Context) -> Step:
    """v_pk_*: two 16-bit or two 32-bit results."""
    target, *operands = ctx.operands(inst)
    halves = _Halves.of(inst, len(operands))
    name = inst.mnemonic.removeprefix("v_pk_")
    if name == "mov_b32":
        return _packed_move(target, operands, halves)
    if name in ("add_f32", "mul_f32", "fma_f32"):
        return _packed_pair(target, operands, halves, VECTOR_OPS[name].function)
    if name == "fmac_f16":
        operands, halves = [*operands, target], _Halves.of(inst, len(operands) + 1)
    return _packed_halves(target, operands, halves, *_half_operation(name, len(operands)))


def _half_operation(name: str, count: int) -> tuple[tuple[str, ...], Callable[..., Array]]:
    """(source kinds, function) of an operation on 16-bit halves."""
    if name == "fmac_f16":
        return ("f16",) * 3, ar.fma_f16
    operation, _, kind = name.rpartition("_")
    if kind == "bf16":
        row = VECTOR_OPS.get(f"{operation}_f32")
        if row is None or len(row.sources) != count:
            raise Unsupported("unknown packed instruction")
        wide = row.function
        return ("bf16",) * count, lambda *a: to_bf16(np.asarray(wide(*map(from_bf16, a))))
    row = VECTOR_OPS.get(name)
    if row is None or row.result not in ("f16", "u16", "i16") or len(row.sources) != count:
        raise Unsupported("unknown packed instruction")
    return row.sources, row.function


def _packed_halves(
    target: Operand, operands: list[Operand], halves: _Halves, kinds: tuple[str, ...], function: Callable[..., Array]
) -> Step:
    def reads(select: list[int], negate: list[int]) -> list[Read]:
        return [
            _half_source(op, kind, bool(select[i]), bool(negate[i]))
            for i, (op, kind) in enumerate(zip(operands, kinds, strict=True))
        ]

    low, high = reads(halves.low, halves.negate_low), reads(halves.high, halves.negate_high)

    def step(w: Waves) -> None:
        results = [np.ascontiguousarray(w.broadcast(function(*(get(w) for get in part)))) for part in (low, high)]
        w.set_v(target.index, pack_halves(results[0].view(U16), results[1].view(U16)))

    return step


def _half_source(op: Operand, kind: str, high: bool, negate: bool) -> Read:
    read = _constant_half(op, kind, high) if op.file == "const" else vector_source(op, kind, high=high)
    if not negate:
        return read
    flipped = Operand("null", negate=True)
    modify(np.zeros(1, U16), flipped, kind)  # refuses integer kinds
    return lambda w: modify(read(w), flipped, kind)


def _constant_half(op: Operand, kind: str, high: bool) -> Read:
    """Half of a constant: it is one 32-bit pattern, so an inline float has zeros in its upper half."""
    is_half_float = op.is_float and kind in ("f16", "bf16")
    word = int(constant_bits(op, kind).view(U16)) if is_half_float else int(constant_bits(op, "u32"))
    half = np.full((1, 1), (word >> (16 if high else 0)) & 0xFFFF, U16).view(DTYPES[kind])
    return lambda w: half


def _negated(get: Read) -> Read:
    return lambda w: -get(w)


def _pair_member(op: Operand, member: int) -> Operand:
    """One register of a pair; a constant is the same in both."""
    return op if op.file == "const" else Operand(op.file, op.index + member)


def _packed_pair(target: Operand, operands: list[Operand], halves: _Halves, function: Callable[..., Array]) -> Step:
    def reads(select: list[int], negate: list[int]) -> list[Read]:
        chosen = [_pair_member(op, select[i]) for i, op in enumerate(operands)]
        plain = [vector_source(op, "f32") for op in chosen]
        return [_negated(get) if negate[i] else get for i, get in enumerate(plain)]

    low, high = reads(halves.low, halves.negate_low), reads(halves.high, halves.negate_high)

    def step(w: Waves) -> None:
        # Both results are formed before either is written: the target may be a source.
        first, second = (w.broadcast(function(*(get(w) for get in part)).astype(F32)) for part in (low, high))
        w.set_v(target.index, first)
        w.set_v(target.index + 1, second)

    return step


def _packed_move(target: Operand, operands: list[Operand], halves: _Halves) -> Step:
    """The first source gives the low register, the second the high one, each from the member that op_sel names."""
    reads = [vector_source(_pair_member(op, halves.low[i]), "u32") for i, op in enumerate(operands)]

    def step(w: Waves) -> None:
        first, second = (w.broadcast(get(w)).astype(U32) for get in reads)
        w.set_v(target.index, first)
        w.set_v(target.index + 1, second)

    return step
