"""The dtypes that registers are read as, and the helpers every instruction family shares.

A register operand has a *kind*: ``u32 i32 f32`` (one register), ``u64 i64 f64`` (a register pair) or
``u16 i16 f16 bf16`` (half a register; ``bf16`` travels as its raw uint16 bits, since numpy has no such type).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64

DTYPES: dict[str, Any] = {
    "u16": U16, "i16": I16, "f16": F16, "bf16": U16,
    "u32": U32, "i32": I32, "f32": F32,
    "u64": U64, "i64": I64, "f64": F64,
}  # fmt: skip
PAIR_KINDS = frozenset({"u64", "i64", "f64"})
HALF_KINDS = frozenset({"u16", "i16", "f16", "bf16"})


def kind_bits(kind: str) -> int:
    """Width in bits of an operand kind."""
    return int(kind.lstrip("uifb"))


def sign_extend(words: Array, bits: int) -> Array:
    """Sign-extend the low ``bits`` bits of uint32 ``words``; the result is uint32 again."""
    shift = I32(32 - bits)
    return ((words.astype(I32) << shift) >> shift).view(U32)


def raw_bits(values: Array) -> Array:
    """Register image of ``values``: 16-bit dtypes zero-extended, 32-bit dtypes reinterpreted; both as uint32."""
    values = np.ascontiguousarray(values)
    return values.view(U16).astype(U32) if values.dtype.itemsize == 2 else values.view(U32)


def join(low: Array, high: Array) -> Array:
    """uint64 from the two uint32 registers of a pair."""
    return low.astype(U64) | (high.astype(U64) << U64(32))


def pack_halves(low: Array, high: Array) -> Array:
    """uint32 holding two 16-bit values given as zero-extended integers of any dtype."""
    return low.astype(U32) | (high.astype(U32) << U32(16))
