"""The k best blocks of each row of scores, the same ones on every machine.

    out[t] = the k columns of largest score, of equal scores those of lowest number; in ascending order, then -1

Columns at -inf (and, where given, from visible[t] on) are never chosen, so fewer than k leave -1 at the end. The order
of a set does not matter to attention but ascending blocks read memory forwards. +0 and -0 are equal; NaN is not chosen.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Contract, Rows, contract


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
    return top_blocks_reference(scores, k, visible)


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
