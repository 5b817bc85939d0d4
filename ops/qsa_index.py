"""Keys of the attention indexer: one a block of `ratio` tokens, made when the block is complete.

Token t of request r sits at logical position p = seq_lens[r] - (end_r - t), and its raw key is raw_key[t]. A token with
(p + 1) mod ratio == 0 completes block b = p div ratio; its members are the positions p - ratio + 1 .. p. Those of this
chunk are rows of raw_key, older ones are in the request's ring at position mod cap:

    mean  = rnd(sum of the members, oldest first, in float32 / ratio)                rnd: to raw_key's dtype
    key   = rope(rnd(mean * rsqrt(mean(mean^2) + eps) * (1 + norm_weight)))          at the oldest's 3-axis position
    block_keys[page, b mod (page / ratio)] = key       page = block_table[r, b div (page / ratio)]

Afterwards `qsa_commit_` stores the last `cap` raw keys of the chunk and their positions: ring[slot, p mod cap]. The
ring must hold ratio + S positions for S draft tokens, rounded up to a multiple of ratio, else rejected drafts
overwrite keys that a later block needs. Block keys made of rejected drafts are made again before they are visible.

Nothing is read or written for a request whose slot is null, nor written to the null page.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.metadata import NULL_PAGE, page_of, pages_of, place_of, token_requests_reference
from capwise.ops.rope import (
    axis_major,
    axis_of,
    check_positions,
    check_sections,
    layout,
    pair_axes,
    rotate_reference,
    rotated,
    turned,
)
from capwise.ops.search import rounds

NULL_SLOT = 0


def _tokens(raw_key, query_start_loc, seq_lens, state_indices, ring):
    """(request, logical position, slot, whether the token is live and its slot owned, chunk start, chunk end)."""
    row, position = (x.long() for x in token_requests_reference(query_start_loc, seq_lens, raw_key.shape[0]))
    slot, starts = state_indices.long()[row], query_start_loc.long()
    mine = (position >= 0) & (slot > NULL_SLOT) & (slot < ring.shape[0])
    return row, position, torch.where(mine, slot, NULL_SLOT), mine, starts[row], starts[row + 1]


def compress_reference(
    raw_key: torch.Tensor,
    positions: torch.Tensor,
    ring: torch.Tensor,
    ring_positions: torch.Tensor,
    norm_weight: torch.Tensor,
    inv_freq: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    state_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_keys: torch.Tensor,
    sections: Sequence[int],
    eps: float,
    ratio: int,
) -> None:
    """positions [3, T], T >= 1; the rest as for `qsa_compress_`."""
    row, position, slot, mine, start, _ = _tokens(raw_key, query_start_loc, seq_lens, state_indices, ring)
    token, cap, per_page = torch.arange(raw_key.shape[0], device=raw_key.device), ring.shape[1], block_keys.shape[1]
    total, first = torch.zeros(raw_key.shape, device=raw_key.device), None
    for back in range(ratio - 1, -1, -1):
        here, place = token - back >= start, (position - back) % cap
        source = torch.where(here, token - back, 0)
        total = total + torch.where(here[:, None], raw_key[source], ring[slot, place].to(raw_key.dtype)).float()
        if first is None:
            first = torch.where(here, positions[:, source], ring_positions[slot, place].T)
    mean = (total / ratio).to(raw_key.dtype).float()
    scaled = mean * torch.rsqrt(mean.square().mean(-1, keepdim=True) + eps) * (1.0 + norm_weight.float())
    axes = pair_axes(sections, inv_freq.shape[0])
    key = rotate_reference(scaled.to(raw_key.dtype)[:, None], first, inv_freq, axes)[:, 0]
    page = pages_of(row, position, block_table, per_page * ratio)
    writes = mine & ((position + 1) % ratio == 0) & (page > NULL_PAGE) & (page < block_keys.shape[0])
    page, place = torch.where(writes, page, 0), torch.where(writes, position // ratio % per_page, 0)
    block_keys.index_put_((page, place), torch.where(writes[:, None], key.to(block_keys.dtype), block_keys[0, 0]))


def commit_reference(
    raw_key: torch.Tensor,
    positions: torch.Tensor,
    ring: torch.Tensor,
    ring_positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    state_indices: torch.Tensor,
) -> None:
    """positions [3, T], T >= 1; the rest as for `qsa_commit_`."""
    _, position, slot, mine, _, end = _tokens(raw_key, query_start_loc, seq_lens, state_indices, ring)
    token, cap = torch.arange(raw_key.shape[0], device=raw_key.device), ring.shape[1]
    writes = mine & (end - token <= cap)
    at = (torch.where(writes, slot, 0), torch.where(writes, position % cap, 0))
    ring.index_put_(at, torch.where(writes[:, None], raw_key.to(ring.dtype), ring[0, 0]))
    ring_positions.index_put_(at, torch.where(writes[:, None], positions.T, ring_positions[0, 0]))


@jit
def _mean_of_members(
    column, writes, here, token, slot, position, raw_ptr, ring_ptr, cap, width, raw_row, raw_column, ring_slot,
    ring_place, ring_column,
    RATIO: tl.constexpr,
):  # fmt: skip
    """Some columns [C] of the mean of the members of the blocks that some tokens [N] complete -> float32 [N, C].

    here [N]: how many of the newest members are rows of this chunk, the token itself included.
    """
    total = tl.zeros((token.shape[0], column.shape[0]), dtype=tl.float32)
    inside = writes[:, None] & (column < width)[None, :]
    for i in tl.static_range(RATIO):
        back = RATIO - 1 - i
        new = (back < here)[:, None]
        raw_at = (token - back)[:, None] * raw_row + column[None, :] * raw_column
        now = tl.load(raw_ptr + raw_at, mask=inside & new, other=0.0)
        place = (position - back) % cap
        ring_at = (slot * ring_slot + place * ring_place)[:, None] + column[None, :] * ring_column
        before = tl.load(ring_ptr + ring_at, mask=inside & (new == 0), other=0.0)
        total += tl.where(new, now.to(tl.float32), before.to(raw_ptr.dtype.element_ty).to(tl.float32))
    return (total / RATIO).to(raw_ptr.dtype.element_ty).to(tl.float32)


@jit
def _normed(mean, scale, column, weight_ptr, weight_stride, width, dtype: tl.constexpr):
    weight = tl.load(weight_ptr + column * weight_stride, mask=column < width, other=0.0).to(tl.float32)
    return (mean * scale[:, None] * (1.0 + weight)[None, :]).to(dtype).to(tl.float32)


@jit
def _qsa_compress_kernel(
    raw_ptr, positions_ptr, ring_ptr, ring_positions_ptr, weight_ptr, inv_freq_ptr, starts_ptr, lens_ptr, slots_ptr,
    table_ptr, keys_ptr,
    tokens, requests, slots, cap, table_width, pages, per_page, width, eps, raw_row, raw_column, position_axis,
    position_token, ring_slot, ring_place, ring_column, ring_positions_slot, ring_positions_place, ring_positions_axis,
    weight_stride, inv_freq_stride, starts_stride, lens_stride, slots_stride, table_row, table_column, keys_page,
    keys_place, keys_column,
    RATIO: tl.constexpr, PAIRS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    REST: tl.constexpr, ROUNDS: tl.constexpr, BLOCK_T: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    request, position, start, _ = place_of(token, starts_ptr, lens_ptr, requests, starts_stride, lens_stride, ROUNDS)
    slot = tl.load(slots_ptr + request * slots_stride).to(tl.int64)
    completes = (token < tokens) & (position >= 0) & (position % RATIO == RATIO - 1) & (slot > 0) & (slot < slots)
    block = position // RATIO
    page = page_of(request, block, completes, table_ptr, requests, table_width, per_page, table_row, table_column)
    writes = completes & (page > 0) & (page < pages)
    if tl.max(writes.to(tl.int32), 0) > 0:
        dtype: tl.constexpr = raw_ptr.dtype.element_ty
        here = token - start + 1
        low = tl.arange(0, BLOCK)
        high = low + PAIRS
        # Columns past the pairs of the first part are those of the second: each part has its own end.
        first = _mean_of_members(
            low, writes, here, token, slot, position, raw_ptr, ring_ptr, cap, PAIRS, raw_row, raw_column, ring_slot,
            ring_place, ring_column, RATIO,
        )  # fmt: skip
        second = _mean_of_members(
            high, writes, here, token, slot, position, raw_ptr, ring_ptr, cap, 2 * PAIRS, raw_row, raw_column,
            ring_slot, ring_place, ring_column, RATIO,
        )  # fmt: skip
        square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        keys_at = (page * keys_page + (block % per_page) * keys_place)[:, None]
        if REST > 0:
            rest = 2 * PAIRS + tl.arange(0, REST)
            last = _mean_of_members(
                rest, writes, here, token, slot, position, raw_ptr, ring_ptr, cap, width, raw_row, raw_column,
                ring_slot, ring_place, ring_column, RATIO,
            )  # fmt: skip
            square += tl.sum(last * last, 1)
        scale = 1.0 / tl.sqrt(square / width + eps)
        if REST > 0:
            kept = _normed(last, scale, rest, weight_ptr, weight_stride, width, dtype)
            inside = writes[:, None] & (rest < width)[None, :]
            tl.store(keys_ptr + keys_at + rest[None, :] * keys_column, kept.to(keys_ptr.dtype.element_ty), mask=inside)
        axis = axis_of(low, HEIGHT, WIDTH)
        inside = writes[:, None] & (low < PAIRS)[None, :]
        new = (here >= RATIO)[:, None]
        at = (token - (RATIO - 1))[:, None] * position_token + axis[None, :] * position_axis
        now = tl.load(positions_ptr + at, mask=inside & new, other=0).to(tl.int64)
        at = (slot * ring_positions_slot + (position - (RATIO - 1)) % cap * ring_positions_place)[:, None]
        at += axis[None, :] * ring_positions_axis
        before = tl.load(ring_positions_ptr + at, mask=inside & (new == 0), other=0).to(tl.int64)
        frequency = tl.load(inv_freq_ptr + low * inv_freq_stride, mask=low < PAIRS, other=0.0).to(tl.float32)
        cos, sin = turned(tl.where(new, now, before).to(tl.float32) * frequency[None, :], dtype)
        first = _normed(first, scale, low, weight_ptr, weight_stride, PAIRS, dtype)
        second = _normed(second, scale, high, weight_ptr, weight_stride, 2 * PAIRS, dtype)
        first, second = rotated(first, second, cos, sin, dtype)
        keys_type: tl.constexpr = keys_ptr.dtype.element_ty
        tl.store(keys_ptr + keys_at + low[None, :] * keys_column, first.to(keys_type), mask=inside)
        tl.store(keys_ptr + keys_at + high[None, :] * keys_column, second.to(keys_type), mask=inside)


@jit
def _qsa_commit_kernel(
    raw_ptr, positions_ptr, ring_ptr, ring_positions_ptr, starts_ptr, lens_ptr, slots_ptr,
    tokens, requests, slots, cap, width, raw_row, raw_column, position_axis, position_token, ring_slot, ring_place,
    ring_column, ring_positions_slot, ring_positions_place, ring_positions_axis, starts_stride, lens_stride,
    slots_stride,
    ROUNDS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    request, position, _, end = place_of(token, starts_ptr, lens_ptr, requests, starts_stride, lens_stride, ROUNDS)
    slot = tl.load(slots_ptr + request * slots_stride).to(tl.int64)
    writes = (token < tokens) & (position >= 0) & (end - token <= cap) & (slot > 0) & (slot < slots)
    if tl.max(writes.to(tl.int32), 0) > 0:
        row, place, column = token[:, None], (position % cap)[:, None], tl.arange(0, BLOCK)[None, :]
        inside = writes[:, None] & (column < width)
        value = tl.load(raw_ptr + row * raw_row + column * raw_column, mask=inside, other=0.0)
        at = slot[:, None] * ring_slot + place * ring_place + column * ring_column
        tl.store(ring_ptr + at, value.to(ring_ptr.dtype.element_ty), mask=inside)
        axis = tl.arange(0, 4)[None, :].to(tl.int64)
        inside = writes[:, None] & (axis < 3)
        where = tl.load(positions_ptr + row * position_token + axis * position_axis, mask=inside, other=0)
        at = slot[:, None] * ring_positions_slot + place * ring_positions_place + axis * ring_positions_axis
        tl.store(ring_positions_ptr + at, where.to(ring_positions_ptr.dtype.element_ty), mask=inside)


def _launch_compress(
    raw_key, positions, ring, ring_positions, norm_weight, inv_freq, query_start_loc, seq_lens, state_indices,
    block_table, block_keys, sections, eps, ratio,
) -> None:  # fmt: skip
    tokens, requests = raw_key.shape[0], state_indices.shape[0]
    block_t = block(tokens, raw_key, gpu=4, cpu=64)
    _qsa_compress_kernel[(-(-tokens // block_t),)](
        raw_key,
        positions,
        ring,
        ring_positions,
        norm_weight,
        inv_freq,
        query_start_loc,
        seq_lens,
        state_indices,
        block_table,
        block_keys,
        tokens,
        requests,
        *ring.shape[:2],
        block_table.shape[1],
        *block_keys.shape,
        eps,
        *raw_key.stride(),
        *positions.stride(),
        *ring.stride(),
        *ring_positions.stride(),
        norm_weight.stride(0),
        inv_freq.stride(0),
        query_start_loc.stride(0),
        seq_lens.stride(0),
        state_indices.stride(0),
        *block_table.stride(),
        *block_keys.stride(),
        RATIO=ratio,
        **layout(inv_freq, sections, raw_key.shape[1]),
        ROUNDS=rounds(requests),
        BLOCK_T=block_t,
    )


def _launch_commit(raw_key, positions, ring, ring_positions, query_start_loc, seq_lens, state_indices) -> None:
    (tokens, width), requests = raw_key.shape, state_indices.shape[0]
    block_t = block(tokens, raw_key, gpu=8, cpu=64)
    _qsa_commit_kernel[(-(-tokens // block_t),)](
        raw_key,
        positions,
        ring,
        ring_positions,
        query_start_loc,
        seq_lens,
        state_indices,
        tokens,
        requests,
        *ring.shape,
        *raw_key.stride(),
        *positions.stride(),
        *ring.stride(),
        *ring_positions.stride(),
        query_start_loc.stride(0),
        seq_lens.stride(0),
        state_indices.stride(0),
        ROUNDS=rounds(requests),
        BLOCK_T=block_t,
        BLOCK=power_of_two(width),
    )


def _check_ring(op, raw_key, positions, ring, ring_positions, query_start_loc, seq_lens, state_indices, token_major):
    tokens, width = raw_key.shape
    check_positions(op, positions, tokens, token_major)
    if ring.dim() != 3 or ring.shape[2] != width or not ring.shape[0] or not ring.shape[1]:
        raise ValueError(f"{op}: ring: expected [slots, cap, {width}], not empty; got {tuple(ring.shape)}")
    if tuple(ring_positions.shape) != (*ring.shape[:2], 3):
        got = tuple(ring_positions.shape)
        raise ValueError(f"{op}: ring_positions: expected {(*ring.shape[:2], 3)}; got {got}")
    requests = query_start_loc.shape[0] - 1
    if (requests < 1 and tokens) or (requests,) != seq_lens.shape or (requests,) != state_indices.shape:
        got = ", ".join(str(tuple(t.shape)) for t in (query_start_loc, seq_lens, state_indices))
        raise ValueError(
            f"{op}: expected query_start_loc [R+1], seq_lens [R], state_indices [R], R >= 1; got {got}"
        )


def _check_blocks(raw_key, norm_weight, inv_freq, block_table, block_keys, sections, ratio, ring, requests) -> None:
    width, op = raw_key.shape[1], "qsa_compress_"
    check_sections(op, sections, inv_freq, width)
    if tuple(norm_weight.shape) != (width,):
        raise ValueError(f"{op}: norm_weight: expected ({width},); got {tuple(norm_weight.shape)}")
    if block_table.dim() != 2 or block_table.shape[0] != requests:
        raise ValueError(f"{op}: block_table: expected [{requests}, NB]; got {tuple(block_table.shape)}")
    if block_keys.dim() != 3 or block_keys.shape[2] != width or not block_keys.numel():
        raise ValueError(
            f"{op}: block_keys: expected [blocks, page/ratio, {width}], not empty; got {tuple(block_keys.shape)}"
        )
    if ratio < 1 or ring.shape[1] < ratio:
        raise ValueError(f"{op}: ratio: expected 1..cap = {ring.shape[1]}, the positions of a ring; got {ratio}")


@torch.library.custom_op("capwise::qsa_compress_", mutates_args={"block_keys"})
def qsa_compress_(
    raw_key: torch.Tensor,
    positions: torch.Tensor,
    ring: torch.Tensor,
    ring_positions: torch.Tensor,
    norm_weight: torch.Tensor,
    inv_freq: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    state_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_keys: torch.Tensor,
    sections: Sequence[int],
    eps: float,
    ratio: int,
    token_major: bool = False,
) -> None:
    """Writes the key of every block that this step completes. Before `qsa_commit_` of the same step.

    Args:
        raw_key: [T, DI], as projected. positions, inv_freq, sections, token_major: as for `mrope`.
        ring: [slots, cap, DI]; ring_positions: int64 [slots, cap, 3]: raw keys of earlier steps, by position mod cap.
        norm_weight: [DI], less one.
        query_start_loc: int [R+1]. seq_lens: int [R], tokens once the step is done. state_indices: int [R], ring
            slots; 0 is the null slot.
        block_table: int [R, NB]; 0 is the null page.
        block_keys: [blocks, page/ratio, DI].
        ratio: tokens a block.

    Raises:
        ValueError: extents that contradict each other.
    """
    op = "qsa_compress_"
    _check_ring(op, raw_key, positions, ring, ring_positions, query_start_loc, seq_lens, state_indices, token_major)
    requests = state_indices.shape[0]
    _check_blocks(raw_key, norm_weight, inv_freq, block_table, block_keys, sections, ratio, ring, requests)
    where = axis_major(positions, token_major)
    if not raw_key.shape[0]:
        return
    run = _launch_compress if on_triton(raw_key) else compress_reference
    run(
        raw_key, where, ring, ring_positions, norm_weight, inv_freq, query_start_loc, seq_lens, state_indices,
        block_table, block_keys, sections, eps, ratio,
    )  # fmt: skip


@qsa_compress_.register_fake
def _(
    raw_key, positions, ring, ring_positions, norm_weight, inv_freq, query_start_loc, seq_lens, state_indices,
    block_table, block_keys, sections, eps, ratio, token_major=False,
):  # fmt: skip
    return None


@torch.library.custom_op("capwise::qsa_commit_", mutates_args={"ring", "ring_positions"})
def qsa_commit_(
    raw_key: torch.Tensor,
    positions: torch.Tensor,
    ring: torch.Tensor,
    ring_positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    state_indices: torch.Tensor,
    token_major: bool = False,
) -> None:
    """Stores the last `cap` raw keys of each chunk, and their positions. After `qsa_compress_` of the same step.

    Args: as for `qsa_compress_`; ring and ring_positions are written.

    Raises:
        ValueError: extents that contradict each other.
    """
    op = "qsa_commit_"
    _check_ring(op, raw_key, positions, ring, ring_positions, query_start_loc, seq_lens, state_indices, token_major)
    where = axis_major(positions, token_major)
    if not raw_key.shape[0]:
        return
    run = _launch_commit if on_triton(raw_key) else commit_reference
    run(raw_key, where, ring, ring_positions, query_start_loc, seq_lens, state_indices)


@qsa_commit_.register_fake
def _(
    raw_key, positions, ring, ring_positions, query_start_loc, seq_lens, state_indices, token_major=False
):  # fmt: skip
    return None


def _requests() -> dict[str, Axes]:
    """With the last boundary repeated, a request past the live ones is empty: no token is of it."""
    return {
        "query_start_loc": Boundaries("R+1", tail=Last()),
        "seq_lens": PerRequest("R", tail=Any()),
        "state_indices": Slots("R", into="ring", null=NULL_SLOT, tail=Any()),
    }


def _rows() -> dict[str, Axes]:
    return {"raw_key": Rows("T", None, tail=Any()), "positions": Rows("T", 3, dim=1, tail=Any())}


@contract("capwise::qsa_compress_")
def compress_contract() -> Contract:
    return Contract(
        rows={
            **_rows(),
            "ring": Axes((None,) * 3),
            "ring_positions": Axes((None,) * 3),
            "norm_weight": Axes((None,)),
            "inv_freq": Axes((None,)),
            "block_keys": Axes((None,) * 3, write=True),
        },
        requests={
            **_requests(),
            "block_table": Slots("R", None, into="block_keys", null=NULL_PAGE, tail=Any()),
        },
        locality="segment",
        state=("block_keys",),
    )


@contract("capwise::qsa_commit_")
def commit_contract() -> Contract:
    return Contract(
        rows={**_rows(), "ring": Axes((None,) * 3, write=True), "ring_positions": Axes((None,) * 3, write=True)},
        requests=_requests(),
        locality="segment",
        state=("ring", "ring_positions"),
    )
