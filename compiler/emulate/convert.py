"""Conversions to and from 8-bit floats, with gfx950's scaled forms."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from capwise.emulate.arrays import F16, F32, F64, U16, U32, Array, pack_halves
from capwise.emulate.context import Context, Evaluate, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.float_formats import Float8, float8, from_bf16, to_bf16
from capwise.emulate.operands import Operand, Read, vector_source
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves

_SDWA_BYTE = {"BYTE_0": 0, "BYTE_1": 1, "BYTE_2": 2, "BYTE_3": 3, "WORD_0": 0, "WORD_1": 2, "DWORD": 0}


def _first_byte(inst: Inst, source: Operand, packed: bool) -> int:
    """Which byte of the source register the conversion starts at; packed forms take a half, others a byte."""
    if inst.flag("byte_sel"):
        return inst.integer("byte_sel")
    if inst.flag("src0_sel"):
        return _SDWA_BYTE[inst.word("src0_sel")]
    select = inst.integers("op_sel", [0, 0])
    start = 2 * select[0] if packed else select[0] + 2 * select[1]
    return start or (2 if source.half == "h" else 0)


def _byte(words: Array, index: int) -> Array:
    return (words >> U32(8 * index)) & U32(255)


def _put_half(w: Waves, register: int, values: Array, high: bool) -> None:
    """Write 16 bits into one half of a register and keep the other."""
    old = w.v(register)
    kept, moved = (U32(0xFFFF), values << U32(16)) if high else (U32(0xFFFF0000), values)
    w.set_v(register, (old & kept) | moved)


def build_from_float8(inst: Inst, ctx: Context) -> Step:
    """v_cvt_f32_fp8 and v_cvt_pk_f32_fp8 (and bf8): one or two bytes to float32 registers."""
    match = re.fullmatch(r"v_cvt_(pk_)?f32_(fp8|bf8)", inst.mnemonic)
    assert match is not None
    number, count = float8(match.group(2), ctx.gfx), 2 if match.group(1) else 1
    target, source = ctx.operands(inst)
    start, read = _first_byte(inst, source, count == 2), vector_source(source.bare(), "u32")

    def step(w: Waves) -> None:
        words = read(w).copy()  # the target may be the source
        for i in range(count):
            w.set_v(target.index + i, w.broadcast(number.decode(_byte(words, start + i))))

    return step


def build_to_float8(inst: Inst, ctx: Context) -> Step:
    """v_cvt_pk_fp8_f32 (and bf8): two float32 to one half of the target."""
    match = re.fullmatch(r"v_cvt_pk_(fp8|bf8)_f32", inst.mnemonic)
    assert match is not None
    number = float8(match.group(1), ctx.gfx)
    target, first, second = ctx.operands(inst)
    a, b = ctx.sources([first, second], "f32", "f32")
    high = target.half == "h" or bool(inst.integers("op_sel", [0, 0, 0])[-1])

    def step(w: Waves) -> None:
        codes = number.encode(w.broadcast(a(w))) | (number.encode(w.broadcast(b(w))) << U32(8))
        _put_half(w, target.index, codes, high)

    return step


def _scale(read: Read, sign: int) -> Evaluate:
    """2**(sign * exponent) of the float32 scale operand, as float64."""

    def get(w: Waves) -> Array:
        exponent = (np.ascontiguousarray(read(w)).view(U32) >> U32(23)) & U32(255)
        return np.asarray(np.exp2(sign * (exponent.astype(F64) - 127)))

    return get


def build_scaled_to_float8(inst: Inst, ctx: Context) -> Step:
    """gfx950 v_cvt_scalef32_pk_fp8_f32 and kin: two values divided by the scale, to one half of the target."""
    match = re.fullmatch(r"v_cvt_scalef32_pk_(fp8|bf8)_(f32|f16|bf16)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown scaled conversion")
    number, kind = Float8(4 if match.group(1) == "fp8" else 5, fnuz=False), match.group(2)
    target, *inputs, scale = ctx.operands(inst)
    if kind == "f32":
        reads = [vector_source(op, "f32") for op in inputs]
    else:
        reads = [vector_source(inputs[0], kind, high=high) for high in (False, True)]
    select, factor = inst.integers("op_sel", []), _scale(vector_source(scale, "f32"), -1)
    high = bool(select and select[-1])
    widen = from_bf16 if kind == "bf16" else _identity

    def step(w: Waves) -> None:
        low, top = (number.encode(w.broadcast(widen(get(w)).astype(F64) * factor(w))) for get in reads)
        _put_half(w, target.index, low | (top << U32(8)), high)

    return step


def _identity(x: Array) -> Array:
    return x


_NARROW: dict[str, Callable[[Array], Array]] = {"f16": lambda x: x.astype(F16).view(U16), "bf16": to_bf16}


def build_scaled_from_float8(inst: Inst, ctx: Context) -> Step:
    """gfx950 v_cvt_scalef32_f32_fp8 and kin: bytes times the scale."""
    match = re.fullmatch(r"v_cvt_scalef32_(pk_)?(f32|f16|bf16)_(fp8|bf8)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown scaled conversion")
    packed, kind, name = bool(match.group(1)), match.group(2), match.group(3)
    number, count = Float8(4 if name == "fp8" else 5, fnuz=False), 2 if packed else 1
    target, source, scale = ctx.operands(inst)
    start, read = _first_byte(inst, source, packed), vector_source(source.bare(), "u32")
    factor = _scale(vector_source(scale, "f32"), 1)

    def step(w: Waves) -> None:
        words, scaling = read(w).copy(), factor(w)
        values = [number.decode(_byte(words, start + i)).astype(F64) * scaling for i in range(count)]
        singles = [w.broadcast(v.astype(F32)) for v in values]
        if kind == "f32":
            for i, single in enumerate(singles):
                w.set_v(target.index + i, single)
        elif packed:
            w.set_v(target.index, pack_halves(*map(_NARROW[kind], singles)))
        else:
            _put_half(w, target.index, _NARROW[kind](singles[0]).astype(U32), False)

    return step
