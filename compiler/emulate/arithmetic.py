"""Arithmetic of the vector and scalar ALUs as functions of numpy arrays, rounded as the hardware rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from capwise.emulate.arrays import F16, F32, F64, I32, I64, U16, U32, U64, Array


# -- fused multiply-add
def fma_to_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c for inputs of at most 24 bits, as float64 rounded to odd.

    Converting that to a narrower type rounds once. The product is exact in float64; the error of the sum (Knuth's
    two-sum) says which way to move an even last bit.
    """
    product, addend = a.astype(F64) * b.astype(F64), c.astype(F64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    inexact = np.isfinite(total) & (error != 0) & ((total.view(I64) & 1) == 0)
    if inexact.any():
        total = np.array(np.broadcast_to(total, inexact.shape))
        step = np.where((error > 0) == (total > 0), 1, -1)
        total.view(I64)[inexact] += np.broadcast_to(step, inexact.shape)[inexact]
    return total


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    return fma_to_odd(a, b, c).astype(F32)


def fma_f16(a: Array, b: Array, c: Array) -> Array:
    return fma_to_odd(a, b, c).astype(F16)


def _split_f64(a: Array) -> tuple[Array, Array]:
    """Veltkamp's split of a double into two halves of 26 bits."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Dekker's product and two-sum: exact but for ties in the last bit and overflow of the split."""
    product = a * b
    (a1, a2), (b1, b2) = _split_f64(a), _split_f64(b)
    low = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    return np.where(np.isfinite(low) & np.isfinite(total), total + (error + low), total)


FMA: dict[str, Callable[[Array, Array, Array], Array]] = {"f16": fma_f16, "f32": fma_f32, "f64": fma_f64}


# -- floating point
def minimum_number(a: Array, b: Array) -> Array:
    """IEEE minimumNumber: a NaN loses against a number, and -0 is below +0."""
    zeros = (a == 0) & (b == 0)
    low = np.where(zeros, np.where(np.signbit(a), a, b), np.minimum(a, b))
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, low))


def maximum_number(a: Array, b: Array) -> Array:
    """IEEE maximumNumber."""
    zeros = (a == 0) & (b == 0)
    high = np.where(zeros, np.where(np.signbit(a), b, a), np.maximum(a, b))
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, high))


def median(a: Array, b: Array, c: Array) -> Array:
    return maximum_number(minimum_number(a, b), minimum_number(maximum_number(a, b), c))


def through_f64(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """The function evaluated in float64 and rounded to the argument's type: what the hardware approximates to 1 ulp."""
    return lambda a: np.asarray(function(a.astype(F64))).astype(a.dtype)


def to_integer(a: Array, dtype: Any) -> Array:
    """Truncate to ``dtype``, saturating; NaN gives 0."""
    limits = np.iinfo(dtype)
    return np.where(np.isnan(a), 0, np.clip(np.trunc(a.astype(F64)), limits.min, limits.max)).astype(I64).astype(dtype)


def classify(x: Array, wanted: Array) -> Array:
    """v_cmp_class: bool, true where the class of ``x`` has its bit set in ``wanted``."""
    bits_dtype, mantissa = {2: (U16, 10), 4: (U32, 23), 8: (U64, 52)}[x.dtype.itemsize]
    raw = np.ascontiguousarray(x).view(bits_dtype)
    quiet = (raw >> bits_dtype(mantissa - 1) & bits_dtype(1)).astype(bool)
    nan, infinite, negative, zero = np.isnan(x), np.isinf(x), np.signbit(x), x == 0
    denormal = ~zero & (np.abs(x) < np.finfo(x.dtype).tiny)
    normal = ~(nan | infinite | zero | denormal)
    magnitudes = (infinite, normal, denormal, zero)
    classes = [nan & ~quiet, nan & quiet]
    classes += [m & negative for m in magnitudes] + [m & ~negative for m in reversed(magnitudes)]
    result = np.zeros(np.broadcast_shapes(x.shape, wanted.shape), bool)
    for bit, member in enumerate(classes):
        result |= member & ((wanted >> U32(bit)) & U32(1)).astype(bool)
    return result


def _exponent(x: Array) -> Array:
    field = (np.ascontiguousarray(x).view(U32) >> U32(23)).astype(I64) & 255
    return np.where(x == 0, 0, field)


def div_scale(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """v_div_scale_f32: (scaled operand, lanes in which div_fmas must undo the scaling)."""
    value, denominator, numerator = (np.array(x) for x in np.broadcast_arrays(value, denominator, numerator))
    tiny = 2.0**-126
    quotient = numerator.astype(F64) / denominator.astype(F64)
    scaled = np.ldexp(value.astype(F64), 64).astype(F32)
    cases = [
        (numerator == 0) | (denominator == 0),
        _exponent(numerator) - _exponent(denominator) >= 96,  # the quotient is close to overflow
        (np.abs(denominator) < tiny) & (denominator != 0),
        (np.abs(quotient) < tiny) & (quotient != 0),
        _exponent(numerator) <= 23,
    ]
    of_denominator = np.where(value == denominator, scaled, value)
    of_numerator = np.where(value == numerator, scaled, value)
    nan = np.full(value.shape, np.nan, F32)
    result = np.select(cases, [nan, of_denominator, scaled, of_numerator, scaled], value)
    undo = np.select(cases, [True, True, False, True, False], False)
    return result.astype(F32), undo.astype(bool)


def div_fmas(a: Array, b: Array, c: Array, undo: Array) -> Array:
    """v_div_fmas_f32: fma(a, b, c), times 2**64 or 2**-64 where ``undo`` (the VCC mask) is set."""
    total = fma_to_odd(a, b, c)
    scale = np.where(np.abs(c) >= 2, 2.0**64, 2.0**-64)
    return np.where(undo, total * scale, total).astype(F32)


def div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """v_div_fixup_f32: the quotient with the special cases of division put in."""
    q, d, n = np.broadcast_arrays(quotient, denominator, numerator)
    sign = np.where(np.signbit(d) ^ np.signbit(n), F32(-1), F32(1))
    infinity = np.copysign(F32(np.inf), sign)
    cases: list[tuple[Array, Any]] = [
        (np.isnan(n), n),
        (np.isnan(d), d),
        ((d == 0) & (n == 0) | np.isinf(d) & np.isinf(n), F32(np.nan)),
        ((d == 0) | np.isinf(n), infinity),
        (np.isinf(d) | (n == 0), np.copysign(F32(0), sign)),
        (np.isnan(q), infinity),  # the estimate overflowed
    ]
    result: Array = np.select([c for c, _ in cases], [v for _, v in cases], np.copysign(q, sign))
    return result.astype(F32)


# -- integers
def shift_amount(like: Array, amount: Array, mask: int) -> Array:
    """The low bits of ``amount`` in the dtype of the value that is shifted."""
    return cast(Array, amount.astype(like.dtype) & like.dtype.type(mask))


def shift_left(a: Array, amount: Array) -> Array:
    return cast(Array, a << shift_amount(a, amount, 8 * a.dtype.itemsize - 1))


def shift_right(a: Array, amount: Array) -> Array:
    """Logical for unsigned dtypes, arithmetic for signed ones."""
    return cast(Array, a >> shift_amount(a, amount, 8 * a.dtype.itemsize - 1))


def multiply_high(a: Array, b: Array) -> Array:
    """Upper 32 bits of the 64-bit product of two int32 or two uint32 arrays."""
    wide = I64 if a.dtype == I32 else U64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def low_24(a: Array) -> Array:
    """The low 24 bits, sign-extended for int32."""
    return (a << I32(8)) >> I32(8) if a.dtype == I32 else a & U32(0xFFFFFF)


def _bit_length(a: Array) -> Array:
    if a.dtype.itemsize == 8:
        high = _bit_length((a >> U64(32)).astype(U32))
        return np.where(high > 0, high + 32, _bit_length(a.astype(U32)))
    return np.frexp(a.astype(F64))[1]  # exact: a uint32 fits a double


def count_leading_zeros(a: Array) -> Array:
    """int32; -1 for 0."""
    return np.where(a == 0, -1, 8 * a.dtype.itemsize - _bit_length(a)).astype(I32)


def count_trailing_zeros(a: Array) -> Array:
    """int32; -1 for 0."""
    lowest = a & (~a + a.dtype.type(1))
    return (_bit_length(lowest) - 1).astype(I32)


def count_leading_signs(a: Array) -> Array:
    """Length of the run of sign bits at the top of an int32; -1 when all 32 are equal."""
    return count_leading_zeros((a ^ (a >> I32(31))).view(U32))


def count_ones(a: Array) -> Array:
    """Number of set bits of a uint32 or uint64, as uint32."""
    x = a.astype(U64)
    x = x - ((x >> U64(1)) & U64(0x5555555555555555))
    x = (x & U64(0x3333333333333333)) + ((x >> U64(2)) & U64(0x3333333333333333))
    x = (x + (x >> U64(4))) & U64(0x0F0F0F0F0F0F0F0F)
    return ((x * U64(0x0101010101010101)) >> U64(56)).astype(U32)


def reverse_bits(a: Array) -> Array:
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        a = ((a >> U32(shift)) & U32(mask)) | ((a & U32(mask)) << U32(shift))
    return (a >> U32(16)) | (a << U32(16))


def bit_field(a: Array, offset: Array, width: Array, *, signed: bool) -> Array:
    """``width`` bits of a uint32 from bit ``offset``, both taken mod 32, as uint32."""
    offset, width = offset.astype(I64) & 31, width.astype(I64) & 31
    field = (a.astype(U32).astype(I64) >> offset) & ((I64(1) << width) - 1)
    if signed:
        top = (field >> np.maximum(width - 1, 0)) & 1
        field = np.where((width > 0) & (top == 1), field - (I64(1) << width), field)
    return field.astype(U32)


def scalar_bit_field(a: Array, spec: Array) -> Array:
    """s_bfe: offset in the low bits of ``spec``, width in bits 16 to 22; signed dtypes sign-extend."""
    bits = 8 * a.dtype.itemsize
    offset = spec.astype(I64) & (bits - 1)
    width = np.minimum((spec.astype(I64) >> 16) & 127, bits - offset)
    dtype = a.dtype.type
    # Shifting the field to the top first lets the right shift extend it; a width of 0 must not shift by all the bits.
    up, down = (bits - offset - width).astype(a.dtype), np.minimum(bits - width, bits - 1).astype(a.dtype)
    return cast(Array, np.where(width == 0, dtype(0), (a << (up % dtype(bits))) >> down))


def bit_mask(width: Array, offset: Array) -> Array:
    return cast(Array, ((U32(1) << (width & U32(31))) - U32(1)) << (offset & U32(31)))


def permute_bytes(high: Array, low: Array, selector: Array) -> Array:
    """v_perm_b32: each selector byte picks a byte of {high, low}, a replicated sign, 0x00 or 0xff."""
    source = (high.astype(U64) << U64(32)) | low.astype(U64)
    result = np.zeros(np.broadcast_shapes(source.shape, selector.shape), U32)
    for i in range(4):
        pick = (selector >> U32(8 * i)) & U32(255)
        byte = (source >> (np.minimum(pick, U32(7)).astype(U64) * U64(8))) & U64(255)
        sign_bit = U64(15) + (np.clip(pick, U32(8), U32(11)).astype(U64) - U64(8)) * U64(16)
        sign = ((source >> sign_bit) & U64(1)) * U64(255)
        byte = np.select([pick >= 13, pick == 12, pick >= 8], [U64(255), U64(0), sign], byte)
        result |= byte.astype(U32) << U32(8 * i)
    return result


def align(high: Array, low: Array, bits: Array) -> Array:
    """Low 32 bits of {high, low} >> bits."""
    return (((high.astype(U64) << U64(32)) | low.astype(U64)) >> bits.astype(U64)).astype(U32)


def bit_operation(table: int, operands: list[Array]) -> Array:
    """v_bitop3: the three-input truth table ``table``, applied to each bit."""
    a, b, c = operands
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b), "nlg": lambda a, b: ~((a < b) | (a > b)), "neq": np.not_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b), "nlt": lambda a, b: ~(a < b),
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
}  # fmt: skip
