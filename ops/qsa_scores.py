"""How much each block of past tokens matters to a query of the attention indexer.

For token t of request r = token_to_req[t] at logical position p, block b (positions b * ratio ... (b + 1) * ratio - 1):

    score[t, b] = sum_h max(iq[t, h] . key(r, b), 0) / sqrt(DI)       float32        b < (p + 1) div ratio
                  -inf                                                              otherwise
    key(r, b)   = block_keys[block_table[r, b div (page/ratio)], b mod (page/ratio)]

A block is visible once all its tokens are at or before p. Blocks of the null page, and all blocks at p = -1, are not.
Zeros are +0, so that equal scores are equal bit for bit.
"""

from __future__ import annotations

import math

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.metadata import NULL_PAGE

FEW_TOKENS = 64  # up to here, one token a program: more programs, and each reads the keys of one request


def scores_reference(
    iq: torch.Tensor,
    block_keys: torch.Tensor,
    token_to_req: torch.Tensor,
    logical_pos: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
) -> torch.Tensor:
    (requests, width), per_page = block_table.shape, block_keys.shape[1]
    pages, request = block_table.long(), token_to_req.long()
    owned = (pages > NULL_PAGE) & (pages < block_keys.shape[0])
    keys = block_keys[torch.where(owned, pages, 0)].flatten(1, 2).float()
    known = (request >= 0) & (request < requests)
    request = torch.where(known, request, 0)
    dots = torch.einsum("thd,twd->thw", iq.float(), keys[request])
    score = dots.relu().sum(1) / math.sqrt(iq.shape[2])
    block = torch.arange(width * per_page, device=iq.device)
    visible = known[:, None] & (block < (logical_pos.long()[:, None] + 1) // ratio)
    visible &= owned.repeat_interleave(per_page, 1)[request]
    return torch.where(visible, torch.where(score == 0, 0.0, score), float("-inf"))


@jit
def _qsa_scores_kernel(
    iq_ptr, keys_ptr, row_ptr, position_ptr, table_ptr, out_ptr,
    tokens, requests, table_width, pages, per_page, width, root, iq_row, iq_head, iq_column, keys_page, keys_place,
    keys_column, row_stride, position_stride, table_row, table_column,
    RATIO: tl.constexpr, HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, STEP: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Scores of STEP tokens (BLOCK_T lanes of them, as many as a matrix product needs) for BLOCK_W blocks.

    The tokens of a tile may be of several requests, each with keys of its own: one product a request that is there.
    """
    lane = tl.arange(0, BLOCK_T)
    token = tl.program_id(0).to(tl.int64) * STEP + lane
    inside = (lane < STEP) & (token < tokens)
    request = tl.load(row_ptr + token * row_stride, mask=inside, other=-1).to(tl.int64)
    position = tl.load(position_ptr + token * position_stride, mask=inside, other=-1).to(tl.int64)
    known = inside & (request >= 0) & (request < requests) & (position >= 0)
    visible = tl.where(known, (position + 1) // RATIO, 0)
    blocks = table_width.to(tl.int64) * per_page
    first = tl.program_id(1).to(tl.int64) * BLOCK_W
    block = first + tl.arange(0, BLOCK_W)
    score = tl.full((BLOCK_T, BLOCK_W), float("-inf"), dtype=tl.float32)
    # Requests of the tile in ascending order, without those that see nothing here.
    sees = visible > first
    current = tl.min(tl.where(sees, request, requests), 0)
    if current < requests:
        row = tl.arange(0, BLOCK_T * HEADS_BLOCK)
        of, head = row // HEADS_BLOCK, row % HEADS_BLOCK
        there = (of < STEP) & (tl.program_id(0).to(tl.int64) * STEP + of < tokens) & (head < HEADS)
        at = (tl.program_id(0).to(tl.int64) * STEP + of) * iq_row + head * iq_head
        column = tl.arange(0, BLOCK_D)
        iq_at = at[:, None] + column[None, :] * iq_column
        iq = tl.load(iq_ptr + iq_at, mask=there[:, None] & (column < width)[None, :], other=0.0)
        limit = tl.minimum(tl.max(visible, 0), blocks)
        while current < requests:
            table_at = current * table_row + block // per_page * table_column
            page = tl.load(table_ptr + table_at, mask=block < limit, other=0).to(tl.int64)
            owned = (page > 0) & (page < pages)
            keys_at = (page * keys_page + block % per_page * keys_place)[None, :] + column[:, None] * keys_column
            keys = tl.load(keys_ptr + keys_at, mask=owned[None, :] & (column < width)[:, None], other=0.0)
            dots = tl.maximum(tl.dot(iq, keys, input_precision="ieee"), 0.0)
            total = tl.sum(tl.reshape(dots, (BLOCK_T, HEADS_BLOCK, BLOCK_W)), 1) / root
            seen = (request == current)[:, None] & (block[None, :] < visible[:, None]) & owned[None, :]
            score = tl.where(seen, tl.where(total == 0.0, 0.0, total), score)
            current = tl.min(tl.where(sees & (request > current), request, requests), 0)
    out_at = token[:, None] * blocks + block[None, :]
    tl.store(out_ptr + out_at, score, mask=inside[:, None] & (block < blocks)[None, :])


def _launch(iq, block_keys, token_to_req, logical_pos, block_table, ratio, out) -> None:
    (tokens, heads, width), (pages, per_page, _) = iq.shape, block_keys.shape
    heads_block = power_of_two(heads)
    step = block(tokens, iq, gpu=1 if tokens <= FEW_TOKENS else 4, cpu=32)
    block_w = max(block(out.shape[1], iq, gpu=128, cpu=128), 16)
    _qsa_scores_kernel[(-(-tokens // step), -(-out.shape[1] // block_w))](
        iq,
        block_keys,
        token_to_req,
        logical_pos,
        block_table,
        out,
        tokens,
        *block_table.shape,
        pages,
        per_page,
        width,
        math.sqrt(width),
        *iq.stride(),
        *block_keys.stride(),
        token_to_req.stride(0),
        logical_pos.stride(0),
        *block_table.stride(),
        RATIO=ratio,
        HEADS=heads,
        HEADS_BLOCK=heads_block,
        STEP=step,
        BLOCK_T=max(step, 16 // heads_block),
        BLOCK_W=block_w,
        BLOCK_D=max(power_of_two(width), 16),
    )


def _check(iq, block_keys, token_to_req, logical_pos, block_table, ratio) -> None:
    tokens = iq.shape[0]
    if iq.dim() != 3 or block_keys.dim() != 3 or block_keys.shape[2] != iq.shape[2] or not block_keys.numel():
        got = f"{tuple(iq.shape)}, {tuple(block_keys.shape)}"
        raise ValueError(f"qsa_scores: expected iq [T, HI, DI], block_keys [blocks, page/ratio, DI]; got {got}")
    if tuple(token_to_req.shape) != (tokens,) or tuple(logical_pos.shape) != (tokens,):
        got = f"{tuple(token_to_req.shape)}, {tuple(logical_pos.shape)}"
        raise ValueError(f"qsa_scores: token_to_req, logical_pos: expected [{tokens}] each; got {got}")
    if block_table.dim() != 2 or not block_table.numel() or ratio < 1:
        got = f"{tuple(block_table.shape)}, {ratio}"
        raise ValueError(f"qsa_scores: expected block_table [R, NB], R, NB >= 1, ratio >= 1; got {got}")


@torch.library.custom_op("capwise::qsa_scores", mutates_args=())
def qsa_scores(
    iq: torch.Tensor,
    block_keys: torch.Tensor,
    token_to_req: torch.Tensor,
    logical_pos: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
) -> torch.Tensor:
    """Scores of all blocks that a block table can name. Strides of every argument are honoured.

    Args:
        iq: [T, HI, DI], rotated indexer queries.
        block_keys: [blocks, page/ratio, DI], as `qsa_compress_` writes them.
        token_to_req, logical_pos: int [T], as `token_requests` gives them.
        block_table: int [R, NB]; 0 is the null page.
        ratio: tokens a block.

    Returns:
        float32 [T, NB * page/ratio], -inf where a block is not visible.

    Raises:
        ValueError: extents that contradict each other.
    """
    _check(iq, block_keys, token_to_req, logical_pos, block_table, ratio)
    if not on_triton(iq):
        return scores_reference(iq, block_keys, token_to_req, logical_pos, block_table, ratio)
    out = iq.new_empty((iq.shape[0], block_table.shape[1] * block_keys.shape[1]), dtype=torch.float32)
    if iq.shape[0]:
        _launch(iq, block_keys, token_to_req, logical_pos, block_table, ratio, out)
    return out


@qsa_scores.register_fake
def _(iq, block_keys, token_to_req, logical_pos, block_table, ratio):
    return iq.new_empty((iq.shape[0], block_table.shape[1] * block_keys.shape[1]), dtype=torch.float32)


@contract("capwise::qsa_scores")
def scores_contract() -> Contract:
    return Contract(
        rows={
            "iq": Rows("T", None, None, tail=Any()),
            "block_keys": Axes((None,) * 3),
            "token_to_req": Rows("T", tail=Any()),
            "logical_pos": Rows("T", tail=Any()),
            "out": Rows("T", None, write=True),
        },
        requests={"block_table": Slots("R", None, into="block_keys", null=NULL_PAGE, tail=Any())},
        locality="row",
    )
