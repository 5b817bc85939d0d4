"""Request structure turned into one value a token, once a step: what comes after needs no boundaries.

For token t of request r (see ops/search.py), whose chunk is the rows start_r..end_r - 1 and which has seq_lens[r]
tokens once the chunk is done:

    token_to_req[t] = r                      logical_pos[t] = seq_lens[r] - (end_r - t)
    rows past the last boundary:             logical_pos[t] = -1, token_to_req[t] any request row
    slot_mapping[t] = page * page_size + p mod page_size     p = logical_pos[t], page = block_table[r, p div page_size]
                      -1 where p < 0, or where the table names no page that a request may own (0 is the null page)

A captured graph runs this at padded extents: a token past the live ones gets position -1 and so slot -1, which every
writer skips.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Fill, Last, PerRequest, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl
from capwise.ops.search import request_row, request_rows, rounds

NULL_PAGE = 0


def token_requests_reference(
    query_start_loc: torch.Tensor, seq_lens: torch.Tensor, tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    token = torch.arange(tokens, device=query_start_loc.device)
    row = request_rows(tokens, query_start_loc)
    starts = query_start_loc.long()
    position = seq_lens.long()[row] - (starts[row + 1] - token)
    live = (token < starts[-1]) & (starts[row] <= token) & (token < starts[row + 1])
    return row.int(), torch.where(live, position.clamp(min=-1), -1).int()


def slot_mapping_reference(
    token_to_req: torch.Tensor, logical_pos: torch.Tensor, block_table: torch.Tensor, page_size: int
) -> torch.Tensor:
    page = pages_of(token_to_req, logical_pos, block_table, page_size)
    return torch.where(page > NULL_PAGE, page * page_size + logical_pos.long() % page_size, -1)


def pages_of(
    token_to_req: torch.Tensor, position: torch.Tensor, block_table: torch.Tensor, page_size: int
) -> torch.Tensor:
    """The page that holds a position of a token's request. token_to_req, position [...] -> int64 [...]; 0 for none."""
    requests, width = block_table.shape
    row, column = token_to_req.long(), position.long() // page_size
    there = (position >= 0) & (column < width) & (row >= 0) & (row < requests)
    page = block_table.long()[torch.where(there, row, 0), torch.where(there, column, 0)]
    return torch.where(there, page, NULL_PAGE)


@jit
def place_of(token, starts_ptr, lens_ptr, requests, starts_stride, lens_stride, ROUNDS: tl.constexpr):
    """(request, logical position or -1, chunk start, chunk end) of some tokens, int64 each."""
    row = request_row(token, starts_ptr, starts_stride, requests, ROUNDS).to(tl.int64)
    start = tl.load(starts_ptr + row * starts_stride).to(tl.int64)
    end = tl.load(starts_ptr + (row + 1) * starts_stride).to(tl.int64)
    last = tl.load(starts_ptr + requests.to(tl.int64) * starts_stride).to(tl.int64)
    position = tl.load(lens_ptr + row * lens_stride).to(tl.int64) - (end - token)
    live = (token < last) & (start <= token) & (token < end) & (position >= 0)
    return row, tl.where(live, position, -1), start, end


@jit
def _token_requests_kernel(
    starts_ptr, lens_ptr, row_ptr, position_ptr, tokens, requests, starts_stride, lens_stride,
    ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, position, _, _ = place_of(token, starts_ptr, lens_ptr, requests, starts_stride, lens_stride, ROUNDS)
    at = token.to(tl.int64)
    tl.store(row_ptr + at, row.to(tl.int32), mask=token < tokens)
    tl.store(position_ptr + at, position.to(tl.int32), mask=token < tokens)


@jit
def page_of(request, position, there, table_ptr, requests, width, page_size, table_row, table_column):
    """The page that holds a position of a request, all int64; 0 where `there` is false or the table has no such row."""
    column = position // page_size
    inside = there & (position >= 0) & (column < width) & (request >= 0) & (request < requests)
    return tl.load(table_ptr + request * table_row + column * table_column, mask=inside, other=0).to(tl.int64)


@jit
def _slot_mapping_kernel(
    row_ptr, position_ptr, table_ptr, slot_ptr,
    tokens, requests, width, page_size, row_stride, position_stride, table_row, table_column,
    BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = token < tokens
    request = tl.load(row_ptr + token * row_stride, mask=inside, other=-1).to(tl.int64)
    position = tl.load(position_ptr + token * position_stride, mask=inside, other=-1).to(tl.int64)
    page = page_of(request, position, inside, table_ptr, requests, width, page_size, table_row, table_column)
    tl.store(slot_ptr + token, tl.where(page > 0, page * page_size + position % page_size, -1), mask=inside)


def _launch_requests(query_start_loc, seq_lens, row, position) -> None:
    tokens, requests = row.shape[0], seq_lens.shape[0]
    size = block(tokens, row, gpu=128, cpu=512)
    _token_requests_kernel[(-(-tokens // size),)](
        query_start_loc,
        seq_lens,
        row,
        position,
        tokens,
        requests,
        query_start_loc.stride(0),
        seq_lens.stride(0),
        ROUNDS=rounds(requests),
        BLOCK=size,
    )


def _launch_slots(token_to_req, logical_pos, block_table, page_size, slots) -> None:
    tokens = slots.shape[0]
    size = block(tokens, slots, gpu=128, cpu=512)
    _slot_mapping_kernel[(-(-tokens // size),)](
        token_to_req,
        logical_pos,
        block_table,
        slots,
        tokens,
        *block_table.shape,
        page_size,
        token_to_req.stride(0),
        logical_pos.stride(0),
        *block_table.stride(),
        BLOCK=size,
    )


@torch.library.custom_op("capwise::token_requests", mutates_args=())
def token_requests(
    query_start_loc: torch.Tensor, seq_lens: torch.Tensor, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which request each token belongs to, and its position in that request. Strides are honoured.

    Args:
        query_start_loc: int [R+1]. seq_lens: int [R], tokens of each request once this step is done.
        like: [T, ...], only says how many tokens there are.

    Returns:
        token_to_req int32 [T], in 0..R-1, and logical_pos int32 [T], -1 past the last boundary.

    Raises:
        ValueError: extents that contradict each other.
    """
    tokens, requests = like.shape[0], seq_lens.shape[0]
    if tuple(query_start_loc.shape) != (requests + 1,) or (requests < 1 and tokens):
        got = f"{tuple(query_start_loc.shape)}, {tuple(seq_lens.shape)}"
        raise ValueError(f"token_requests: expected query_start_loc [R+1], seq_lens [R], R >= 1; got {got}")
    if not on_triton(query_start_loc) and tokens:
        return token_requests_reference(query_start_loc, seq_lens, tokens)
    row, position = (query_start_loc.new_empty(tokens, dtype=torch.int32) for _ in range(2))
    if tokens:
        _launch_requests(query_start_loc, seq_lens, row, position)
    return row, position


@token_requests.register_fake
def _(query_start_loc, seq_lens, like):
    tokens = like.shape[0]
    return tuple(query_start_loc.new_empty((tokens,), dtype=torch.int32) for _ in range(2))


@torch.library.custom_op("capwise::slot_mapping", mutates_args=())
def slot_mapping(
    token_to_req: torch.Tensor, logical_pos: torch.Tensor, block_table: torch.Tensor, page_size: int
) -> torch.Tensor:
    """Where each token's key and value go in a paged cache. Strides are honoured.

    Args:
        token_to_req, logical_pos: int [T], as `token_requests` gives them.
        block_table: int [R, NB], the pages of each request in order; 0 is the null page.
        page_size: tokens a page.

    Returns:
        int64 [T], page * page_size + position in the page; -1 for tokens that have no place.

    Raises:
        ValueError: extents that contradict each other.
    """
    if token_to_req.dim() != 1 or token_to_req.shape != logical_pos.shape or block_table.dim() != 2 or page_size < 1:
        got = ", ".join(str(tuple(t.shape)) for t in (token_to_req, logical_pos, block_table))
        raise ValueError(
            f"slot_mapping: expected token_to_req [T], logical_pos [T], block_table [R, NB], page_size >= 1; "
            f"got {got}, {page_size}"
        )
    if not on_triton(token_to_req):
        return slot_mapping_reference(token_to_req, logical_pos, block_table, page_size)
    slots = token_to_req.new_empty(token_to_req.shape, dtype=torch.int64)
    if slots.shape[0]:
        _launch_slots(token_to_req, logical_pos, block_table, page_size, slots)
    return slots


@slot_mapping.register_fake
def _(token_to_req, logical_pos, block_table, page_size):
    return token_to_req.new_empty(token_to_req.shape, dtype=torch.int64)


@contract("capwise::token_requests")
def token_requests_contract() -> Contract:
    """With the last boundary repeated, tokens past it are recognised, and no live token finds an empty request."""
    return Contract(
        rows={
            "like": Axes(("T",), tail=Any()),
            "out0": Rows("T", write=True),
            "out1": Rows("T", tail=Fill(-1), write=True),
        },
        requests={"query_start_loc": Boundaries("R+1", tail=Last()), "seq_lens": PerRequest("R", tail=Any())},
        locality="row",
    )


@contract("capwise::slot_mapping")
def slot_mapping_contract() -> Contract:
    """A token at position -1 gets slot -1: so the tail of what this returns is known if that of the positions is."""
    return Contract(
        rows={
            "token_to_req": Rows("T", tail=Any()),
            "logical_pos": Rows("T", tail=Fill(-1)),
            "out": Rows("T", tail=Fill(-1), write=True),
        },
        requests={"block_table": PerRequest("R", None, tail=Any())},
        locality="row",
    )
