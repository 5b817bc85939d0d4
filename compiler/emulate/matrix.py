"""Matrix instructions: MFMA of the gfx9 targets and WMMA of gfx11 and gfx12, with their operand layouts.

Products and sums are formed in float64 and rounded once; EXEC is ignored, as on the hardware. Below, a matrix product
is D = A B + C with A of M x K and B of K x N.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from capwise.emulate.arrays import F16, F32, F64, I8, I32, I64, U8, U16, U32, Array
from capwise.emulate.context import Context, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.float_formats import float8, from_bf16, to_bf16
from capwise.emulate.operands import Operand, constant_bits
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves

Matrix = Callable[[Waves], Array]

_ELEMENT_BITS = {"f16": 16, "bf16": 16, "i8": 8, "u8": 8, "fp8": 8, "bf8": 8, "f32": 32, "xf32": 32, "f64": 64}


def _unpack(raw: Array, element: str, gfx: str) -> Array:
    """uint32 registers on the last axis -> their elements, in a dtype that holds them exactly."""
    if element == "bf16":
        return from_bf16(raw.view(U16))
    if element in ("fp8", "bf8"):
        return float8(element, gfx).decode(raw.view(U8))
    if element == "xf32":  # the multiplier sees 10 bits of mantissa
        return (raw & U32(0xFFFFE000)).view(F32)
    return raw.view({"f16": F16, "i8": I8, "u8": U8, "f64": F64, "f32": F32}[element])


def _elements(op: Operand, element: str, count: int, gfx: str) -> Matrix:
    """The first ``count`` elements that each lane holds from ``op`` on: float64 (n, lanes, count)."""
    if not op.is_vector:
        raise Unsupported("a matrix operand outside the vector registers")
    registers = max(count * _ELEMENT_BITS[element] // 32, 1)

    def read(w: Waves) -> Array:
        get = w.a if op.is_agpr else w.v
        raw = np.ascontiguousarray(np.stack([get(op.index + i) for i in range(registers)], axis=2))
        return _unpack(raw, element, gfx).astype(F64)[..., :count]

    return read


def _accumulator(op: Operand, kind: str, count: int) -> Matrix:
    """The C operand: float64 (n, count, lanes), broadcastable if it is a constant."""
    if op.file == "const":
        constant = constant_bits(op, kind).astype(F64).reshape(1, 1, 1)
        return lambda w: constant
    dtype = {"i32": I32, "f32": F32}.get(kind)

    def read(w: Waves) -> Array:
        if dtype is None:
            return np.stack([w.double(op.index + 2 * i, accumulator=op.is_agpr) for i in range(count)], axis=1)
        get = w.a if op.is_agpr else w.v
        return np.stack([get(op.index + i) for i in range(count)], axis=1).view(dtype).astype(F64)

    return read


def _write_result(w: Waves, op: Operand, kind: str, values: Array) -> None:
    """Write (n, count, lanes) float64 sums as ``kind``; int32 sums wrap."""
    everywhere = np.ones((w.n, w.lanes), bool)
    for i in range(values.shape[1]):
        if kind == "f64":
            w.set_v64(op.index + 2 * i, values[:, i].copy(), everywhere, accumulator=op.is_agpr)
        else:
            value = values[:, i]
            bits = (value.astype(I64) & 0xFFFFFFFF).astype(U32) if kind == "i32" else value.astype(F32).view(U32)
            w.set_v(op.index + i, bits, everywhere, accumulator=op.is_agpr)


# -- MFMA
_MFMA = re.compile(r"v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_?(.*)")


def _mfma_elements(inst: Inst, name: str) -> tuple[str, str]:
    """Element types of A and B."""
    formats = [inst.integer(field) for field in ("cbsz", "blgp")]
    if inst.integer("abid"):
        raise Unsupported("a broadcast block of a matrix operand")
    if name == "f8f6f4":
        # Unscaled 8-bit operands; the order of K within a lane is the same on both sides and so does not matter.
        if max(formats) > 1:
            raise Unsupported("6-bit or 4-bit matrix elements")
        first, second = (("fp8", "bf8")[f] for f in formats)
        return first, second
    if any(formats):
        raise Unsupported("a broadcast or permuted matrix operand")
    first, _, second = name.replace("_1k", "").partition("_")
    return first, second or first


def _mfma_places(result: str, m: int, count: int) -> tuple[Array, Array, Array]:
    """(block, row, column) of D held in register i of each lane, each of shape (count, 64)."""
    lane = np.broadcast_to(np.arange(64), (count, 64))
    register = np.broadcast_to(np.arange(count)[:, None], (count, 64))
    if m == 4:  # sixteen blocks of 4 x 4, one for every four lanes
        return lane // 4, register, lane % 4
    if result == "f64":
        row = 4 * register + lane // 16
    elif m == 32:
        row = 8 * (register // 4) + 4 * (lane // 32) + register % 4
    else:
        row = 4 * (lane // 16) + register
    return np.zeros_like(lane), row, lane % m


def build_mfma(inst: Inst, ctx: Context) -> Step:
    """Lane l holds K-consecutive elements of row l % M of A (column of B) and group l // M of K."""
    match = _MFMA.fullmatch(inst.mnemonic)
    if match is None or match.group(5):
        raise Unsupported("unknown matrix instruction")
    result, m, n, k = match.group(1), *map(int, match.group(2, 3, 4))
    elements = _mfma_elements(inst, match.group(6))
    if m not in (4, 16, 32) or m != n or any(e not in _ELEMENT_BITS for e in elements):
        raise Unsupported("unknown matrix shape")
    target, a, b, c = ctx.operands(inst)[:4]
    blocks = 16 if m == 4 else 1
    groups = 64 // m // blocks
    per_lane, count = k // groups, m * n * blocks // 64
    read_a, read_b = (_elements(op, e, per_lane, ctx.gfx) for op, e in zip((a, b), elements, strict=True))
    read_c, (block, row, column) = _accumulator(c, result, count), _mfma_places(result, m, count)

    def as_matrix(values: Array) -> Array:
        waves = values.shape[0]
        grouped = values.reshape(waves, blocks, groups, m, per_lane)
        return grouped.transpose(0, 1, 3, 2, 4).reshape(waves, blocks, m, k)

    def step(w: Waves) -> None:
        product = as_matrix(read_a(w)) @ as_matrix(read_b(w)).transpose(0, 1, 3, 2)
        _write_result(w, target, result, read_c(w) + product[:, block, row, column])

    return step


# -- WMMA
_WMMA = re.compile(r"v_wmma_(f32|f16|bf16|i32)_16x16x16_(f16|bf16|iu8|fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8)")


def _wmma_matrix(op: Operand, element: str, negate: tuple[bool, bool], ctx: Context) -> Matrix:
    """A, or B transposed: float64 (n, 16, 16).

    gfx12 spreads K over the two halves of the wavefront, 8 elements a lane; gfx11 holds all 16 in every lane, with the
    upper half of the wavefront a copy of the lower. ``negate`` is for the even and the odd elements.
    """
    split = ctx.is_gfx12
    per_lane = 8 if split else 16
    read = _elements(op, element, per_lane, ctx.gfx)
    signs = np.where(np.arange(per_lane) % 2 == 0, *(-1.0 if flip else 1.0 for flip in negate))
    if not any(negate) or element not in ("f16", "bf16"):
        signs = np.ones(per_lane)

    def matrix(w: Waves) -> Array:
        values = read(w) * signs
        if not split:
            return values[:, :16]
        return values.reshape(w.n, 2, 16, 8).transpose(0, 2, 1, 3).reshape(w.n, 16, 16)

    return matrix


def build_wmma(inst: Inst, ctx: Context) -> Step:
    """16 x 16 x 16 in a wavefront of 32 lanes."""
    match = _WMMA.fullmatch(inst.mnemonic)
    if match is None:
        raise Unsupported("unknown matrix instruction")
    result, name = match.groups()
    first, _, second = name.partition("_")
    low, high = inst.integers("neg_lo", [0, 0, 0]), inst.integers("neg_hi", [0, 0, 0])
    elements = [first, second or first]
    if name == "iu8":  # neg_lo says which operand is signed
        elements = ["i8" if low[i] else "u8" for i in range(2)]
    target, a, b, c = ctx.operands(inst)[:4]
    read_a, read_b = (_wmma_matrix(op, elements[i], (bool(low[i]), bool(high[i])), ctx) for i, op in enumerate((a, b)))
    lane, register = np.arange(32)[None], np.arange(8)[:, None]
    row = 8 * (lane // 16) + register if ctx.is_gfx12 else 2 * register + lane // 16
    column = np.broadcast_to(lane % 16, (8, 32))

    def product(w: Waves) -> Array:
        full: Array = read_a(w) @ read_b(w).transpose(0, 2, 1)
        return full[:, row, column]

    if result in ("f16", "bf16"):
        if low[2] or high[2]:
            raise Unsupported("a sign modifier on a half-precision accumulator")
        upper = bool(inst.integers("op_sel", [0, 0, 0])[2])
        return _half_wmma(target, c, result, product, packed=ctx.is_gfx12, upper=upper)
    if high[2] or (low[2] and result != "f32"):
        raise Unsupported("a sign modifier on this accumulator")
    read_c, sign = _accumulator(c, result, 8), -1.0 if low[2] else 1.0
    return lambda w: _write_result(w, target, result, sign * read_c(w) + product(w))


def _half_accumulator(c: Operand, kind: str, packed: bool, upper: bool) -> Matrix:
    """C of 16-bit elements, float64 (n, 8, 32): two elements a register, or one in the half that ``upper`` names."""
    if c.file == "const":
        bits = constant_bits(c, kind)
        constant = (from_bf16(bits) if kind == "bf16" else bits).astype(F64).reshape(1, 1, 1)
        return lambda w: constant

    def read(w: Waves) -> Array:
        raw = np.stack([w.v(c.index + i) for i in range(4 if packed else 8)], axis=1)
        if packed:
            halves = np.stack([raw & U32(0xFFFF), raw >> U32(16)], axis=2).reshape(w.n, 8, 32)
        else:
            halves = raw >> U32(16) if upper else raw
        bits = halves.astype(U16)
        return (from_bf16(bits) if kind == "bf16" else bits.view(F16)).astype(F64)

    return read


def _half_wmma(target: Operand, c: Operand, kind: str, product: Matrix, *, packed: bool, upper: bool) -> Step:
    read_c = _half_accumulator(c, kind, packed, upper)

    def step(w: Waves) -> None:
        total = read_c(w) + product(w)
        rounded = to_bf16(total.astype(F32)) if kind == "bf16" else total.astype(F16).view(U16)
        bits, everywhere = rounded.astype(U32), np.ones((w.n, w.lanes), bool)
        if packed:
            for i in range(4):
                w.set_v(target.index + i, bits[:, 2 * i] | (bits[:, 2 * i + 1] << U32(16)), everywhere)
            return
        kept, shift = (U32(0xFFFF), U32(16)) if upper else (U32(0xFFFF0000), U32(0))
        for i in range(8):
            w.set_v(target.index + i, (w.v(target.index + i) & kept) | (bits[:, i] << shift), everywhere)

    return step
