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
from capwise.ops.metadata import NULL_PAGE, pages_of, token_requests_reference
from capwise.ops.rope import axis_major, check_positions, check_sections, pair_axes, rotate_reference

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
    axes: Sequence[int],
    eps: float,
    ratio: int,
) -> None:
    """positions [3, T]; the rest as for `qsa_compress_`."""
    if not raw_key.shape[0]:
        return
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
    """positions [3, T]; the rest as for `qsa_commit_`."""
    if not raw_key.shape[0]:
        return
    _, position, slot, mine, _, end = _tokens(raw_key, query_start_loc, seq_lens, state_indices, ring)
    token, cap = torch.arange(raw_key.shape[0], device=raw_key.device), ring.shape[1]
    writes = mine & (end - token <= cap)
    at = (torch.where(writes, slot, 0), torch.where(writes, position % cap, 0))
    ring.index_put_(at, torch.where(writes[:, None], raw_key.to(ring.dtype), ring[0, 0]))
    ring_positions.index_put_(at, torch.where(writes[:, None], positions.T, ring_positions[0, 0]))


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
    axes, where = pair_axes(sections, inv_freq.shape[0]), axis_major(positions, token_major)
    compress_reference(
        raw_key, where, ring, ring_positions, norm_weight, inv_freq, query_start_loc, seq_lens, state_indices,
        block_table, block_keys, axes, eps, ratio,
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
    commit_reference(raw_key, where, ring, ring_positions, query_start_loc, seq_lens, state_indices)


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
