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

from capwise.ops.contract import Any, Axes, Contract, PerRequest, Rows, contract
from capwise.ops.metadata import NULL_PAGE


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
    return scores_reference(iq, block_keys, token_to_req, logical_pos, block_table, ratio)


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
        requests={"block_table": PerRequest("R", None, tail=Any())},
        locality="row",
    )
