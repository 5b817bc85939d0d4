"""Between memory words and registers: what the suffix of a load or store says, and the reads and writes it implies."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from capwise.emulate.arrays import U32, Array, sign_extend
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Operand
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves

# Suffix -> bytes and whether the value is sign-extended.
_SUFFIXES = {
    "ubyte": (1, False), "sbyte": (1, True), "byte": (1, False), "u8": (1, False), "i8": (1, True), "b8": (1, False),
    "ushort": (2, False), "sshort": (2, True), "short": (2, False),
    "u16": (2, False), "i16": (2, True), "b16": (2, False),
    "dword": (4, False), "dwordx2": (8, False), "dwordx3": (12, False), "dwordx4": (16, False),
    "b32": (4, False), "b64": (8, False), "b96": (12, False), "b128": (16, False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes a lane moves. ``half`` is "l" or "h" where only that half of the register takes part, else empty."""

    size: int
    signed: bool = False
    half: str = ""

    @property
    def registers(self) -> int:
        return max(self.size // 4, 1)


def parse_access(inst: Inst) -> Access:
    """The access of a load or store. Raises Unsupported for a suffix that is not modelled."""
    match = re.search(r"_(?:load|store|read|write)_(?:lds_)?(.*)$", inst.mnemonic)
    suffix = match.group(1) if match else ""
    d16 = re.search(r"_?d16(_hi)?_?", suffix)
    name = suffix.replace(d16.group(0), "") if d16 else suffix
    if name not in _SUFFIXES:
        raise Unsupported("unknown memory instruction")
    half = "" if d16 is None else "h" if d16.group(1) else "l"
    return Access(*_SUFFIXES[name], half)


def write_loaded(w: Waves, target: Operand, words: list[Array], access: Access, active: Array) -> None:
    """Put loaded words, one value for each active lane, into the registers from ``target`` on."""
    half = target.half or access.half
    for i, word in enumerate(words):
        if access.size < 4 and access.signed:
            word = sign_extend(word, 8 * access.size)
        full = np.zeros(active.shape, U32)
        full[active] = word
        if access.size < 4 and half:
            old = w.a(target.index) if target.is_agpr else w.v(target.index)
            kept, moved = (U32(0xFFFF), full << U32(16)) if half == "h" else (U32(0xFFFF0000), full & U32(0xFFFF))
            full = (old & kept) | moved
        w.set_v(target.index + i, full, active, accumulator=target.is_agpr)


def read_data(w: Waves, source: Operand, access: Access, active: Array) -> list[Array]:
    """The words that the active lanes store, from the registers from ``source`` on."""
    read = w.a if source.is_agpr else w.v
    words = [read(source.index + i)[active] for i in range(access.registers)]
    if access.size < 4 and "h" in (source.half, access.half):
        words = [words[0] >> U32(16)]
    return words
