"""Hashed n-gram ids of every token: which rows of the n-gram table a token looks up.

n the largest order, C = n - 1 tokens of context, H = C * (heads per order) heads. For token t, its request row r (see
ops/search.py) and its position p = t - query_start_loc[r] in this step's chunk, with crossed = False at first:

    w_0 = input_ids[t]
    w_s = input_ids[t - s]          where p >= s          s = 1..C
          ngram_context[r, C-s+p]   otherwise             (oldest to newest: the C tokens before the chunk)
    if crossed: w_s = eos;  if w_s == eos: crossed = True       (w_0 == eos does not set it)
    id[t, h] = (w_0 m_0 xor ... xor w_o m_o) mod size_h + offset_h,  o = h div (heads per order) + 1,  floor mod

All in wrapping int64. Every id lies in [0, rows of the table) whatever the inputs hold. Where a boundary list is not
monotone a position may come out negative: what would be read from outside a context row reads as eos.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.search import request_row, request_rows, rounds


def ngram_ids_reference(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
    eos: int,
) -> torch.Tensor:
    tokens, context = input_ids.shape[0], multipliers.shape[0] - 1
    ids, before = input_ids.long(), ngram_context.long()
    row = request_rows(tokens, query_start_loc)
    token = torch.arange(tokens, device=ids.device)
    position = token - query_start_loc.long()[row]
    mixed, crossed = ids * multipliers[0], torch.zeros_like(ids, dtype=torch.bool)
    per_order = []
    for s in range(1, context + 1):
        column = context - s + position
        older = torch.where(column >= 0, before[row, column.clamp(0, context - 1)], eos)
        newer = torch.where(token >= s, ids[(token - s).clamp(min=0)], eos)
        word = torch.where(crossed, eos, torch.where(position >= s, newer, older))
        crossed = crossed | (word == eos)
        mixed = mixed ^ (word * multipliers[s])
        per_order.append(mixed)
    heads = sizes.shape[0] // context
    mixed = torch.stack(per_order, 1).repeat_interleave(heads, 1) if tokens else ids.new_empty(0, sizes.shape[0])
    return torch.remainder(mixed, sizes) + offsets


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
    row = request_row(token, starts_ptr, starts_stride, requests, ROUNDS)
    position = token - tl.load(starts_ptr + row.to(tl.int64) * starts_stride).to(tl.int64)
    word = tl.load(ids_ptr + token.to(tl.int64) * ids_stride, mask=live, other=0).to(tl.int64)
    mixed = word * tl.load(multipliers_ptr)
    crossed = token < 0
    head = tl.arange(0, HEADS_BLOCK)
    for s in tl.static_range(1, CONTEXT + 1):
        inside = position >= s
        newer_at = (token - s).to(tl.int64) * ids_stride
        newer = tl.load(ids_ptr + newer_at, mask=live & inside & (token >= s), other=eos).to(tl.int64)
        column = CONTEXT - s + position
        older_at = row.to(tl.int64) * context_stride_row + column * context_stride_column
        older = tl.load(context_ptr + older_at, mask=live & (position < s) & (column >= 0), other=eos).to(tl.int64)
        word = tl.where(crossed, eos, tl.where(inside, newer, older)).to(tl.int64)
        crossed = crossed | (word == eos)
        mixed = mixed ^ (word * tl.load(multipliers_ptr + tl.full([], s, tl.int64) * multipliers_stride))
        at = (s - 1) * HEADS + head
        size = tl.load(sizes_ptr + at.to(tl.int64) * sizes_stride, mask=head < HEADS, other=1)
        offset = tl.load(offsets_ptr + at.to(tl.int64) * offsets_stride, mask=head < HEADS, other=0)
        remainder = mixed[:, None] % size[None, :]
        remainder = tl.where(remainder < 0, remainder + size[None, :], remainder)
        out_at = token[:, None].to(tl.int64) * (CONTEXT * HEADS) + at[None, :]
        tl.store(out_ptr + out_at, remainder + offset[None, :], mask=live[:, None] & (head < HEADS)[None, :])


def _launch(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos, out) -> None:
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


def _check(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets) -> None:
    context, requests = multipliers.shape[0] - 1, query_start_loc.shape[0] - 1
    if tuple(ngram_context.shape) != (requests, context):
        got = tuple(ngram_context.shape)
        raise ValueError(f"ple_ngram_ids: ngram_context: expected [R, n-1] = ({requests}, {context}); got {got}")
    if context < 1 or sizes.shape[0] % context or sizes.shape != offsets.shape:
        raise ValueError(
            f"ple_ngram_ids: expected n >= 2 multipliers and a multiple of n-1 sizes and offsets; "
            f"got {context + 1} multipliers, {sizes.shape[0]} sizes, {offsets.shape[0]} offsets"
        )
    if requests < 1 and input_ids.shape[0]:
        raise ValueError("ple_ngram_ids: query_start_loc: expected at least one request; got none")


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
    _check(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets)
    if not on_triton(input_ids):
        return ngram_ids_reference(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos)
    out = input_ids.new_empty((input_ids.shape[0], sizes.shape[0]), dtype=torch.int64)
    if input_ids.shape[0]:
        _launch(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos, out)
    return out


@ple_ngram_ids.register_fake
def _(input_ids, query_start_loc, ngram_context, multipliers, sizes, offsets, eos):
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
