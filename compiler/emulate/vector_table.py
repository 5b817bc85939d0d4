"""The vector instructions that compute one result from one to three sources, as rows of kinds and a function.

Names carry no ``v_`` prefix. The scalar ALU's floating-point instructions use the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from capwise.emulate import arithmetic as ar
from capwise.emulate.arrays import F16, F32, F64, I16, I32, U16, U32, U64, Array, pack_halves
from capwise.emulate.float_formats import f16_toward_zero, from_bf16, to_bf16


class Row(NamedTuple):
    """Result kind, source kinds, and the function of that many arrays."""

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Array]


_Rows = dict[str, tuple[str, Callable[..., Array]]]  # operation -> source kinds, function


def _row(result: str, sources: str, function: Callable[..., Array]) -> Row:
    return Row(result, tuple(sources.split()), function)


def _float_rows(kind: str) -> dict[str, Row]:
    """Arithmetic that exists in every float width."""
    one, two, three = kind, f"{kind} {kind}", f"{kind} {kind} {kind}"
    wide = ar.through_f64
    rows: _Rows = {
        "add": (two, np.add), "sub": (two, np.subtract), "subrev": (two, lambda a, b: b - a), "mul": (two, np.multiply),
        "min": (two, ar.minimum_number), "max": (two, ar.maximum_number), "fma": (three, ar.FMA[kind]),
        "minimum": (two, np.minimum), "maximum": (two, np.maximum),
        "min3": (three, lambda a, b, c: ar.minimum_number(ar.minimum_number(a, b), c)),
        "max3": (three, lambda a, b, c: ar.maximum_number(ar.maximum_number(a, b), c)),
        "minmax": (three, lambda a, b, c: ar.maximum_number(ar.minimum_number(a, b), c)),
        "maxmin": (three, lambda a, b, c: ar.minimum_number(ar.maximum_number(a, b), c)),
        "minimum3": (three, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
        "maximum3": (three, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
        "med3": (three, ar.median),
        "rcp": (one, wide(lambda x: 1 / x)), "rsq": (one, wide(lambda x: 1 / np.sqrt(x))), "sqrt": (one, wide(np.sqrt)),
        "floor": (one, np.floor), "ceil": (one, np.ceil), "trunc": (one, np.trunc), "rndne": (one, np.rint),
        "fract": (one, lambda a: a - np.floor(a)), "frexp_mant": (one, lambda a: np.frexp(a)[0]),
    }  # fmt: skip
    return {f"{name}_{kind}": _row(kind, sources, fn) for name, (sources, fn) in rows.items()}


def _zero_wins(a: Array, b: Array) -> Array:
    """The legacy product: 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), F32(0), a * b)


def _exponent(a: Array) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32)


def _ldexp(a: Array, exponent: Array) -> Array:
    return np.ldexp(a.astype(F64), exponent.astype(I32)).astype(a.dtype)


_wide = ar.through_f64
_FLOAT = {
    "mul_legacy_f32": _row("f32", "f32 f32", _zero_wins),
    "mul_dx9_zero_f32": _row("f32", "f32 f32", _zero_wins),
    "mad_f32": _row("f32", "f32 f32 f32", lambda a, b, c: a * b + c),
    "div_fixup_f32": _row("f32", "f32 f32 f32", ar.div_fixup),
    "rcp_iflag_f32": _row("f32", "f32", _wide(lambda x: 1 / x)),
    "exp_f32": _row("f32", "f32", _wide(np.exp2)),
    "exp_f16": _row("f16", "f16", _wide(np.exp2)),
    "log_f32": _row("f32", "f32", _wide(np.log2)),
    "log_f16": _row("f16", "f16", _wide(np.log2)),
    # The argument is in revolutions.
    "sin_f32": _row("f32", "f32", _wide(lambda x: np.sin(x * 2 * np.pi))),
    "cos_f32": _row("f32", "f32", _wide(lambda x: np.cos(x * 2 * np.pi))),
    "ldexp_f16": _row("f16", "f16 i16", _ldexp),
    "ldexp_f32": _row("f32", "f32 i32", _ldexp),
    "ldexp_f64": _row("f64", "f64 i32", _ldexp),
    "frexp_exp_i32_f32": _row("i32", "f32", _exponent),
    "frexp_exp_i32_f64": _row("i32", "f64", _exponent),
}


def _cast(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: a.astype(dtype)


def _to(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: ar.to_integer(a, dtype)


def _byte_to_f32(byte: int) -> Callable[[Array], Array]:
    return lambda a: ((a >> U32(8 * byte)) & U32(255)).astype(F32)


_CONVERT = {
    "cvt_f32_i32": _row("f32", "i32", _cast(F32)), "cvt_f32_u32": _row("f32", "u32", _cast(F32)),
    "cvt_f64_i32": _row("f64", "i32", _cast(F64)), "cvt_f64_u32": _row("f64", "u32", _cast(F64)),
    "cvt_f16_i16": _row("f16", "i16", _cast(F16)), "cvt_f16_u16": _row("f16", "u16", _cast(F16)),
    "cvt_f16_f32": _row("f16", "f32", _cast(F16)), "cvt_f32_f16": _row("f32", "f16", _cast(F32)),
    "cvt_f64_f32": _row("f64", "f32", _cast(F64)), "cvt_f32_f64": _row("f32", "f64", _cast(F32)),
    "cvt_f32_bf16": _row("f32", "bf16", from_bf16),
    "cvt_i32_f32": _row("i32", "f32", _to(I32)), "cvt_u32_f32": _row("u32", "f32", _to(U32)),
    "cvt_i32_f64": _row("i32", "f64", _to(I32)), "cvt_u32_f64": _row("u32", "f64", _to(U32)),
    "cvt_i16_f16": _row("i16", "f16", _to(I16)), "cvt_u16_f16": _row("u16", "f16", _to(U16)),
    "cvt_floor_i32_f32": _row("i32", "f32", lambda a: ar.to_integer(np.floor(a), I32)),
    "cvt_flr_i32_f32": _row("i32", "f32", lambda a: ar.to_integer(np.floor(a), I32)),
    "cvt_i32_i16": _row("i32", "i16", _cast(I32)), "cvt_u32_u16": _row("u32", "u16", _cast(U32)),
    "cvt_pk_bf16_f32": _row("u32", "f32 f32", lambda a, b: pack_halves(to_bf16(a), to_bf16(b))),
    "cvt_pk_f16_f32": _row("u32", "f32 f32", lambda a, b: pack_halves(_f16_bits(a), _f16_bits(b))),
    "cvt_pkrtz_f16_f32": _row("u32", "f32 f32", lambda a, b: pack_halves(f16_toward_zero(a), f16_toward_zero(b))),
    "cvt_pk_u16_u32": _row("u32", "u32 u32", lambda a, b: pack_halves(_clip_u16(a), _clip_u16(b))),
    "cvt_pk_i16_i32": _row("u32", "i32 i32", lambda a, b: pack_halves(_clip_i16(a), _clip_i16(b))),
    "pack_b32_f16": _row("u32", "u16 u16", pack_halves),
    **{f"cvt_f32_ubyte{byte}": _row("f32", "u32", _byte_to_f32(byte)) for byte in range(4)},
}  # fmt: skip
_CONVERT["cvt_pk_rtz_f16_f32"] = _CONVERT["cvt_pkrtz_f16_f32"]


def _f16_bits(a: Array) -> Array:
    return a.astype(F16).view(U16)


def _clip_u16(a: Array) -> Array:
    return np.minimum(a, U32(0xFFFF))


def _clip_i16(a: Array) -> Array:
    return np.clip(a, -32768, 32767).astype(I16).view(U16)


def _bitwise_rows(bits: int) -> dict[str, Row]:
    kind = f"u{bits}"
    two = f"{kind} {kind}"
    rows: _Rows = {
        "and": (two, np.bitwise_and), "or": (two, np.bitwise_or), "xor": (two, np.bitwise_xor),
        "xnor": (two, lambda a, b: ~(a ^ b)), "not": (kind, np.invert), "mov": (kind, lambda a: a),
    }  # fmt: skip
    return {f"{name}_b{bits}": _row(kind, sources, fn) for name, (sources, fn) in rows.items()}


def _shift_rows(bits: int) -> dict[str, Row]:
    """Shifts with the amount first; it has 32 bits for 64-bit values."""
    amount = f"u{min(bits, 32)}"
    return {
        f"lshlrev_b{bits}": _row(f"u{bits}", f"{amount} u{bits}", lambda n, a: ar.shift_left(a, n)),
        f"lshrrev_b{bits}": _row(f"u{bits}", f"{amount} u{bits}", lambda n, a: ar.shift_right(a, n)),
        f"ashrrev_i{bits}": _row(f"i{bits}", f"{amount} i{bits}", lambda n, a: ar.shift_right(a, n)),
    }


def _min_max_rows(kind: str) -> dict[str, Row]:
    two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
    low, high = np.minimum, np.maximum
    rows: _Rows = {
        "min": (two, low), "max": (two, high),
        "min3": (three, lambda a, b, c: low(low(a, b), c)), "max3": (three, lambda a, b, c: high(high(a, b), c)),
        "minmax": (three, lambda a, b, c: high(low(a, b), c)), "maxmin": (three, lambda a, b, c: low(high(a, b), c)),
        "med3": (three, lambda a, b, c: high(low(a, b), low(high(a, b), c))),
    }  # fmt: skip
    return {f"{name}_{kind}": _row(kind, sources, fn) for name, (sources, fn) in rows.items()}


def _wrapping_rows(kind: str) -> dict[str, Row]:
    """Addition and subtraction modulo the width; gfx10 and later spell them with ``nc`` (no carry)."""
    two = f"{kind} {kind}"
    functions: dict[str, Callable[..., Array]] = {
        "add": np.add, "sub": np.subtract, "subrev": lambda a, b: b - a
    }  # fmt: skip
    rows = {}
    for name, function in functions.items():
        rows[f"{name}_{kind}"] = rows[f"{name}_nc_{kind}"] = _row(kind, two, function)
    return rows


def _sum_of_products(kind: str) -> Callable[..., Array]:
    dtype = {"u32": U32, "i32": I32}[kind]
    return lambda a, b, c: a.astype(dtype) * b.astype(dtype) + c.astype(dtype)


_U3 = "u32 u32 u32"
_INTEGER = {
    "add3_u32": _row("u32", _U3, lambda a, b, c: a + b + c),
    "add_lshl_u32": _row("u32", _U3, lambda a, b, c: ar.shift_left(a + b, c)),
    "lshl_add_u32": _row("u32", _U3, lambda a, b, c: ar.shift_left(a, b) + c),
    "lshl_or_b32": _row("u32", _U3, lambda a, b, c: ar.shift_left(a, b) | c),
    "lshl_add_u64": _row("u64", "u64 u32 u64", lambda a, b, c: ar.shift_left(a, b) + c),
    "add_nc_u64": _row("u64", "u64 u64", np.add),
    "and_or_b32": _row("u32", _U3, lambda a, b, c: (a & b) | c),
    "or3_b32": _row("u32", _U3, lambda a, b, c: a | b | c),
    "xor3_b32": _row("u32", _U3, lambda a, b, c: a ^ b ^ c),
    "xad_u32": _row("u32", _U3, lambda a, b, c: (a ^ b) + c),
    "bfi_b32": _row("u32", _U3, lambda a, b, c: (a & b) | (~a & c)),
    "bfe_u32": _row("u32", _U3, lambda a, b, c: ar.bit_field(a, b, c, signed=False)),
    "bfe_i32": _row("u32", _U3, lambda a, b, c: ar.bit_field(a, b, c, signed=True)),
    "bfm_b32": _row("u32", "u32 u32", ar.bit_mask),
    "bfrev_b32": _row("u32", "u32", ar.reverse_bits),
    "perm_b32": _row("u32", _U3, ar.permute_bytes),
    "alignbit_b32": _row("u32", _U3, lambda a, b, c: ar.align(a, b, c & U32(31))),
    "alignbyte_b32": _row("u32", _U3, lambda a, b, c: ar.align(a, b, (c & U32(3)) * U32(8))),
    "bcnt_u32_b32": _row("u32", "u32 u32", lambda a, b: ar.count_ones(a) + b),
    "ffbl_b32": _row("i32", "u32", ar.count_trailing_zeros),
    "ctz_i32_b32": _row("i32", "u32", ar.count_trailing_zeros),
    "ffbh_u32": _row("i32", "u32", ar.count_leading_zeros),
    "clz_i32_u32": _row("i32", "u32", ar.count_leading_zeros),
    "ffbh_i32": _row("i32", "i32", ar.count_leading_signs),
    "cls_i32": _row("i32", "i32", ar.count_leading_signs),
    "mul_lo_u32": _row("u32", "u32 u32", np.multiply),
    "mul_lo_u16": _row("u16", "u16 u16", np.multiply),
    "mul_hi_u32": _row("u32", "u32 u32", ar.multiply_high),
    "mul_hi_i32": _row("i32", "i32 i32", ar.multiply_high),
    "mul_u32_u24": _row("u32", "u32 u32", lambda a, b: ar.low_24(a) * ar.low_24(b)),
    "mul_i32_i24": _row("i32", "i32 i32", lambda a, b: ar.low_24(a) * ar.low_24(b)),
    "mul_hi_u32_u24": _row("u32", "u32 u32", lambda a, b: ar.multiply_high(ar.low_24(a), ar.low_24(b))),
    "mad_u32_u24": _row("u32", _U3, lambda a, b, c: ar.low_24(a) * ar.low_24(b) + c),
    "mad_i32_i24": _row("i32", "i32 i32 i32", lambda a, b, c: ar.low_24(a) * ar.low_24(b) + c),
    "mad_u16": _row("u16", "u16 u16 u16", lambda a, b, c: a * b + c),
    "mad_i16": _row("i16", "i16 i16 i16", lambda a, b, c: a * b + c),
    "mad_u32_u16": _row("u32", "u16 u16 u32", _sum_of_products("u32")),
    "mad_i32_i16": _row("i32", "i16 i16 i32", _sum_of_products("i32")),
    "sad_u32": _row("u32", _U3, lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
    "mov_b64": _row("u64", "u64", lambda a: a.astype(U64)),
}

VECTOR_OPS: dict[str, Row] = {}
for _part in (
    *map(_float_rows, ("f16", "f32", "f64")),
    _FLOAT,
    _CONVERT,
    *map(_bitwise_rows, (16, 32)),
    *map(_shift_rows, (16, 32, 64)),
    *map(_min_max_rows, ("u16", "i16", "u32", "i32")),
    *map(_wrapping_rows, ("u16", "i16", "u32", "i32")),
    _INTEGER,
):
    VECTOR_OPS.update(_part)
