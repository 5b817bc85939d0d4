"""Number formats that numpy lacks: bfloat16 and the 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capwise.emulate.arrays import F16, F32, F64, I64, U16, U32, Array


def to_bf16(x: Array) -> Array:
    """float32 -> bfloat16 bits (uint16), round to nearest even; NaN stays a quiet NaN."""
    bits = x.astype(F32).view(U32)
    rounded = ((bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)).astype(U16)
    return np.where(np.isnan(x), U16(0x7FC0) | (bits >> U32(16)).astype(U16), rounded)


def from_bf16(bits: Array) -> Array:
    """bfloat16 bits (uint16) -> float32, exact."""
    return (bits.astype(U32) << U32(16)).view(F32)


def f16_toward_zero(x: Array) -> Array:
    """float32 -> float16 bits (uint16), rounded toward zero."""
    half = x.astype(F16)
    bits = half.view(U16)
    return np.where(np.abs(half.astype(F64)) > np.abs(x.astype(F64)), bits - U16(1), bits).astype(U16)


@dataclass(frozen=True)
class Float8:
    """An 8-bit float with ``exponent_bits`` (4 or 5); ``fnuz`` is the variant without negative zero or infinity.

    OCP 8-bit floats (fp8 E4M3, bf8 E5M2) are those of gfx950 and gfx12; gfx942 has the fnuz ones.
    """

    exponent_bits: int
    fnuz: bool

    def decode(self, codes: Array) -> Array:
        """Codes 0..255 of any integer dtype -> float32, exact."""
        return self._values[codes.astype(I64)]

    @cached_property
    def _values(self) -> Array:
        codes = np.arange(256)
        mantissa_bits = 7 - self.exponent_bits
        exponent = (codes >> mantissa_bits) & ((1 << self.exponent_bits) - 1)
        fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        bias = (1 << (self.exponent_bits - 1)) - (0 if self.fnuz else 1)
        normal = (1 + fraction) * np.exp2((exponent - bias).astype(F64))
        values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
        if self.fnuz:
            values[0x80] = np.nan
        elif self.exponent_bits == 4:
            values[[0x7F, 0xFF]] = np.nan
        else:
            values = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), values)
        return np.where(codes >> 7, -values, values).astype(F32)

    def encode(self, x: Array) -> Array:
        """float32 or float64 -> codes (uint32), nearest even; overflow saturates at the largest finite value."""
        table = self._values[:128].astype(F64)
        table = table[np.isfinite(table)]
        magnitude = np.abs(x.astype(F64))
        upper = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
        below, above = magnitude - table[upper - 1], table[upper] - magnitude
        code = np.where((below > above) | ((below == above) & (upper % 2 == 0)), upper, upper - 1)
        unsigned_zero = (code == 0) & self.fnuz
        code = np.where(np.signbit(x) & ~unsigned_zero, code | 0x80, code)
        return np.where(np.isnan(x), 0x80 if self.fnuz else 0x7F, code).astype(U32)


def float8(name: str, gfx: str) -> Float8:
    """The format that an instruction of target ``gfx`` calls ``fp8`` or ``bf8``."""
    return Float8(4 if name == "fp8" else 5, fnuz=gfx == "gfx942")
