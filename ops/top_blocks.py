"""The k best blocks of each row of scores, the same ones on every machine.

    out[t] = the k columns of largest score, of equal scores those of lowest number; in ascending order, then -1

Columns at -inf (and, where given, from visible[t] on) are never chosen, so fewer than k leave -1 at the end. The order
of a set does not matter to attention but ascending blocks read memory forwards. +0 and -0 are equal; NaN is not chosen.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Contract, Rows, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl


def top_blocks_reference(scores: torch.Tensor, k: int, visible: torch.Tensor | None = None) -> torch.Tensor:
    width = scores.shape[1]
    column = torch.arange(width, device=scores.device)
    usable = scores > float("-inf")
    if visible is not None:
        usable &= column < visible.long()[:, None]
    ranked = torch.where(usable, scores, float("-inf")).sort(dim=1, descending=True, stable=True).indices[:, :k]
    chosen = torch.where(usable.gather(1, ranked), ranked, width).sort(dim=1).values
    chosen = torch.where(chosen < width, chosen, -1)
    return torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=-1).int()


@jit
def _ordered(value):
    """float32 -> uint32 in the same order; the zeros are equal."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@jit
def _row_tile(scores_ptr, row_at, first, count, scores_column, BLOCK: tl.constexpr):
    """(columns, ordered values, whether they may be chosen) of one tile of a row."""
    column = first + tl.arange(0, BLOCK)
    value = tl.load(scores_ptr + row_at + column.to(tl.int64) * scores_column, mask=column < count, other=float("-inf"))
    return column, _ordered(value), (value > float("-inf")) & (column < count)


@jit
def _top_blocks_kernel(
    scores_ptr, visible_ptr, out_ptr,
    width, k, scores_row, scores_column, visible_stride,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """The k-th largest value of a row, eight bits at a time from the top; then one pass that writes in order."""
    token = tl.program_id(0).to(tl.int64)
    row_at = token * scores_row
    count = width
    if visible_ptr is not None:
        seen = tl.load(visible_ptr + token * visible_stride).to(tl.int64)
        count = tl.minimum(tl.maximum(seen, 0), width).to(tl.int32)
    digits = tl.arange(0, 256)
    threshold = tl.zeros((1,), dtype=tl.uint32)
    wanted = tl.zeros((1,), dtype=tl.int32) + k
    if count > k:
        for level in tl.static_range(4):
            found = tl.zeros((256,), dtype=tl.int32)
            for first in range(0, count, BLOCK):
                _, value, usable = _row_tile(scores_ptr, row_at, first, count, scores_column, BLOCK)
                if level > 0:
                    usable = usable & ((value >> (32 - 8 * level)) == (threshold >> (32 - 8 * level)))
                digit = ((value >> (24 - 8 * level)) & 255).to(tl.int32)
                found += tl.histogram(digit, 256, mask=usable)
            # How many have this digit or a larger one, and how many a larger one.
            least = tl.sum(found, 0) - tl.cumsum(found, 0) + found
            chosen = tl.max(tl.where(least >= wanted, digits, 0), 0)
            wanted -= tl.sum(tl.where(digits > chosen, found, 0), 0)
            threshold += chosen.to(tl.uint32) << (24 - 8 * level)
    taken = tl.zeros((1,), dtype=tl.int32)
    equal = tl.zeros((1,), dtype=tl.int32)
    for first in range(0, count, BLOCK):
        column, value, usable = _row_tile(scores_ptr, row_at, first, count, scores_column, BLOCK)
        level_with = (usable & (value == threshold)).to(tl.int32)
        early = (equal + tl.cumsum(level_with, 0)) <= wanted
        take = usable & ((value > threshold) | ((level_with > 0) & early))
        place = taken + tl.cumsum(take.to(tl.int32), 0) - 1
        tl.store(out_ptr + token * k + place, column.to(tl.int32), mask=take)
        taken += tl.sum(take.to(tl.int32), 0)
        equal += tl.sum(level_with, 0)
    place = tl.arange(0, BLOCK_K)
    tl.store(out_ptr + token * k + place, tl.full((BLOCK_K,), -1, tl.int32), mask=(place >= taken) & (place < k))


def _launch(scores: torch.Tensor, k: int, visible: torch.Tensor | None, out: torch.Tensor) -> None:
    tokens, width = scores.shape
    size = block(width, scores, gpu=2048, cpu=4096)
    _top_blocks_kernel[(tokens,)](
        scores,
        visible,
        out,
        width,
        k,
        *scores.stride(),
        0 if visible is None else visible.stride(0),
        BLOCK=max(size, 256),
        BLOCK_K=power_of_two(k),
        num_warps=8 if size > 1024 else 4,
    )


@torch.library.custom_op("capwise::top_blocks", mutates_args=())
def top_blocks(scores: torch.Tensor, k: int, visible: torch.Tensor | None = None) -> torch.Tensor:
    """Columns of the k largest scores of each row; the lowest wins a tie. Strides are honoured.

    Args:
        scores: float32 [T, W]; -inf is never chosen.
        k: how many, at least 1.
        visible: int [T], how many leading columns of each row to look at; all, where absent.

    Returns:
        int32 [T, k], ascending, -1 after the last.

    Raises:
        ValueError: k < 1, scores that are not float32 [T, W], or visible that is not [T].
    """
    if scores.dim() != 2 or scores.dtype != torch.float32 or k < 1:
        got = f"{tuple(scores.shape)} {scores.dtype}, {k}"
        raise ValueError(f"top_blocks: expected scores float32 [T, W], k >= 1; got {got}")
    if visible is not None and tuple(visible.shape) != (scores.shape[0],):
        raise ValueError(f"top_blocks: visible: expected [{scores.shape[0]}]; got {tuple(visible.shape)}")
    if not on_triton(scores):
        return top_blocks_reference(scores, k, visible)
    out = scores.new_empty((scores.shape[0], k), dtype=torch.int32)
    if scores.shape[0]:
        _launch(scores, k, visible, out)
    return out


@top_blocks.register_fake
def _(scores, k, visible=None):
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


@contract("capwise::top_blocks")
def top_blocks_contract() -> Contract:
    return Contract(
        rows={
            "scores": Rows("T", None, tail=Any()),
            "visible": Rows("T", tail=Any()),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
