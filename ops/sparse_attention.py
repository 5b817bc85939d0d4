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

from capwise.ops.contract import Any, Axes, Contract, PerRequest, Rows, contract
from capwise.ops.metadata import NULL_PAGE, pages_of


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
    return sparse_attention_reference(q, kv_cache, blocks, token_to_req, logical_pos, block_table, ratio, scale)


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
        requests={"block_table": PerRequest("R", None, tail=Any())},
        locality="row",
    )
