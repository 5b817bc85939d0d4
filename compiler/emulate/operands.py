"""Operands of an instruction: parsing them, and turning them into functions that read values from the waves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capwise.emulate.arrays import DTYPES, F16, F32, F64, HALF_KINDS, PAIR_KINDS, U16, U32, U64, Array, join, kind_bits
from capwise.emulate.errors import Unsupported
from capwise.emulate.wave import EXEC, NULL, TTMP, VCC, Waves

Read = Callable[[Waves], Array]

_INLINE_FLOATS = {text: float(text) for text in ("0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0")}
_ONE_OVER_TWO_PI = 0.15915494309189535
_REGISTER = re.compile(r"(v|s|a|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])")
_FILES = {"v": "vgpr", "a": "agpr", "s": "sgpr", "ttmp": "sgpr"}
_NAMED_SGPRS = {
    "vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1,
    "flat_scratch": 102, "flat_scratch_lo": 102, "flat_scratch_hi": 103,
    "xnack_mask": 104, "xnack_mask_lo": 104, "xnack_mask_hi": 105,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """A register, a constant, SCC or nothing, with its input modifiers.

    ``file`` is one of ``vgpr agpr sgpr scc const null``; ``null`` also stands for an absent address (``off``).
    """

    file: str
    index: int = NULL
    value: float = 0
    is_float: bool = False
    is_literal: bool = False
    negate: bool = False
    absolute: bool = False
    sext: bool = False
    half: str = ""  # "l" or "h" where the text names half a register

    @property
    def is_vector(self) -> bool:
        return self.file in ("vgpr", "agpr")

    @property
    def is_agpr(self) -> bool:
        return self.file == "agpr"

    def bare(self) -> Operand:
        """The operand without its input modifiers."""
        return replace(self, negate=False, absolute=False, sext=False)


def _strip_modifiers(text: str) -> tuple[str, dict[str, bool]]:
    found: dict[str, bool] = {}
    while True:
        match = re.fullmatch(r"(sext|neg|abs)\((.*)\)|\|(.*)\|", text)
        if match:
            name = match.group(1) or "abs"
            text = match.group(2) if match.group(1) else match.group(3)
        elif re.match(r"-(\||[vas]\[?\d|vcc|ttmp)", text):
            name, text = "neg", text[1:]
        else:
            return text, found
        found[name] = True


def parse_operand(text: str, symbols: Mapping[str, int], m0_row: int) -> Operand:
    """Parse one operand; ``symbols`` are those of the assembler, ``m0_row`` is the row of M0. Raises Unsupported."""
    original = text
    text, found = _strip_modifiers(text)
    half = text[-1] if text.endswith((".l", ".h")) else ""
    modifiers: dict[str, Any] = {
        "negate": "neg" in found, "absolute": "abs" in found, "sext": "sext" in found, "half": half
    }  # fmt: skip
    text = text[:-2] if half else text
    match = _REGISTER.fullmatch(text)
    if match:
        index = int(match.group(2) or match.group(3))
        shift = TTMP if match.group(1) == "ttmp" else 0
        return Operand(_FILES[match.group(1)], index + shift, **modifiers)
    if text == "m0" or text in _NAMED_SGPRS:
        return Operand("sgpr", m0_row if text == "m0" else _NAMED_SGPRS[text], **modifiers)
    if text in ("scc", "src_scc"):
        return Operand("scc")
    if text in ("null", "off"):
        return Operand("null")
    return replace(_parse_constant(text, symbols, original), **modifiers)


def _parse_constant(text: str, symbols: Mapping[str, int], original: str) -> Operand:
    if text in _INLINE_FLOATS:
        return Operand("const", value=_INLINE_FLOATS[text], is_float=True)
    if text.startswith("0.1591549"):
        return Operand("const", value=_ONE_OVER_TWO_PI, is_float=True)
    inner = re.fullmatch(r"lit(?:64)?\((.*)\)", text)
    text = inner.group(1) if inner else text
    if text in symbols:
        return Operand("const", value=symbols[text], is_literal=True)
    try:
        value = int(text, 0)
    except ValueError:
        raise Unsupported(f"operand {original!r}") from None
    is_literal = original.startswith("lit(") or text.startswith("0x") or not -16 <= value <= 64
    return Operand("const", value=value, is_literal=is_literal)


def constant_bits(op: Operand, kind: str) -> Array:
    """The constant as a 0-d array of the kind's dtype (raw uint16 bits for bf16)."""
    bits = kind_bits(kind)
    if op.is_float:
        return _float_constant(op.value, kind)
    value = int(op.value)
    if kind == "f64" and op.is_literal:  # a 32-bit literal is the high half of a double
        value = (value & 0xFFFFFFFF) << 32
    unsigned = np.array(value & ((1 << bits) - 1), DTYPES[f"u{bits}"])
    return unsigned.view(DTYPES[kind])


def _float_constant(value: float, kind: str) -> Array:
    single = np.array(value, F32).view(U32)
    if kind in ("f16", "f64"):
        return np.array(value, DTYPES[kind])
    if kind == "bf16":
        return (single >> U32(16)).astype(U16)
    if kind in PAIR_KINDS:
        return np.array(value, F64).view(U64).view(DTYPES[kind])
    # An integer operation sees the single-precision pattern, cut to its width.
    return single.astype(DTYPES[f"u{kind_bits(kind)}"]).view(DTYPES[kind])


def modify(values: Array, op: Operand, kind: str) -> Array:
    """Apply the operand's absolute value and sign flip, in the order the hardware does."""
    if not (op.absolute or op.negate):
        return values
    if kind == "bf16":
        values = values & U16(0x7FFF) if op.absolute else values
        return values ^ U16(0x8000) if op.negate else values
    if kind[0] != "f":
        raise Unsupported("a sign modifier on an integer operand")
    values = np.abs(values) if op.absolute else values
    return -values if op.negate else values


def _register_reader(op: Operand) -> Callable[[Waves, int], Array]:
    if op.file == "vgpr":
        return lambda w, r: w.v(r)
    if op.file == "agpr":
        return lambda w, r: w.a(r)
    return lambda w, r: w.s(r)[:, None]


def vector_source(op: Operand, kind: str, *, high: bool = False) -> Read:
    """A function that reads the operand as ``kind``, broadcastable to (n, lanes); ``high`` picks the upper half."""
    dtype = DTYPES[kind]
    if op.file == "const":
        constant = modify(constant_bits(op, kind), op, kind).reshape(1, 1)
        return lambda w: constant
    if op.file == "null":
        zero = np.zeros((1, 1), dtype)
        return lambda w: zero
    if op.file == "scc":
        return lambda w: w.scc().astype(dtype)[:, None]
    read = _typed(op, kind, high)
    if op.absolute or op.negate:
        modify(np.zeros(1, dtype), op, kind)  # an integer kind is refused here, before anything runs
        return lambda w: modify(read(w), op, kind)
    return read


def _typed(op: Operand, kind: str, high: bool) -> Read:
    dtype, index, register = DTYPES[kind], op.index, _register_reader(op)
    if kind in PAIR_KINDS:
        return lambda w: join(register(w, index), register(w, index + 1)).view(dtype)
    if kind in HALF_KINDS:
        shift = U32(16 if high or op.half == "h" else 0)
        return lambda w: (register(w, index) >> shift).astype(U16).view(dtype)
    if kind == "u32":
        return lambda w: register(w, index)
    return lambda w: register(w, index).view(dtype)


def scalar_source(op: Operand, kind: str) -> Read:
    """A function that reads a scalar operand as ``kind``, broadcastable to (n,). Raises Unsupported for a vector."""
    if op.is_vector:
        raise Unsupported("a vector register as a scalar operand")
    dtype, index = DTYPES[kind], op.index
    if op.file == "const":
        constant = constant_bits(op, kind).reshape(1)
        return lambda w: constant
    if op.file == "null":
        zero = np.zeros(1, dtype)
        return lambda w: zero
    if op.file == "scc":
        return lambda w: w.scc().astype(dtype)
    if kind in PAIR_KINDS:
        return lambda w: w.s64(index).view(dtype)
    if kind == "f16":
        return lambda w: w.s(index).astype(U16).view(F16)
    return lambda w: w.s(index).view(dtype)


def lane_mask(op: Operand, lanes: int) -> Read:
    """A function that reads the operand as one bit per lane: bool, broadcastable to (n, lanes)."""
    if op.file == "const":
        bits = np.array([[(int(op.value) >> lane) & 1 for lane in range(lanes)]], bool)
        return lambda w: bits
    index = op.index
    return lambda w: w.mask(index)
