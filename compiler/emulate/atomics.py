"""Atomic read-modify-write of global memory and LDS. Lanes act one after another, lowest first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capwise.emulate.arithmetic import maximum_number, minimum_number
from capwise.emulate.arrays import F16, F32, F64, U16, U32, U64, Array
from capwise.emulate.context import Context, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.float_formats import from_bf16, to_bf16
from capwise.emulate.memory import ByteStore, combine, separate
from capwise.emulate.memory_ops import buffer_addressing, buffer_operands, global_addressing
from capwise.emulate.operands import Operand
from capwise.emulate.parser import Inst
from capwise.emulate.transfer import Access, read_data, write_loaded
from capwise.emulate.wave import Waves

Modify = Callable[[int, int], int]  # (memory, operand) -> new memory, as unsigned integers


@dataclass(frozen=True, slots=True)
class Atomic:
    """Bits of the memory operand and what happens to it; ``modify`` is None for compare-and-swap."""

    bits: int
    modify: Modify | None
    compare_first: bool = False  # the comparison value comes before the new one

    @property
    def size(self) -> int:
        return self.bits // 8


# Older names carry the type as a letter in front.
_OLD_NAMES = {
    "smin": ("min", "i"), "smax": ("max", "i"), "umin": ("min", "u"), "umax": ("max", "u"),
    "fmin": ("min", "f"), "fmax": ("max", "f"),
}  # fmt: skip
_SWAPS = frozenset({"swap", "wrxchg", "storexchg"})
_COMPARE_SWAPS = {"cmpswap": False, "cmpstore": False, "cmpst": True}


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _integer_operation(name: str, signed: bool, bits: int) -> Modify | None:
    def key(value: int) -> int:
        return _signed(value, bits) if signed else value

    operations: dict[str, Modify] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "min": lambda a, b: min(a, b, key=key),
        "max": lambda a, b: max(a, b, key=key),
        "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }
    return operations.get(name)


def _float_operation(name: str, bits: int) -> Modify | None:
    unsigned, number = {32: (U32, F32), 64: (U64, F64)}[bits]
    operations: dict[str, Callable[[Array, Array], Any]] = {
        "add": np.add, "min": minimum_number, "max": maximum_number
    }  # fmt: skip
    function = operations.get(name)
    if function is None:
        return None

    def modify(a: int, b: int) -> int:
        x, y = (np.array(v, unsigned).view(number) for v in (a, b))
        return int(np.asarray(function(x, y), number).view(unsigned))

    return modify


def _packed_add(kind: str) -> Modify:
    def modify(a: int, b: int) -> int:
        x, y = (np.array([v], U32).view(U16) for v in (a, b))
        if kind == "f16":
            total = (x.view(F16) + y.view(F16)).view(U16)
        else:
            total = to_bf16(from_bf16(x) + from_bf16(y))
        return int(np.ascontiguousarray(total).view(U32)[0])

    return modify


def parse_atomic(mnemonic: str) -> Atomic:
    """What an atomic instruction does. Raises Unsupported for an operation that is not modelled."""
    name = re.sub(r"^(?:(?:global|flat|buffer)_atomic|ds)_", "", mnemonic)
    name, wide = re.subn(r"_x2$", "", name.replace("_rtn", ""))
    match = re.fullmatch(r"(.*?)(?:_([uifb]|bf)(16|32|64))?", name)
    assert match is not None
    operation, letter, width = match.groups()
    if operation == "pk_add" and width == "16":
        return Atomic(32, _packed_add(letter + width))
    bits = 64 if wide else int(width or 32)
    operation, letter = _OLD_NAMES.get(operation, (operation, letter))
    if operation in _COMPARE_SWAPS:
        return Atomic(bits, None, _COMPARE_SWAPS[operation])
    modify: Modify | None
    if operation in _SWAPS:
        modify = lambda a, b: b
    elif letter == "f":
        modify = _float_operation(operation, bits)
    else:
        modify = _integer_operation(operation, letter == "i", bits)
    if modify is None:
        raise Unsupported("unknown atomic operation")
    return Atomic(bits, modify)


def _apply(store: ByteStore, places: Array, data: list[Array], atomic: Atomic) -> list[Array]:
    """Run the lanes in order; the old memory values of each lane as words."""
    words, size, old = atomic.size // 4, atomic.size, []
    for lane, place in enumerate(places.tolist()):
        current = store.get_integer(place, size)
        first = combine(data[:words], lane)
        if atomic.modify is not None:
            new = atomic.modify(current, first)
        else:
            second = combine(data[words:], lane)
            expected, wanted = (first, second) if atomic.compare_first else (second, first)
            new = wanted if current == expected else current
        store.put_integer(place, size, new)
        old.append(current)
    return separate(old, words)


def _returns(inst: Inst) -> bool:
    """Whether a global atomic gives back the old value."""
    return inst.flag("sc0") or inst.flag("glc") or "RETURN" in inst.word("th")


def build_global_atomic(inst: Inst, ctx: Context) -> Step:
    """global_atomic and buffer_atomic."""
    atomic, returns = parse_atomic(inst.mnemonic), _returns(inst)
    if inst.mnemonic.startswith("buffer_"):
        operands = buffer_operands(inst, ctx)
        target = data = operands[0]
        address = buffer_addressing(inst, operands)
    else:
        operands = ctx.operands(inst)
        target = operands.pop(0) if returns else Operand("null")
        data = operands[1]
        scalar = operands[2] if len(operands) > 2 else None
        address = global_addressing(operands[0], scalar, inst.integer("offset"))
    access = Access(atomic.size)
    operand = Access(atomic.size * (1 if atomic.modify else 2))
    memory = ctx.memory

    def step(w: Waves) -> None:
        lanes, addresses = address(w, access.size)
        if lanes.any():
            places = memory.translate(addresses[lanes], access.size, store=True)
            old = _apply(memory.store, places, read_data(w, data, operand, lanes), atomic)
            if returns:
                write_loaded(w, target, old, access, lanes)

    return step


def build_lds_atomic(inst: Inst, ctx: Context) -> Step:
    """ds_add_u32 and kin; the ``rtn`` forms give back the old value."""
    atomic, returns, offset = parse_atomic(inst.mnemonic), "_rtn" in inst.mnemonic, inst.integer("offset")
    operands = ctx.operands(inst)
    target = operands.pop(0) if returns else Operand("null")
    address, *data = operands
    access = Access(atomic.size)

    def step(w: Waves) -> None:
        active = w.exec
        if not active.any():
            return
        places = ctx.lds.locate(w, w.v(address.index).astype(np.int64)[active] + offset, access.size, active)
        words = [word for source in data for word in read_data(w, source, access, active)]
        old = _apply(ctx.lds.store, places, words, atomic)
        if returns:
            write_loaded(w, target, old, access, active)

    return step
