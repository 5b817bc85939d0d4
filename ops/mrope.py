"""Rotary embedding of queries and keys (ops/rope.py), alone or together with writing keys and values to their pages.

    mrope            y = rope(x)
    mrope_kv_write_  y = rope(q);   kv_cache[page, place, 0] = rope(k), kv_cache[page, place, 1] = v
                     of each token, page = slot div page_size, place = slot mod page_size; slots < 0 and page 0
                     (the null page) are skipped

A token needs its own row of each argument, so padded rows are harmless once their slot is -1. The key is rounded to k's
dtype by the rotation and then to the cache's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.rope import (
    axis_major,
    check_positions,
    check_sections,
    layout,
    pair_axes,
    rotate_reference,
    rotated,
    turns,
)


def kv_write_reference(k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, kv_cache: torch.Tensor) -> None:
    """k (rotated), v [T, HK, D] into kv_cache [blocks, page, 2, HK, D] at each token's slot.

    What must not be written goes to place 0 of page 0 with the values that it has: no host sync, no change.
    """
    pages, size = kv_cache.shape[:2]
    slot = slot_mapping.long()
    writes = (slot >= size) & (slot < pages * size)
    page, place = torch.where(writes, slot // size, 0), torch.where(writes, slot % size, 0)
    both = torch.where(writes[:, None, None, None], torch.stack([k, v], 1).to(kv_cache.dtype), kv_cache[0, 0])
    kv_cache.index_put_((page, place), both)


@jit
def _rotate_heads(
    x_ptr, x_at, x_column, y_ptr, y_at, y_column, live, writes, cos, sin, width,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Rotates heads whose offsets are x_at, y_at [N, H, 1]; live and writes [N, H, 1]; cos, sin [N, 1, BLOCK]."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    pair = tl.arange(0, BLOCK)[None, None, :]
    inside = live & (pair < PAIRS)
    first = tl.load(x_ptr + x_at + pair * x_column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + x_at + (pair + PAIRS) * x_column, mask=inside, other=0.0).to(tl.float32)
    low, high = rotated(first, second, cos, sin, dtype)
    inside = writes & (pair < PAIRS)
    tl.store(y_ptr + y_at + pair * y_column, low.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + y_at + (pair + PAIRS) * y_column, high.to(y_ptr.dtype.element_ty), mask=inside)
    if REST > 0:
        rest = 2 * PAIRS + tl.arange(0, REST)[None, None, :]
        kept = tl.load(x_ptr + x_at + rest * x_column, mask=live & (rest < width), other=0.0)
        tl.store(y_ptr + y_at + rest * y_column, kept.to(y_ptr.dtype.element_ty), mask=writes & (rest < width))


@jit
def _rotate_tile(
    x_ptr, positions_ptr, inv_freq_ptr, y_ptr, token, head, tokens, heads, width, x_row, x_head, x_column,
    position_axis, position_token, inv_freq_stride,
    PAIRS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Some tokens [N] and heads [H], int64, of x rotated into a dense y."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    cos, sin = turns(
        positions_ptr, inv_freq_ptr, token, token < tokens, position_axis, position_token, inv_freq_stride, dtype,
        PAIRS, HEIGHT, WIDTH, BLOCK,
    )  # fmt: skip
    live = (token < tokens)[:, None, None] & (head < heads)[None, :, None]
    x_at = token[:, None, None] * x_row + head[None, :, None] * x_head
    y_at = (token[:, None, None] * heads + head[None, :, None]) * width
    _rotate_heads(
        x_ptr, x_at, x_column, y_ptr, y_at, 1, live, live, cos[:, None, :], sin[:, None, :], width, PAIRS, BLOCK, REST
    )


@jit
def _mrope_kernel(
    x_ptr, positions_ptr, inv_freq_ptr, y_ptr,
    tokens, heads, width, x_row, x_head, x_column, position_axis, position_token, inv_freq_stride,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
    PAIRS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
    _rotate_tile(
        x_ptr, positions_ptr, inv_freq_ptr, y_ptr, token, head, tokens, heads, width, x_row, x_head, x_column,
        position_axis, position_token, inv_freq_stride, PAIRS, HEIGHT, WIDTH, BLOCK, REST,
    )  # fmt: skip


@jit
def _mrope_kv_write_kernel(
    q_ptr, k_ptr, v_ptr, positions_ptr, inv_freq_ptr, slots_ptr, cache_ptr, y_ptr,
    tokens, heads, kv_heads, width, pages, page_size, query_tiles, q_row, q_head, q_column, k_row, k_head, k_column,
    v_row, v_head, v_column, position_axis, position_token, inv_freq_stride, slots_stride, cache_page, cache_place,
    cache_part, cache_head, cache_column,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr,
    PAIRS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):
    """The first query_tiles programs of a token tile rotate queries; the others rotate keys and copy values."""
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    if tl.program_id(1) < query_tiles:
        head = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
        _rotate_tile(
            q_ptr, positions_ptr, inv_freq_ptr, y_ptr, token, head, tokens, heads, width, q_row, q_head, q_column,
            position_axis, position_token, inv_freq_stride, PAIRS, HEIGHT, WIDTH, BLOCK, REST,
        )  # fmt: skip
    else:
        own = ((tl.program_id(1) - query_tiles) * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :, None]
        slot = tl.load(slots_ptr + token * slots_stride, mask=token < tokens, other=-1).to(tl.int64)
        page, place = slot // page_size, slot % page_size
        writes = ((page > 0) & (page < pages))[:, None, None] & (own < kv_heads)
        cos, sin = turns(
            positions_ptr, inv_freq_ptr, token, token < tokens, position_axis, position_token, inv_freq_stride,
            k_ptr.dtype.element_ty, PAIRS, HEIGHT, WIDTH, BLOCK,
        )  # fmt: skip
        row = token[:, None, None]
        at = (page * cache_page + place * cache_place)[:, None, None] + own * cache_head
        _rotate_heads(
            k_ptr, row * k_row + own * k_head, k_column, cache_ptr, at, cache_column, writes, writes,
            cos[:, None, :], sin[:, None, :], width, PAIRS, BLOCK, REST,
        )  # fmt: skip
        column = tl.arange(0, WHOLE)[None, None, :]
        inside = writes & (column < width)
        value = tl.load(v_ptr + row * v_row + own * v_head + column * v_column, mask=inside, other=0.0)
        at = at + cache_part + column * cache_column
        tl.store(cache_ptr + at, value.to(cache_ptr.dtype.element_ty), mask=inside)


def _launch(x, positions, inv_freq, sections, y) -> None:
    tokens, heads, width = x.shape
    block_t, block_h = block(tokens, x, gpu=2, cpu=64), block(heads, x, gpu=8, cpu=64)
    _mrope_kernel[(-(-tokens // block_t), -(-heads // block_h))](
        x,
        positions,
        inv_freq,
        y,
        *x.shape,
        *x.stride(),
        *positions.stride(),
        inv_freq.stride(0),
        **layout(inv_freq, sections, width),
        BLOCK_T=block_t,
        BLOCK_H=block_h,
    )


def _launch_write(q, k, v, positions, inv_freq, slot_mapping, kv_cache, sections, y) -> None:
    (tokens, heads, width), kv_heads = q.shape, k.shape[1]
    block_t, block_h = block(tokens, q, gpu=2, cpu=64), block(heads, q, gpu=8, cpu=64)
    block_k = block(kv_heads, q, gpu=8, cpu=64)
    query_tiles = -(-heads // block_h)
    _mrope_kv_write_kernel[(-(-tokens // block_t), query_tiles + -(-kv_heads // block_k))](
        q,
        k,
        v,
        positions,
        inv_freq,
        slot_mapping,
        kv_cache,
        y,
        tokens,
        heads,
        kv_heads,
        width,
        *kv_cache.shape[:2],
        query_tiles,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *positions.stride(),
        inv_freq.stride(0),
        slot_mapping.stride(0),
        *kv_cache.stride(),
        **layout(inv_freq, sections, width),
        WHOLE=power_of_two(width),
        BLOCK_T=block_t,
        BLOCK_H=block_h,
        BLOCK_K=block_k,
    )


def check_heads(op: str, **heads: torch.Tensor) -> tuple[int, int]:
    """(T, D) of heads [T, h, D]; raises ValueError where they differ."""
    first = next(iter(heads.values()))
    tokens, width = first.shape[0], first.shape[-1]
    for name, value in heads.items():
        if value.dim() != 3 or (value.shape[0], value.shape[2]) != (tokens, width):
            raise ValueError(f"{op}: {name}: expected [T, heads, D] = [{tokens}, _, {width}]; got {tuple(value.shape)}")
    return tokens, width


def _check(op: str, positions, inv_freq, sections, token_major, **heads: torch.Tensor) -> None:
    tokens, width = check_heads(op, **heads)
    check_sections(op, sections, inv_freq, width)
    check_positions(op, positions, tokens, token_major)


def check_cache(
    k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor, kv_cache: torch.Tensor
) -> None:
    """Raises ValueError where values, slots or the cache contradict k [T, HK, D]."""
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
    where = axis_major(positions, token_major)
    if not on_triton(x):
        return rotate_reference(x, where, inv_freq, pair_axes(sections, inv_freq.shape[0]))
    y = x.new_empty(x.shape)
    if y.numel():
        _launch(x, where, inv_freq, sections, y)
    return y


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
        slot_mapping: int [T], page * page_size + place; negative slots, the null page 0 and slots of no page are
            skipped. No two tokens may have one slot.
        kv_cache: [blocks, page_size, 2, HK, D]; keys are 0, values 1.

    Returns:
        Rotated q, [T, HQ, D], dense.

    Raises:
        ValueError: as `mrope`; a cache or slots that contradict k and v.
    """
    _check("mrope_kv_write_", positions, inv_freq, sections, token_major, q=q, k=k, v=v)
    check_cache(k, v, slot_mapping, kv_cache)
    where = axis_major(positions, token_major)
    if not on_triton(q):
        axes = pair_axes(sections, inv_freq.shape[0])
        kv_write_reference(rotate_reference(k, where, inv_freq, axes), v, slot_mapping, kv_cache)
        return rotate_reference(q, where, inv_freq, axes)
    y = q.new_empty(q.shape)
    if y.numel():
        _launch_write(q, k, v, where, inv_freq, slot_mapping, kv_cache, sections, y)
    return y


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
