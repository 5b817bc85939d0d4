"""Rotary embedding of queries and keys (ops/rope.py), alone or together with writing keys and values to their pages.

    mrope            y = rope(x)
    mrope_kv_write_  y = rope(q);   kv_cache[page, place, 0] = rope(k), kv_cache[page, place, 1] = v
                     of each token, page = slot div page_size, place = slot mod page_size; slots < 0 are skipped

A token needs its own row of each argument, so padded rows are harmless once their slot is -1. The key is rounded to k's
dtype by the rotation and then to the cache's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, Slots, contract
from capwise.ops.rope import axis_major, check_positions, check_sections, pair_axes, rotate_reference


def kv_write_reference(k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, kv_cache: torch.Tensor) -> None:
    """k (rotated), v [T, HK, D] into kv_cache [blocks, page, 2, HK, D] at each token's slot.

    What must not be written goes to place 0 of page 0 with the values that it has: no host sync, no change.
    """
    pages, size = kv_cache.shape[:2]
    slot = slot_mapping.long()
    writes = (slot >= 0) & (slot < pages * size)
    page, place = torch.where(writes, slot // size, 0), torch.where(writes, slot % size, 0)
    both = torch.where(writes[:, None, None, None], torch.stack([k, v], 1).to(kv_cache.dtype), kv_cache[0, 0])
    kv_cache.index_put_((page, place), both)


def _check(op: str, positions, inv_freq, sections, token_major, **heads: torch.Tensor) -> None:
    tokens, _, width = next(iter(heads.values())).shape
    for name, value in heads.items():
        if value.dim() != 3 or (value.shape[0], value.shape[2]) != (tokens, width):
            raise ValueError(f"{op}: {name}: expected [T, heads, D] = [{tokens}, _, {width}]; got {tuple(value.shape)}")
    check_sections(op, sections, inv_freq, width)
    check_positions(op, positions, tokens, token_major)


def _check_cache(k, v, slot_mapping, kv_cache) -> None:
    tokens, heads, width = k.shape
    if v.shape != k.shape:
        raise ValueError(f"mrope_kv_write_: v: expected k's shape {tuple(k.shape)}; got {tuple(v.shape)}")
    if tuple(slot_mapping.shape) != (tokens,):
        raise ValueError(f"mrope_kv_write_: slot_mapping: expected [{tokens}]; got {tuple(slot_mapping.shape)}")
    if kv_cache.dim() != 5 or tuple(kv_cache.shape[2:]) != (2, heads, width) or not kv_cache.numel():
        wanted = f"[blocks, page, 2, {heads}, {width}], not empty"
        raise ValueError(f"mrope_kv_write_: kv_cache: expected {wanted}; got {tuple(kv_cache.shape)}")


@torch.library.custom_op("capwise::mrope", mutates_args=())
def mrope(
    x: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    sections: Sequence[int],
    token_major: bool = False,
) -> torch.Tensor:
    """Rotary embedding of some heads. Strides of every argument are honoured.

    Args:
        x: [T, h, D]; the first 2n dimensions of a head are rotated, i with i + n.
        positions: int [3, T] (time, height, width), or [T, 3] where token_major says so: at T = 3 shapes do not.
        inv_freq: float32 [n].
        sections: how many pairs each axis gets; must be what dealing the pairs in turn gives.
        token_major: the layout of positions.

    Returns:
        [T, h, D] in x's dtype, dense.

    Raises:
        ValueError: another layout or number of axes, positions of fewer tokens, sections that are not interleaved.
    """
    _check("mrope", positions, inv_freq, sections, token_major, x=x)
    return rotate_reference(x, axis_major(positions, token_major), inv_freq, pair_axes(sections, inv_freq.shape[0]))


@mrope.register_fake
def _(x, positions, inv_freq, sections, token_major=False):
    return x.new_empty(x.shape)


@torch.library.custom_op("capwise::mrope_kv_write_", mutates_args={"kv_cache"})
def mrope_kv_write_(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache: torch.Tensor,
    sections: Sequence[int],
    token_major: bool = False,
) -> torch.Tensor:
    """Rotates q and k, and writes rotated keys and values to their pages. Strides of every argument are honoured.

    Args:
        q: [T, HQ, D]. k, v: [T, HK, D].
        positions, inv_freq, sections, token_major: as for `mrope`.
        slot_mapping: int [T], page * page_size + place; negative slots and slots of no page are skipped. No two
            tokens may have one slot.
        kv_cache: [blocks, page_size, 2, HK, D]; keys are 0, values 1.

    Returns:
        Rotated q, [T, HQ, D], dense.

    Raises:
        ValueError: as `mrope`; a cache or slots that contradict k and v.
    """
    _check("mrope_kv_write_", positions, inv_freq, sections, token_major, q=q, k=k, v=v)
    _check_cache(k, v, slot_mapping, kv_cache)
    axes, where = pair_axes(sections, inv_freq.shape[0]), axis_major(positions, token_major)
    kv_write_reference(rotate_reference(k, where, inv_freq, axes), v, slot_mapping, kv_cache)
    return rotate_reference(q, where, inv_freq, axes)


@mrope_kv_write_.register_fake
def _(q, k, v, positions, inv_freq, slot_mapping, kv_cache, sections, token_major=False):
    return q.new_empty(q.shape)


def _rows(*heads: str) -> dict[str, Axes]:
    """Positions are named axis-major; token-major ones carry T in their first dimension, and any tail is harmless."""
    return {
        **{name: Rows("T", None, None, tail=Any()) for name in heads},
        "positions": Rows("T", 3, dim=1, tail=Any()),
        "inv_freq": Axes((None,)),
        "out": Rows("T", None, None, write=True),
    }


@contract("capwise::mrope")
def mrope_contract() -> Contract:
    return Contract(rows=_rows("x"), locality="row")


@contract("capwise::mrope_kv_write_")
def mrope_kv_write_contract() -> Contract:
    return Contract(
        rows={
            **_rows("q", "k", "v"),
            "slot_mapping": Slots("T", into="kv_cache", null=-1),
            "kv_cache": Axes((None,) * 5, write=True),
        },
        locality="row",
        state=("kv_cache",),
    )
