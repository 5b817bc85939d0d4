"""Loads and stores of the local data share."""

from __future__ import annotations

import re

import numpy as np

from capwise.emulate.arrays import I64, U8, U16, U32, Array
from capwise.emulate.context import Context, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Operand
from capwise.emulate.parser import Inst
from capwise.emulate.transfer import Access, parse_access, read_data, write_loaded
from capwise.emulate.wave import Waves

_TWO_ADDRESSES = re.compile(r"ds_(read|write|load|store)_?2(?:addr)?_?(?:(st64|stride64)_)?b(32|64)")


def build_lds(inst: Inst, ctx: Context) -> Step:
    """ds_read and ds_write (ds_load and ds_store) of one element a lane."""
    access, offset, operands = parse_access(inst), inst.integer("offset"), ctx.operands(inst)
    loads = re.match(r"ds_(read|load)", inst.mnemonic) is not None
    data, address = (operands[0], operands[1]) if loads else (operands[1], operands[0])

    def step(w: Waves) -> None:
        active = w.exec
        if not active.any():
            return
        places = _addresses(w, address, offset, active)
        if loads:
            write_loaded(w, data, ctx.lds.load(w, places, access.size, active), access, active)
        else:
            ctx.lds.write(w, places, access.size, read_data(w, data, access, active), active)

    return step


def _addresses(w: Waves, address: Operand, offset: int, active: Array) -> Array:
    values: Array = w.v(address.index).astype(I64)[active] + offset
    return values


def build_lds_two_addresses(inst: Inst, ctx: Context) -> Step:
    """ds_read2 and ds_write2: two elements at offsets counted in elements, or in 64 elements for the stride forms."""
    match = _TWO_ADDRESSES.fullmatch(inst.mnemonic)
    if match is None:
        raise Unsupported("unknown LDS instruction")
    element = Access(int(match.group(3)) // 8)
    unit = element.size * (64 if match.group(2) else 1)
    offsets = [inst.integer(name) * unit for name in ("offset0", "offset1")]
    operands = ctx.operands(inst)
    if match.group(1) in ("read", "load"):
        return _load_two(ctx, operands[0], operands[1], offsets, element)
    return _store_two(ctx, operands[0], operands[1:], offsets, element)


def _load_two(ctx: Context, target: Operand, address: Operand, offsets: list[int], element: Access) -> Step:
    both = Access(2 * element.size)

    def step(w: Waves) -> None:
        active = w.exec
        if active.any():
            words = [
                word
                for offset in offsets
                for word in ctx.lds.load(w, _addresses(w, address, offset, active), element.size, active)
            ]
            write_loaded(w, target, words, both, active)

    return step


def _store_two(ctx: Context, address: Operand, data: list[Operand], offsets: list[int], element: Access) -> Step:
    def step(w: Waves) -> None:
        active = w.exec
        if active.any():
            for source, offset in zip(data, offsets, strict=True):
                words = read_data(w, source, element, active)
                ctx.lds.write(w, _addresses(w, address, offset, active), element.size, words, active)

    return step


def build_lds_transpose(inst: Inst, ctx: Context) -> Step:
    """ds_read_b64_tr: every lane loads 8 bytes, then each group of 16 lanes transposes its elements of 8 or 16 bits."""
    match = re.fullmatch(r"ds_read_b64_tr_b(8|16)", inst.mnemonic)
    if match is None:
        raise Unsupported("unknown LDS transpose")
    dtype = U8 if match.group(1) == "8" else U16
    count = 64 // int(match.group(1))  # elements a lane
    target, address = ctx.operands(inst)
    offset, lane = inst.integer("offset"), np.arange(ctx.lanes)
    within = lane & 15
    source_lane = (lane & ~15)[:, None] + (16 // count) * np.arange(count) + (within // count)[:, None]
    source_element = np.broadcast_to((within % count)[:, None], source_lane.shape)

    def step(w: Waves) -> None:
        active = w.exec
        raw = np.zeros((w.n, w.lanes, 2), U32)
        for i, word in enumerate(ctx.lds.load(w, _addresses(w, address, offset, active), 8, active)):
            raw[..., i][active] = word
        elements = raw.view(dtype)
        moved = np.ascontiguousarray(elements[:, source_lane, source_element]).view(U32)
        for i in range(2):
            w.set_v(target.index + i, moved[..., i], accumulator=target.is_agpr)

    return step
