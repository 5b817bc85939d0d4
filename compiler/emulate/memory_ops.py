"""Loads and stores of global memory (global, flat, buffer and scalar instructions) and of scratch."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from capwise.emulate.arrays import I32, I64, U32, Array, join, sign_extend
from capwise.emulate.context import Context, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Operand, Read, scalar_source
from capwise.emulate.parser import Inst
from capwise.emulate.transfer import Access, parse_access, read_data, write_loaded
from capwise.emulate.wave import Waves

# (waves, bytes of the access) -> (lanes that access memory, address of every lane), both (n, lanes)
Addressing = Callable[[Waves, int], tuple[Array, Array]]


# -- addresses
def global_addressing(vector: Operand, scalar: Operand | None, offset: int) -> Addressing:
    """A 64-bit vector address, or a 64-bit scalar base plus a 32-bit unsigned vector offset."""
    if scalar is not None and scalar.file != "null":
        base = scalar.index

        def from_base(w: Waves, size: int) -> tuple[Array, Array]:
            address = w.s64(base).astype(I64)[:, None] + w.v(vector.index).astype(I64) + offset
            return w.exec, w.broadcast(address)

        return from_base

    def from_pair(w: Waves, size: int) -> tuple[Array, Array]:
        return w.exec, w.broadcast(join(w.v(vector.index), w.v(vector.index + 1)).astype(I64) + offset)

    return from_pair


def buffer_addressing(inst: Inst, operands: list[Operand]) -> Addressing:
    """The last operands are address, resource and scalar offset. Lanes beyond the resource's size access nothing.

    The range check covers the vector and the immediate offset, not the scalar one.
    """
    if inst.flag("idxen"):
        raise Unsupported("a structured buffer")
    vector, resource, scalar = operands[-3:]
    offset, has_vector_offset = inst.integer("offset"), inst.flag("offen")
    scalar_offset: Read = scalar_source(scalar, "u32")

    def addresses(w: Waves, size: int) -> tuple[Array, Array]:
        row = resource.index
        base = join(w.s(row), w.s(row + 1) & U32(0xFFFF)).astype(I64)
        records = w.s(row + 2).astype(I64)
        within = w.v(vector.index).astype(I64) if has_vector_offset else np.zeros((w.n, w.lanes), I64)
        within = within + offset
        in_range = w.exec & (within + size <= records[:, None])
        return in_range, (base + scalar_offset(w).astype(I64))[:, None] + within

    return addresses


def buffer_operands(inst: Inst, ctx: Context) -> list[Operand]:
    """The operands with an absent vector address made explicit."""
    operands = ctx.operands(inst)
    if not inst.flag("offen") and not inst.flag("idxen") and "off" not in inst.operands:
        operands.insert(len(operands) - 2, Operand("null"))
    return operands


# -- loads and stores
def _load(ctx: Context, target: Operand, address: Addressing, access: Access, *, zero_fill: bool) -> Step:
    """``zero_fill`` writes 0 in active lanes that the addressing left out (buffer loads beyond the resource)."""
    memory = ctx.memory

    def step(w: Waves) -> None:
        lanes, addresses = address(w, access.size)
        words = [np.zeros(0, U32)] * access.registers
        if lanes.any():
            words = memory.store.load(memory.translate(addresses[lanes], access.size), access.size)
        if zero_fill:
            words, lanes = [_spread(word, lanes)[w.exec] for word in words], w.exec
        write_loaded(w, target, words, access, lanes)

    return step


def _spread(word: Array, lanes: Array) -> Array:
    full = np.zeros(lanes.shape, U32)
    full[lanes] = word
    return full


def _store(ctx: Context, source: Operand, address: Addressing, access: Access) -> Step:
    memory = ctx.memory

    def step(w: Waves) -> None:
        lanes, addresses = address(w, access.size)
        if lanes.any():
            places = memory.translate(addresses[lanes], access.size, store=True)
            memory.store.store(places, access.size, read_data(w, source, access, lanes))

    return step


def _load_to_lds(ctx: Context, address: Addressing, access: Access, offset: int) -> Step:
    """A load whose lanes write consecutive LDS elements from M0 on; sub-dword elements take a dword each."""
    memory, stride = ctx.memory, max(access.size, 4)

    def step(w: Waves) -> None:
        lanes, addresses = address(w, access.size)
        if not w.exec.any():
            return
        words = [np.zeros(0, U32)] * access.registers
        if lanes.any():
            words = memory.store.load(memory.translate(addresses[lanes], access.size), access.size)
        if access.signed:
            words = [sign_extend(words[0], 8 * access.size)]
        base = (w.s(ctx.m0_row) & U32(0x3FFFF)).astype(I64) + offset
        places = w.broadcast(base[:, None] + np.arange(w.lanes) * stride)[w.exec]
        ctx.lds.write(w, places, stride, [_spread(word, lanes)[w.exec] for word in words], w.exec)

    return step


def build_global(inst: Inst, ctx: Context) -> Step:
    """global_load, global_store, their flat forms, and global_load_lds."""
    operands, offset, access = ctx.operands(inst), inst.integer("offset"), parse_access(inst)
    if "_lds_" in inst.mnemonic:
        return _load_to_lds(ctx, global_addressing(operands[0], operands[1], offset), access, offset)
    scalar = operands[2] if len(operands) > 2 else None
    if "_load_" in inst.mnemonic:
        return _load(ctx, operands[0], global_addressing(operands[1], scalar, offset), access, zero_fill=False)
    return _store(ctx, operands[1], global_addressing(operands[0], scalar, offset), access)


def build_buffer(inst: Inst, ctx: Context) -> Step:
    operands, access = buffer_operands(inst, ctx), parse_access(inst)
    address = buffer_addressing(inst, operands)
    if inst.flag("lds"):
        return _load_to_lds(ctx, address, access, inst.integer("offset"))
    if "_load_" in inst.mnemonic:
        return _load(ctx, operands[0], address, access, zero_fill=True)
    return _store(ctx, operands[0], address, access)


def build_scalar_load(inst: Inst, ctx: Context) -> Step:
    """s_load and s_buffer_load of dwords, bytes or shorts."""
    match = re.fullmatch(r"s_(buffer_)?load_(dwordx?|[bui])(\d*)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown scalar load")
    is_buffer, unit, count = match.groups()
    size = 4 * int(count or 1) if unit.startswith("dword") else int(count) // 8
    target, base, *offsets = ctx.operands(inst)
    constant = inst.integer("offset") + sum(int(op.value) for op in offsets if op.file == "const")
    registers = [op.index for op in offsets if op.file == "sgpr"]
    high_mask = U32(0xFFFF if is_buffer else 0xFFFFFFFF)

    def step(w: Waves) -> None:
        address = join(w.s(base.index), w.s(base.index + 1) & high_mask).astype(I64) + constant
        for register in registers:
            address = address + w.s(register).astype(I64)
        words = ctx.memory.store.load(ctx.memory.translate(address, size), size)
        if unit == "i":
            words = [sign_extend(words[0], 8 * size)]
        for i, word in enumerate(words):
            w.set_s(target.index + i, word)

    return step


# -- scratch
def build_scratch(inst: Inst, ctx: Context) -> Step:
    """scratch_load and scratch_store: private memory at a vector offset, a scalar offset, both or neither."""
    access, offset, operands = parse_access(inst), inst.integer("offset"), ctx.operands(inst)
    loads = "_load_" in inst.mnemonic
    data, vector = (operands[0], operands[1]) if loads else (operands[1], operands[0])
    scalar = operands[2] if len(operands) > 2 else Operand("null")

    def step(w: Waves) -> None:
        active = w.exec
        if not active.any():
            return
        address = np.full((w.n, w.lanes), offset, I64)
        if vector.is_vector:
            address = address + w.v(vector.index).view(I32)
        if scalar.file == "sgpr":
            address = address + w.s(scalar.index).view(I32).astype(I64)[:, None]
        places = ctx.scratch.locate(w, address, access.size, active)
        if loads:
            write_loaded(w, data, ctx.scratch.store.load(places, access.size), access, active)
        else:
            ctx.scratch.store.store(places, access.size, read_data(w, data, access, active))

    return step
