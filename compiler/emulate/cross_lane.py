"""Instructions that move values between lanes, or between lanes and scalar registers."""

from __future__ import annotations

import re
from typing import cast

import numpy as np

from capwise.emulate.arithmetic import count_ones
from capwise.emulate.arrays import I64, U32, U64, Array
from capwise.emulate.context import Context, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Read, scalar_source, vector_source
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves


def build_read_lane(inst: Inst, ctx: Context) -> Step:
    """v_readlane takes the lane from a scalar; v_readfirstlane takes the first active lane, lane 0 if none is."""
    target, source, *lane_operand = ctx.operands(inst)
    read = vector_source(source, "u32")
    lane: Read | None = scalar_source(lane_operand[0], "u32") if lane_operand else None

    def step(w: Waves) -> None:
        values = w.broadcast(read(w))
        # argmax of a row without an active lane is 0 already
        chosen = w.per_wave(lane(w)).astype(I64) % w.lanes if lane else w.exec.argmax(axis=1)
        w.set_s(target.index, values[np.arange(w.n), chosen])

    return step


def build_write_lane(inst: Inst, ctx: Context) -> Step:
    """v_writelane: one lane of a vector register, whether active or not."""
    target, source, lane_operand = ctx.operands(inst)
    value, lane = scalar_source(source, "u32"), scalar_source(lane_operand, "u32")

    def step(w: Waves) -> None:
        chosen = w.per_wave(lane(w)).astype(I64)[:, None] % w.lanes
        w.set_v(target.index, w.broadcast(value(w)[:, None]), np.arange(w.lanes)[None] == chosen)

    return step


def build_permlane16(inst: Inst, ctx: Context) -> Step:
    """v_permlane16: four selector bits per lane of a row; v_permlanex16 reads the other row of the 32 lanes."""
    target, source, low, high = ctx.operands(inst)
    read = vector_source(source, "u32")
    select_low, select_high = scalar_source(low, "u32"), scalar_source(high, "u32")
    fetch_inactive, bound_ctrl = (bool(v) for v in inst.integers("op_sel", [0, 0])[:2])
    lane = np.arange(ctx.lanes)
    row = (lane & ~15) ^ (16 if "permlanex16" in inst.mnemonic else 0)
    shift = (4 * (lane & 15)).astype(U64)

    def step(w: Waves) -> None:
        selector = w.per_wave(select_low(w)).astype(U64) | (w.per_wave(select_high(w)).astype(U64) << U64(32))
        source_lane = row + ((selector[:, None] >> shift) & U64(15)).astype(I64)
        values = np.take_along_axis(w.broadcast(read(w)), source_lane, 1)
        valid = np.take_along_axis(w.exec, source_lane, 1) | fetch_inactive
        w.set_v(target.index, np.where(valid, values, U32(0)), w.exec & (valid | bound_ctrl))

    return step


def build_permlane_swap(inst: Inst, ctx: Context) -> Step:
    """v_permlane16_swap and v_permlane32_swap.

    The odd rows of the first register change places with the even rows of the second; EXEC is not consulted.
    """
    width = 32 if "permlane32" in inst.mnemonic else 16
    first, second = (op.index for op in ctx.operands(inst))
    lane = np.arange(ctx.lanes)
    odd = (lane & width) != 0

    def step(w: Waves) -> None:
        a, b = w.v(first).copy(), w.v(second).copy()
        everywhere = np.ones((w.n, w.lanes), bool)
        w.set_v(first, np.where(odd, b[:, lane ^ width], a), everywhere)
        w.set_v(second, np.where(odd, b, a[:, lane ^ width]), everywhere)

    return step


def build_mask_count(inst: Inst, ctx: Context) -> Step:
    """v_mbcnt: bits of the mask that belong to lanes below this one, plus the addend."""
    target, mask_operand, addend_operand = ctx.operands(inst)
    mask, addend = ctx.sources([mask_operand, addend_operand], "u32", "u32")
    first = 32 if "_hi_" in inst.mnemonic else 0
    below = np.clip(np.arange(ctx.lanes) - first, 0, 32).astype(U64)
    lower = ((U64(1) << below) - U64(1)).astype(U32)
    return lambda w: w.set_v(target.index, w.broadcast(count_ones(mask(w) & lower) + addend(w)))


# -- through the LDS crossbar, without LDS memory
def build_bpermute(inst: Inst, ctx: Context) -> Step:
    """ds_bpermute pulls from the lane that the address names, ds_permute pushes to it; addresses count bytes."""
    target, address, data = ctx.operands(inst)
    offset, pull = U32(inst.integer("offset")), "bpermute" in inst.mnemonic
    read = vector_source(data, "u32")

    def step(w: Waves) -> None:
        lane = ((w.v(address.index) + offset) >> U32(2)).astype(I64) % w.lanes
        values = w.broadcast(read(w))
        moved = _pull(w, values, lane) if pull else _push(w, values, lane)
        w.set_v(target.index, moved)

    return step


def _pull(w: Waves, values: Array, lane: Array) -> Array:
    """Inactive source lanes give 0."""
    return np.where(np.take_along_axis(w.exec, lane, 1), np.take_along_axis(values, lane, 1), U32(0))


def _push(w: Waves, values: Array, lane: Array) -> Array:
    """The highest lane wins where several push to the same one."""
    moved = np.zeros((w.n, w.lanes), U32)
    for source in range(w.lanes):
        rows = np.nonzero(w.exec[:, source])[0]
        moved[rows, lane[rows, source]] = values[rows, source]
    return moved


def swizzle_lanes(pattern: str, lanes: int) -> Array:
    """The source lane of each lane for the ``offset`` of ds_swizzle, in words or as a number."""
    lane = np.arange(lanes)
    match = re.fullmatch(r"swizzle\((\w+),(.*)\)", pattern)
    if match is None:
        return _swizzle_code(int(pattern, 0), lane)
    name, argument = match.groups()
    if name == "BITMASK_PERM":
        return _bitmask_permutation(argument.strip(' "'), lane)
    numbers = [int(v, 0) for v in argument.split(",")]
    if name == "SWAP":
        return lane ^ numbers[0]
    if name == "REVERSE":
        return lane ^ (numbers[0] - 1)
    if name == "BROADCAST":
        return (lane & ~(numbers[0] - 1)) | numbers[1]
    if name == "QUAD_PERM":
        return cast(Array, (lane & ~3) | np.array(numbers)[lane & 3])
    raise Unsupported(f"swizzle {name}")


def _bitmask_permutation(pattern: str, lane: Array) -> Array:
    """Five letters from the highest bit of the lane: 0 clears it, 1 sets it, i inverts it, p keeps it."""
    for position, letter in enumerate(pattern):
        bit = 16 >> position
        if letter == "0":
            lane = lane & ~bit
        elif letter == "1":
            lane = lane | bit
        elif letter == "i":
            lane = lane ^ bit
    return lane


def _swizzle_code(code: int, lane: Array) -> Array:
    if code >= 0xC000:
        raise Unsupported("rotating swizzle")
    if code & 0x8000:  # four 2-bit lane numbers
        return (lane & ~3) | ((code >> (2 * (lane & 3))) & 3)
    within = (((lane & 31) & (code & 31)) | ((code >> 5) & 31)) ^ ((code >> 10) & 31)
    return cast(Array, (lane & ~31) | within)


def build_swizzle(inst: Inst, ctx: Context) -> Step:
    target, source = ctx.operands(inst)
    lane = swizzle_lanes(inst.word("offset", "0"), ctx.lanes)

    def step(w: Waves) -> None:
        values = w.v(source.index)[:, lane]
        w.set_v(target.index, np.where(w.exec[:, lane], values, U32(0)))

    return step
