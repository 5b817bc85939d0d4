"""How a vector instruction reads its sources and writes its result: operand halves, SDWA, DPP, output modifiers."""

from __future__ import annotations

import numpy as np

from capwise.emulate.arrays import DTYPES, HALF_KINDS, I32, PAIR_KINDS, U16, U32, Array, raw_bits, sign_extend
from capwise.emulate.context import Context, Write
from capwise.emulate.dpp import dpp_source
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Operand, Read, modify, vector_source
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves

# Sub-dword selections of SDWA: bit offset and width.
_SELECTIONS = {
    "BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8),
    "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32),
}  # fmt: skip


def is_sdwa(inst: Inst) -> bool:
    return inst.flag("src0_sel") or inst.flag("dst_sel")


def _sdwa_source(op: Operand, selection: str, kind: str) -> Read:
    read = vector_source(op.bare(), "u32")
    shift, width = _SELECTIONS[selection]
    mask = U32((1 << width) - 1)

    def get(w: Waves) -> Array:
        words = (read(w) >> U32(shift)) & mask
        if op.sext and width < 32:
            words = sign_extend(words, width)
        values = words.astype(U16) if kind in HALF_KINDS else words
        return modify(values.view(DTYPES[kind]), op, kind)

    return get


def sources(inst: Inst, operands: list[Operand], kinds: list[str], ctx: Context) -> list[Read]:
    """Readers for the source operands, with the instruction's DPP, SDWA and op_sel applied."""
    select = inst.integers("op_sel", [0, 0, 0, 0])
    sdwa, readers = is_sdwa(inst), []
    for i, (op, kind) in enumerate(zip(operands, kinds, strict=True)):
        if sdwa and i < 2:
            readers.append(_sdwa_source(op, inst.word(f"src{i}_sel", "DWORD"), kind))
        elif inst.is_dpp and i == 0:
            readers.append(dpp_source(inst, op, kind, ctx.lanes))
        else:
            high = kind in HALF_KINDS and i < len(select) and bool(select[i])
            readers.append(vector_source(op, kind, high=high))
    return readers


def _output_modifiers(inst: Inst) -> tuple[float, bool]:
    """(factor, clamp to [0, 1])."""
    factor = 0.5 if inst.integer("div", 1) == 2 else float(inst.integer("mul", 1))
    return factor, inst.flag("clamp")


def _finish(values: Array, factor: float, clamp: bool) -> Array:
    number = values.dtype.type
    if factor != 1:
        values = values * number(factor)
    if clamp:
        values = np.where(np.isnan(values), number(0), np.clip(values, number(0), number(1)))
    return values


def destination(inst: Inst, op: Operand, kind: str, ctx: Context) -> Write:
    """A function that writes an (n, lanes) result of ``kind``. Raises Unsupported for output modifiers on integers."""
    factor, clamp = _output_modifiers(inst)
    write = plain_destination(inst, op, kind, ctx)
    if factor == 1 and not clamp:
        return write
    if kind[0] != "f":
        raise Unsupported("clamp or an output factor on an integer result")
    return lambda w, values: write(w, _finish(values, factor, clamp))


def plain_destination(inst: Inst, op: Operand, kind: str, ctx: Context) -> Write:
    """``destination`` without clamp and output factors."""
    register = op.index
    if op.file == "sgpr":
        return lambda w, values: w.set_s(register, raw_bits(w.broadcast(values)[:, 0]))
    if op.file != "vgpr":
        raise Unsupported(f"a vector result in {op.file}")
    if inst.flag("dst_sel"):
        return _sdwa_destination(inst, register)
    if kind in HALF_KINDS:
        return _half_destination(inst, op, ctx)
    masked = inst.is_dpp
    if kind in PAIR_KINDS:
        return lambda w, values: w.set_v64(register, values, w.dpp_mask if masked else None)
    if masked:
        return lambda w, values: w.set_v(register, values, w.dpp_mask)
    return lambda w, values: w.set_v(register, values)


def _half_destination(inst: Inst, op: Operand, ctx: Context) -> Write:
    """gfx9 clears the other half of the register unless the instruction names a half; later targets keep it."""
    register, masked = op.index, inst.is_dpp
    select = inst.integers("op_sel", [])  # one entry an operand, the result's last; it may leave out the result
    high = op.half == "h" or (len(select) == len(inst.operands) and select[-1] != 0)
    clears = ctx.is_gfx9 and not high and not op.half

    def write(w: Waves, values: Array) -> None:
        words = raw_bits(values)
        if high:
            words = (w.v(register) & U32(0xFFFF)) | (words << U32(16))
        elif not clears:
            words = (w.v(register) & U32(0xFFFF0000)) | words
        w.set_v(register, words, w.dpp_mask if masked else None)

    return write


def _sdwa_destination(inst: Inst, register: int) -> Write:
    shift, width = _SELECTIONS[inst.word("dst_sel")]
    unused = inst.word("dst_unused", "UNUSED_PAD")
    mask = U32(((1 << width) - 1) << shift)

    def write(w: Waves, values: Array) -> None:
        words = (raw_bits(values) << U32(shift)) & mask
        if unused == "UNUSED_PRESERVE":
            words = words | (w.v(register) & ~mask)
        elif unused == "UNUSED_SEXT" and width < 32:
            up = U32(32 - width - shift)
            words = ((words << up).view(I32) >> I32(up)).view(U32)
        w.set_v(register, words)

    return write
