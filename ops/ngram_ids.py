"""Hashed n-gram ids of every token: which rows of the n-gram table a token looks up.

n the largest order, C = n - 1 tokens of context, H = C * (heads per order) heads, w_0 = input_ids[t] and w_1..w_C the
predecessors of token t (see ops/predecessors.py):

    id[t, h] = (w_0 m_0 xor ... xor w_o m_o) mod size_h + offset_h,  o = h div (heads per order) + 1,  floor mod

All in wrapping int64. Every id lies in [0, rows of the table) whatever the inputs hold.

Two ops: `ple_ngram_ids` finds the predecessors itself, of request boundaries and contexts (the raw form); to
`ple_ngram_hash` they are given, and it is row-local: all that needs requests was done before, once a step whatever the
number of layers (the normal form). Both give the same bits.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.predecessors import check_chunks, place_in_chunk, predecessors_reference, word_before
from capwise.ops.search import rounds


def ngram_ids_reference(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
    eos: int,
) -> torch.Tensor:
    predecessors = predecessors_reference(input_ids, query_start_loc, ngram_context, eos)
    return ngram_hash_reference(input_ids, predecessors, multipliers, sizes, offsets)


def ngram_hash_reference(
    input_ids: torch.Tensor,
    predecessors: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
) -> torch.Tensor:
    mixed, per_order = input_ids.long() * multipliers[0], []
    for word, multiplier in zip(predecessors.long().unbind(1), multipliers[1:]):
        mixed = mixed ^ (word * multiplier)
        per_order.append(mixed)
    heads = sizes.shape[0] // len(per_order)
    tokens = input_ids.shape[0]
    mixed = torch.stack(per_order, 1).repeat_interleave(heads, 1) if tokens else sizes.new_empty(0, sizes.shape[0])
    return torch.remainder(mixed, sizes) + offsets


@jit
def _first_word(token, live, ids_ptr, multipliers_ptr, ids_stride):
    """w_0 m_0 of some tokens."""
    word = tl.load(ids_ptr + token.to(tl.int64) * ids_stride, mask=live, other=0).to(tl.int64)
    return word * tl.load(multipliers_ptr)


@jit
def _next_order(
    s, mixed, word, token, live, multipliers_ptr, sizes_ptr, offsets_ptr, out_ptr, multipliers_stride, sizes_stride,
    offsets_stride, CONTEXT: tl.constexpr, HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes w_s in and stores the ids of the heads of that order. -> the products so far."""
    mixed = mixed ^ (word * tl.load(multipliers_ptr + tl.full([], s, tl.int64) * multipliers_stride))
    head = tl.arange(0, HEADS_BLOCK)
    at = (s - 1) * HEADS + head
    size = tl.load(sizes_ptr + at.to(tl.int64) * sizes_stride, mask=head < HEADS, other=1)
    offset = tl.load(offsets_ptr + at.to(tl.int64) * offsets_stride, mask=head < HEADS, other=0)
    remainder = mixed[:, None] % size[None, :]
    remainder = tl.where(remainder < 0, remainder + size[None, :], remainder)
    out_at = token[:, None].to(tl.int64) * (CONTEXT * HEADS) + at[None, :]
    tl.store(out_ptr + out_at, remainder + offset[None, :], mask=live[:, None] & (head < HEADS)[None, :])
    return mixed


@jit
def _ngram_ids_kernel(
    ids_ptr,
    starts_ptr,
    context_ptr,
    multipliers_ptr,
    sizes_ptr,
    offsets_ptr,
    out_ptr,
    tokens,
    requests,
    ids_stride,
    starts_stride,
    context_stride_row,
    context_stride_column,
    multipliers_stride,
    sizes_stride,
    offsets_stride,
    eos,
    CONTEXT: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < tokens
    row, position = place_in_chunk(token, starts_ptr, requests, starts_stride, ROUNDS)
    mixed = _first_word(token, live, ids_ptr, multipliers_ptr, ids_stride)
    crossed = token < 0
    for s in tl.static_range(1, CONTEXT + 1):
        word = word_before(
            s, token, row, position, crossed, live, ids_ptr, context_ptr, ids_stride, context_stride_row,
            context_stride_column, eos, CONTEXT,
        )  # fmt: skip
        crossed = crossed | (word == eos)
        mixed = _next_order(
            s, mixed, word, token, live, multipliers_ptr, sizes_ptr, offsets_ptr, out_ptr, multipliers_stride,
            sizes_stride, offsets_stride, CONTEXT, HEADS, HEADS_BLOCK,
        )  # fmt: skip


@jit
def _ngram_hash_kernel(
    ids_ptr,
    words_ptr,
    multipliers_ptr,
    sizes_ptr,
    offsets_ptr,
    out_ptr,
    tokens,
    ids_stride,
    words_stride_row,
    words_stride_column,
    multipliers_stride,
    sizes_stride,
    offsets_stride,
    CONTEXT: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < tokens
    mixed = _first_word(token, live, ids_ptr, multipliers_ptr, ids_stride)
    for s in tl.static_range(1, CONTEXT + 1):
        at = token.to(tl.int64) * words_stride_row + tl.full([], s - 1, tl.int64) * words_stride_column
        word = tl.load(words_ptr + at, mask=live, other=0).to(tl.int64)
        mixed = _next_order(
            s, mixed, word, token, live, multipliers_ptr, sizes_ptr, offsets_ptr, out_ptr, multipliers_stride,
            sizes_stride, offsets_stride, CONTEXT, HEADS, HEADS_BLOCK,
        )  # fmt: skip


def _launch_ids(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos, out) -> None:
    tokens, context = input_ids.shape[0], multipliers.shape[0] - 1
    requests, heads = query_start_loc.shape[0] - 1, sizes.shape[0] // context
    size = block(tokens, input_ids, gpu=16, cpu=256)
    _ngram_ids_kernel[(-(-tokens // size),)](
        input_ids,
        query_start_loc,
        ngram_context,
        multipliers,
        sizes,
        offsets,
        out,
        tokens,
        requests,
        input_ids.stride(0),
        query_start_loc.stride(0),
        ngram_context.stride(0),
        ngram_context.stride(1),
        multipliers.stride(0),
        sizes.stride(0),
        offsets.stride(0),
        eos,
        CONTEXT=context,
        HEADS=heads,
        HEADS_BLOCK=power_of_two(heads),
        ROUNDS=rounds(requests),
        BLOCK=size,
    )


def _launch_hash(input_ids, predecessors, multipliers, sizes, offsets, out) -> None:
    tokens, context = predecessors.shape
    heads = sizes.shape[0] // context
    size = block(tokens, input_ids, gpu=16, cpu=256)
    _ngram_hash_kernel[(-(-tokens // size),)](
        input_ids,
        predecessors,
        multipliers,
        sizes,
        offsets,
        out,
        tokens,
        input_ids.stride(0),
        predecessors.stride(0),
        predecessors.stride(1),
        multipliers.stride(0),
        sizes.stride(0),
        offsets.stride(0),
        CONTEXT=context,
        HEADS=heads,
        HEADS_BLOCK=power_of_two(heads),
        BLOCK=size,
    )


def _check_tables(op: str, multipliers, sizes, offsets) -> int:
    """-> n-1."""
    context = multipliers.shape[0] - 1
    if context < 1 or sizes.shape[0] % context or sizes.shape != offsets.shape:
        raise ValueError(
            f"{op}: expected n >= 2 multipliers and a multiple of n-1 sizes and offsets; "
            f"got {context + 1} multipliers, {sizes.shape[0]} sizes, {offsets.shape[0]} offsets"
        )
    return context


@torch.library.custom_op("capwise::ple_ngram_ids", mutates_args=())
def ple_ngram_ids(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
    eos: int,
) -> torch.Tensor:
    """N-gram table rows of every token. Strides of every argument are honoured.

    Args:
        input_ids: int32 or int64 [T].
        query_start_loc: int32 [R+1], where each request's chunk starts; the last one is T.
        ngram_context: int32 [R, n-1], the tokens before each chunk, oldest first, eos where there is none.
        multipliers, sizes, offsets: int64 [n], [H], [H].

    Returns:
        int64 [T, H].

    Raises:
        ValueError: extents that contradict each other.
    """
    context = _check_tables("ple_ngram_ids", multipliers, sizes, offsets)
    check_chunks("ple_ngram_ids", input_ids, query_start_loc, ngram_context, context)
    if not on_triton(input_ids):
        return ngram_ids_reference(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos)
    out = input_ids.new_empty((input_ids.shape[0], sizes.shape[0]), dtype=torch.int64)
    if input_ids.shape[0]:
        _launch_ids(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos, out)
    return out


@ple_ngram_ids.register_fake
def _(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos):
    return input_ids.new_empty((input_ids.shape[0], sizes.shape[0]), dtype=torch.int64)


@torch.library.custom_op("capwise::ple_ngram_hash", mutates_args=())
def ple_ngram_hash(
    input_ids: torch.Tensor,
    predecessors: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """N-gram table rows of every token, of the tokens before it. Strides of every argument are honoured.

    Args:
        input_ids: int32 or int64 [T].
        predecessors: int32 or int64 [T, n-1], newest first, as `ple_predecessors` gives them.
        multipliers, sizes, offsets: int64 [n], [H], [H].

    Returns:
        int64 [T, H].

    Raises:
        ValueError: extents that contradict each other.
    """
    context, got = _check_tables("ple_ngram_hash", multipliers, sizes, offsets), tuple(predecessors.shape)
    if input_ids.dim() != 1:
        raise ValueError(f"ple_ngram_hash: input_ids: expected [T]; got {tuple(input_ids.shape)}")
    if got != (input_ids.shape[0], context):
        expected = f"[T, n-1] = ({input_ids.shape[0]}, {context})"
        raise ValueError(f"ple_ngram_hash: predecessors: expected {expected}; got {got}")
    if not on_triton(input_ids):
        return ngram_hash_reference(input_ids, predecessors, multipliers, sizes, offsets)
    out = input_ids.new_empty((input_ids.shape[0], sizes.shape[0]), dtype=torch.int64)
    if input_ids.shape[0]:
        _launch_hash(input_ids, predecessors, multipliers, sizes, offsets, out)
    return out


@ple_ngram_hash.register_fake
def _(input_ids, predecessors, multipliers, sizes, offsets):
    return input_ids.new_empty((input_ids.shape[0], sizes.shape[0]), dtype=torch.int64)


@contract("capwise::ple_ngram_ids")
def ngram_ids_contract() -> Contract:
    """With the last boundary repeated, a live token finds a live row: context rows past it may hold anything."""
    return Contract(
        rows={
            "input_ids": Rows("T", tail=Any()),
            "multipliers": Axes((None,)),
            "sizes": Axes((None,)),
            "offsets": Axes((None,)),
            "out": Rows("T", None, write=True),
        },
        requests={
            "query_start_loc": Boundaries("R+1", tail=Last()),
            "ngram_context": PerRequest("R", None, tail=Any()),
        },
        locality="segment",
    )


@contract("capwise::ple_ngram_hash")
def ngram_hash_contract() -> Contract:
    """A token needs its own row and no requests: no tail asks for anything."""
    return Contract(
        rows={
            "input_ids": Rows("T", tail=Any()),
            "predecessors": Rows("T", None, tail=Any()),
            "multipliers": Axes((None,)),
            "sizes": Axes((None,)),
            "offsets": Axes((None,)),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
