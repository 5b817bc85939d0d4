"""Attention of each query over chosen blocks of past tokens and the open tail, in a paged cache.

For token t of request r = token_to_req[t] at logical position p, n = (p + 1) div ratio blocks are visible. It sees

    S = { b * ratio + i : b in blocks[t], 0 <= b < n, 0 <= i < ratio }  and  { n * ratio, ..., p }
    out[t, h] = rnd( sum_{s in S} softmax_s( scale * q[t, h] . K(s, g) ) V(s, g) )      g = h div (HQ / HK)
    K(s, g), V(s, g) = kv_cache[block_table[r, s div page], s mod page, 0 and 1, g]

Blocks out of 0..n-1 are ignored, tokens on the null page too; rows that see nothing (p = -1) are 0. blocks[t] names no
block twice.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.metadata import NULL_PAGE, page_of, pages_of

LOG2_E = 1.4426950408889634
# Up to so many tokens there are too few programs to fill a device: what a token sees is split, always the same way.
FEW_TOKENS, MANY_SPLITS = 128, 8
# Places that are worked on together, and bytes of keys, or of values, as they fit twice into what every target shares
# within a program. One H200, 24 heads of 256 columns on 2, 2051 places a token: 8192 tokens take 4.8 ms with 64 places
# and four warps, 6.1 with 32, 6.2 with eight warps, 7.4 with 128 and eight; a decode of 64 requests 89 to 91 us.
PLACES, TILE_BYTES = 64, 1 << 15


def sparse_attention_reference(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    blocks: torch.Tensor,
    token_to_req: torch.Tensor,
    logical_pos: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
    scale: float,
) -> torch.Tensor:
    p, chosen, group = logical_pos.long()[:, None], blocks.long(), q.shape[1] // kv_cache.shape[3]
    visible = (p + 1) // ratio
    chosen = torch.where((chosen >= 0) & (chosen < visible), chosen, -1)
    inside = torch.arange(ratio, device=q.device)
    closed = torch.where(chosen[..., None] >= 0, chosen[..., None] * ratio + inside, -1).flatten(1)
    tail = visible * ratio + inside[: ratio - 1]
    where = torch.cat([closed, torch.where(tail <= p, tail, -1)], 1)
    page = pages_of(token_to_req[:, None].expand_as(where), where, block_table, kv_cache.shape[1])
    there = (page > NULL_PAGE) & (page < kv_cache.shape[0])
    seen = kv_cache[torch.where(there, page, 0), where.clamp(min=0) % kv_cache.shape[1]].float()
    seen = torch.where(there[:, :, None, None, None], seen, 0.0).repeat_interleave(group, 3)
    logits = torch.einsum("thd,tshd->ths", q.float(), seen[:, :, 0]) * scale
    weight = logits.masked_fill(~there[:, None], float("-inf")).softmax(-1)
    out = torch.einsum("ths,tshd->thd", torch.where(there[:, None], weight, 0.0), seen[:, :, 1])
    return torch.where(there.any(1)[:, None, None], out, 0.0).to(q.dtype)


@jit
def _seen_slots_kernel(
    blocks_ptr, row_ptr, position_ptr, table_ptr, slots_ptr, count_ptr,
    requests, k, table_width, pages, most, blocks_row, blocks_column, row_stride, position_stride, table_row,
    table_column,
    RATIO: tl.constexpr, PAGE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr,
):
    """What one token sees, the chosen blocks and then the tail: slots int32 [T, most], page * PAGE + place in it or -1,
    and how many of them there are."""
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(row_ptr + token * row_stride).to(tl.int64)
    position = tl.load(position_ptr + token * position_stride).to(tl.int64)
    known = (request >= 0) & (request < requests) & (position >= 0)
    position = tl.where(known, position, -1)
    visible = (position + 1) // RATIO
    row_at = token * blocks_row
    rank = tl.arange(0, BLOCK_K)
    chosen = tl.load(blocks_ptr + row_at + rank.to(tl.int64) * blocks_column, mask=rank < k, other=-1)
    closed = tl.max(tl.where(chosen >= 0, rank + 1, 0), 0) * RATIO
    count = tl.where(known, closed + (position + 1 - visible * RATIO).to(tl.int32), 0)
    tl.store(count_ptr + token, count)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        block_at = row_at + (place // RATIO).to(tl.int64) * blocks_column
        block = tl.load(blocks_ptr + block_at, mask=place < closed, other=-1).to(tl.int64)
        there = tl.where(place < closed, (block >= 0) & (block < visible), place < count)
        at = tl.where(place < closed, block * RATIO + place % RATIO, visible * RATIO + place - closed)
        page = page_of(request, at, there, table_ptr, requests, table_width, PAGE, table_row, table_column)
        there = there & (page > 0) & (page < pages)
        slot = tl.where(there, page * PAGE + at % PAGE, -1).to(tl.int32)
        tl.store(slots_ptr + token * most + place, slot, mask=place < count)


@jit
def _sparse_attention_kernel(
    q_ptr, cache_ptr, slots_ptr, count_ptr, out_ptr, sums_ptr,
    heads, group, width, most, scale, split_size, q_row, q_head, q_column, cache_page, cache_place, cache_part,
    cache_head, cache_column,
    PAGE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """One token, the query heads of one key head, and one split of the places that they see.

    With one split, out is the result; else [T, HQ, SPLITS, D] of weighted sums, and sums [T, HQ, SPLITS, 2]. Logits are
    in units of log 2; the maximum is -inf where nothing is seen.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first = tl.program_id(2) * split_size
    end = tl.minimum(first + split_size, tl.load(count_ptr + token))
    lane, column = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    mine = (lane < group)[:, None] & (column < width)[None, :]
    query_head = head * group + lane
    q_at = token * q_row + query_head[:, None] * q_head + column[None, :] * q_column
    q = tl.load(q_ptr + q_at, mask=mine, other=0.0)
    accumulated = tl.zeros((BLOCK_H, BLOCK_D), dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    highest = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    for start in range(first, end, BLOCK_N):
        place = start + tl.arange(0, BLOCK_N)
        slot = tl.load(slots_ptr + token * most + place, mask=place < end, other=-1)
        there = slot >= 0
        page, inside = slot.to(tl.uint32) // PAGE, slot.to(tl.uint32) % PAGE
        seen_at = page.to(tl.int64) * cache_page + inside.to(tl.int64) * cache_place + head * cache_head
        keys_at = seen_at[None, :] + column[:, None] * cache_column
        keys = tl.load(cache_ptr + keys_at, mask=there[None, :] & (column < width)[:, None], other=0.0)
        logits = tl.dot(q, keys.to(q.dtype), input_precision="ieee") * scale
        logits = tl.where(there[None, :], logits, float("-inf"))
        above = tl.maximum(highest, tl.max(logits, 1))
        finite = tl.where(above == float("-inf"), 0.0, above)
        weight = tl.exp2(logits - finite[:, None])
        shrink = tl.exp2(highest - finite)
        values_at = seen_at[:, None] + cache_part + column[None, :] * cache_column
        values = tl.load(cache_ptr + values_at, mask=there[:, None] & (column < width)[None, :], other=0.0)
        accumulated = accumulated * shrink[:, None]
        accumulated += tl.dot(weight.to(q.dtype), values.to(q.dtype), input_precision="ieee")
        total = total * shrink + tl.sum(weight, 1)
        highest = above
    out_at = (token * heads + query_head) * SPLITS + tl.program_id(2)
    if SPLITS == 1:
        accumulated = tl.where((total > 0)[:, None], accumulated / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    else:
        tl.store(sums_ptr + out_at * 2, total, mask=lane < group)
        tl.store(sums_ptr + out_at * 2 + 1, highest, mask=lane < group)
    at = out_at[:, None] * width + column[None, :]
    tl.store(out_ptr + at, accumulated.to(out_ptr.dtype.element_ty), mask=mine)


@jit
def _join_splits_kernel(
    parts_ptr, sums_ptr, out_ptr, rows, width, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr
):
    """One query head of one token: the splits' weighted sums, brought to one maximum."""
    row = tl.program_id(0).to(tl.int64)
    split, column = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    at = row * SPLITS + split
    total = tl.load(sums_ptr + at * 2, mask=split < SPLITS, other=0.0)
    highest = tl.load(sums_ptr + at * 2 + 1, mask=split < SPLITS, other=float("-inf"))
    above = tl.max(highest, 0)
    shrink = tl.exp2(highest - tl.where(above == float("-inf"), 0.0, above))
    inside = (split < SPLITS)[:, None] & (column < width)[None, :]
    part = tl.load(parts_ptr + at[:, None] * width + column[None, :], mask=inside, other=0.0)
    total = tl.sum(total * shrink, 0)
    whole = tl.sum(part * shrink[:, None], 0) / tl.where(total > 0, total, 1.0)
    whole = tl.where(total > 0, whole, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + column, whole, mask=column < width)


def _launch(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio, scale, out) -> None:
    tokens, heads, width = q.shape
    pages, page_size, _, kv_heads, _ = kv_cache.shape
    k = blocks.shape[1]
    most = k * ratio + ratio - 1
    slots, count = blocks.new_empty((tokens, most), dtype=torch.int32), blocks.new_empty(tokens, dtype=torch.int32)
    _seen_slots_kernel[(tokens,)](
        blocks,
        token_to_req,
        logical_pos,
        block_table,
        slots,
        count,
        block_table.shape[0],
        k,
        block_table.shape[1],
        pages,
        most,
        *blocks.stride(),
        token_to_req.stride(0),
        logical_pos.stride(0),
        *block_table.stride(),
        RATIO=ratio,
        PAGE=page_size,
        BLOCK_K=power_of_two(k),
        BLOCK=block(most, q, gpu=1024, cpu=4096),
    )
    block_d = max(power_of_two(width), 16)
    block_n = max(block(k * ratio, q, gpu=min(PLACES, TILE_BYTES // (block_d * q.element_size())), cpu=32), 16)
    splits = MANY_SPLITS if tokens <= FEW_TOKENS else 1
    split_size = -(-most // (splits * block_n)) * block_n
    splits = -(-most // split_size)
    parts, sums = out, out
    if splits > 1:
        parts = out.new_empty((tokens, heads, splits, width), dtype=torch.float32)
        sums = out.new_empty((tokens, heads, splits, 2), dtype=torch.float32)
    _sparse_attention_kernel[(tokens, kv_heads, splits)](
        q,
        kv_cache,
        slots,
        count,
        parts,
        sums,
        heads,
        heads // kv_heads,
        width,
        most,
        scale * LOG2_E,
        split_size,
        *q.stride(),
        *kv_cache.stride(),
        PAGE=page_size,
        SPLITS=splits,
        BLOCK_H=max(power_of_two(heads // kv_heads), 16),
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        num_stages=2,
    )
    if splits > 1:
        block_s = power_of_two(splits)
        _join_splits_kernel[(tokens * heads,)](
            parts, sums, out, tokens * heads, width, SPLITS=splits, BLOCK_S=block_s, BLOCK_D=block_d
        )


def _check(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio) -> None:
    tokens = q.shape[0]
    if q.dim() != 3 or kv_cache.dim() != 5 or kv_cache.shape[2] != 2 or kv_cache.shape[4] != q.shape[2]:
        got = f"{tuple(q.shape)}, {tuple(kv_cache.shape)}"
        raise ValueError(f"sparse_attention: expected q [T, HQ, D], kv_cache [blocks, page, 2, HK, D]; got {got}")
    if not kv_cache.numel() or q.shape[1] % kv_cache.shape[3]:
        got = f"{q.shape[1]} heads for {tuple(kv_cache.shape)}"
        raise ValueError(f"sparse_attention: kv_cache: expected HQ a multiple of HK, and a page; got {got}")
    shapes = [tuple(t.shape) for t in (blocks, token_to_req, logical_pos)]
    if blocks.dim() != 2 or blocks.shape[0] != tokens or shapes[1:] != [(tokens,)] * 2:
        got = ", ".join(map(str, shapes))
        raise ValueError(
            f"sparse_attention: expected blocks [T, k], token_to_req [T], logical_pos [T], T = {tokens}; got {got}"
        )
    if block_table.dim() != 2 or not block_table.numel() or ratio < 1:
        got = f"{tuple(block_table.shape)}, {ratio}"
        raise ValueError(f"sparse_attention: expected block_table [R, NB], R, NB >= 1, ratio >= 1; got {got}")


@torch.library.custom_op("capwise::sparse_attention", mutates_args=())
def sparse_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    blocks: torch.Tensor,
    token_to_req: torch.Tensor,
    logical_pos: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
    scale: float,
) -> torch.Tensor:
    """Attention over chosen blocks and the open tail. Strides of every argument are honoured.

    Args:
        q: [T, HQ, D]. kv_cache: [blocks, page, 2, HK, D], HQ a multiple of HK; keys are 0, values 1.
        blocks: int32 [T, k], as `top_blocks` gives them; one set for all heads.
        token_to_req, logical_pos: int [T], as `token_requests` gives them.
        block_table: int [R, NB]; 0 is the null page.
        ratio: tokens a block. scale: of the dot products.

    Returns:
        [T, HQ, D] in q's dtype, dense.

    Raises:
        ValueError: extents that contradict each other.
    """
    _check(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio)
    if not on_triton(q):
        return sparse_attention_reference(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio, scale)
    out = q.new_empty(q.shape)
    if out.numel():
        _launch(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio, scale, out)
    return out


@sparse_attention.register_fake
def _(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio, scale):
    return q.new_empty(q.shape)


@contract("capwise::sparse_attention")
def sparse_attention_contract() -> Contract:
    return Contract(
        rows={
            "q": Rows("T", None, None, tail=Any()),
            "kv_cache": Axes((None,) * 5),
            "blocks": Rows("T", None, tail=Any()),
            "token_to_req": Rows("T", tail=Any()),
            "logical_pos": Rows("T", tail=Any()),
            "out": Rows("T", None, None, write=True),
        },
        requests={"block_table": Slots("R", None, into="kv_cache", null=NULL_PAGE, tail=Any())},
        locality="row",
    )
