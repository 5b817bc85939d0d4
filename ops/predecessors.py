"""The tokens before each token, once a step: what n-grams need of request boundaries, and all they need.

C tokens of context. For token t, its request row r (see ops/search.py) and its position p = t - query_start_loc[r] in
this step's chunk, with crossed = False at first:

    w_s = input_ids[t - s]          where p >= s          s = 1..C
          ngram_context[r, C-s+p]   otherwise             (oldest to newest: the C tokens before the chunk)
    if crossed: w_s = eos;  if w_s == eos: crossed = True       (input_ids[t] == eos does not set it)
    predecessors[t, s-1] = w_s

Where a boundary list is not monotone a position may come out negative: what would be read from outside a context row
reads as eos. What is made of predecessors (ops/ngram_ids.py) is row-local.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Boundaries, Contract, Last, PerRequest, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl
from capwise.ops.search import request_row, request_rows, rounds


def predecessors_reference(
    input_ids: torch.Tensor, query_start_loc: torch.Tensor, ngram_context: torch.Tensor, eos: int
) -> torch.Tensor:
    tokens, context = input_ids.shape[0], ngram_context.shape[1]
    ids, before = input_ids.long(), ngram_context.long()
    row = request_rows(tokens, query_start_loc)
    token = torch.arange(tokens, device=ids.device)
    position = token - query_start_loc.long()[row]
    crossed = torch.zeros_like(ids, dtype=torch.bool)
    words = []
    for s in range(1, context + 1):
        column = context - s + position
        older = torch.where(column >= 0, before[row, column.clamp(0, context - 1)], eos)
        newer = torch.where(token >= s, ids[(token - s).clamp(min=0)], eos)
        words.append(torch.where(crossed, eos, torch.where(position >= s, newer, older)))
        crossed = crossed | (words[-1] == eos)
    return torch.stack(words, 1)


@jit
def place_in_chunk(token, starts_ptr, requests, starts_stride, ROUNDS: tl.constexpr):
    """(request row int32, position in the chunk int64) of some tokens."""
    row = request_row(token, starts_ptr, starts_stride, requests, ROUNDS)
    return row, token - tl.load(starts_ptr + row.to(tl.int64) * starts_stride).to(tl.int64)


@jit
def word_before(
    s, token, row, position, crossed, live, ids_ptr, context_ptr, ids_stride, context_stride_row,
    context_stride_column, eos, CONTEXT: tl.constexpr,
):  # fmt: skip
    """w_s of some tokens, int64; crossed: where a newer one is eos."""
    inside = position >= s
    newer_at = (token - s).to(tl.int64) * ids_stride
    newer = tl.load(ids_ptr + newer_at, mask=live & inside & (token >= s), other=eos).to(tl.int64)
    column = CONTEXT - s + position
    older_at = row.to(tl.int64) * context_stride_row + column * context_stride_column
    older = tl.load(context_ptr + older_at, mask=live & (position < s) & (column >= 0), other=eos).to(tl.int64)
    return tl.where(crossed, eos, tl.where(inside, newer, older)).to(tl.int64)


@jit
def _predecessors_kernel(
    ids_ptr,
    starts_ptr,
    context_ptr,
    out_ptr,
    tokens,
    requests,
    ids_stride,
    starts_stride,
    context_stride_row,
    context_stride_column,
    eos,
    CONTEXT: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < tokens
    row, position = place_in_chunk(token, starts_ptr, requests, starts_stride, ROUNDS)
    crossed = token < 0
    for s in tl.static_range(1, CONTEXT + 1):
        word = word_before(
            s, token, row, position, crossed, live, ids_ptr, context_ptr, ids_stride, context_stride_row,
            context_stride_column, eos, CONTEXT,
        )  # fmt: skip
        crossed = crossed | (word == eos)
        tl.store(out_ptr + token.to(tl.int64) * CONTEXT + (s - 1), word, mask=live)


def _launch(input_ids, query_start_loc, ngram_context, eos, out) -> None:
    tokens, requests = input_ids.shape[0], query_start_loc.shape[0] - 1
    size = block(tokens, input_ids, gpu=128, cpu=256)
    _predecessors_kernel[(-(-tokens // size),)](
        input_ids,
        query_start_loc,
        ngram_context,
        out,
        tokens,
        requests,
        input_ids.stride(0),
        query_start_loc.stride(0),
        ngram_context.stride(0),
        ngram_context.stride(1),
        eos,
        CONTEXT=ngram_context.shape[1],
        ROUNDS=rounds(requests),
        BLOCK=size,
    )


def check_chunks(op: str, input_ids, query_start_loc, ngram_context, context: int) -> None:
    """Raises ValueError: the extents of a step's tokens, boundaries and contexts of n-1 = `context` contradict."""
    requests, got = query_start_loc.shape[0] - 1, tuple(ngram_context.shape)
    if input_ids.dim() != 1:
        raise ValueError(f"{op}: input_ids: expected [T]; got {tuple(input_ids.shape)}")
    if got != (requests, context):
        raise ValueError(f"{op}: ngram_context: expected [R, n-1] = ({requests}, {context}); got {got}")
    if requests < 1 and input_ids.shape[0]:
        raise ValueError(f"{op}: query_start_loc: expected at least one request; got none")


@torch.library.custom_op("capwise::ple_predecessors", mutates_args=())
def ple_predecessors(
    input_ids: torch.Tensor, query_start_loc: torch.Tensor, ngram_context: torch.Tensor, eos: int
) -> torch.Tensor:
    """The n-1 tokens before every token, newest first. Strides of every argument are honoured.

    Args:
        input_ids: int32 or int64 [T].
        query_start_loc: int32 [R+1], where each request's chunk starts; the last one is T.
        ngram_context: int32 [R, n-1], the tokens before each chunk, oldest first, eos where there is none.
        eos: the id that ends a text: what stands before it reads as eos too.

    Returns:
        int64 [T, n-1].

    Raises:
        ValueError: extents that contradict each other.
    """
    context = max((1, *ngram_context.shape[1:2]))
    check_chunks("ple_predecessors", input_ids, query_start_loc, ngram_context, context)
    if not on_triton(input_ids):
        return predecessors_reference(input_ids, query_start_loc, ngram_context, eos)
    out = input_ids.new_empty((input_ids.shape[0], context), dtype=torch.int64)
    if input_ids.shape[0]:
        _launch(input_ids, query_start_loc, ngram_context, eos, out)
    return out


@ple_predecessors.register_fake
def _(input_ids, query_start_loc, ngram_context, eos):
    return input_ids.new_empty((input_ids.shape[0], ngram_context.shape[1]), dtype=torch.int64)


@contract("capwise::ple_predecessors")
def predecessors_contract() -> Contract:
    """With the last boundary repeated, a live token finds a live row: context rows past it may hold anything."""
    return Contract(
        rows={"input_ids": Rows("T", tail=Any()), "out": Rows("T", None, write=True)},
        requests={
            "query_start_loc": Boundaries("R+1", tail=Last()),
            "ngram_context": PerRequest("R", None, tail=Any()),
        },
        locality="segment",
    )
