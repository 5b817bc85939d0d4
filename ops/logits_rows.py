"""The rows whose logits are needed: every row of a verify request, the last row of any other.

    out[r, j] = hidden[start_r + j]      verify request, j < tokens of r
                hidden[end_r - 1]        other request with at least one token, j = 0
                0                        else                                       0 <= j < width

hidden [T, H], query_start_loc [R+1], is_spec bool [R] -> out [R, width, H]: the result leaves the token axis.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Fill, Last, PerRequest, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl


def logits_rows_reference(
    hidden: torch.Tensor, query_start_loc: torch.Tensor, is_spec: torch.Tensor, width: int
) -> torch.Tensor:
    starts, j = query_start_loc.long(), torch.arange(width, device=hidden.device)
    start, end = starts[:-1, None], starts[1:, None]
    row = torch.where(is_spec.bool()[:, None], start + j, torch.where(j == 0, end - 1, -1))
    there = (row >= start) & (row < end) & (row >= 0) & (row < hidden.shape[0])
    if not hidden.shape[0]:
        return hidden.new_zeros((*row.shape, hidden.shape[1]))
    return torch.where(there[..., None], hidden[torch.where(there, row, 0)], 0.0)


@jit
def _logits_rows_kernel(
    hidden_ptr, starts_ptr, spec_ptr, out_ptr,
    tokens, requests, columns, hidden_row, hidden_column, starts_stride, spec_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):
    request, j = (tl.program_id(0) // WIDTH).to(tl.int64), tl.program_id(0) % WIDTH
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    start = tl.load(starts_ptr + request * starts_stride).to(tl.int64)
    end = tl.load(starts_ptr + (request + 1) * starts_stride).to(tl.int64)
    spec = tl.load(spec_ptr + request * spec_stride) != 0
    row = tl.where(spec, start + j, end - 1)
    there = (spec | (j == 0)) & (row >= start) & (row < end) & (row >= 0) & (row < tokens)
    inside = column < columns
    value = tl.load(hidden_ptr + row * hidden_row + column * hidden_column, mask=inside & there, other=0.0)
    tl.store(out_ptr + tl.program_id(0).to(tl.int64) * columns + column, value, mask=inside)


def _launch(hidden, query_start_loc, is_spec, width, out) -> None:
    (tokens, columns), requests = hidden.shape, is_spec.shape[0]
    size = block(columns, hidden, gpu=1024, cpu=4096)
    _logits_rows_kernel[(requests * width, -(-columns // size))](
        hidden,
        query_start_loc,
        is_spec,
        out,
        tokens,
        requests,
        columns,
        *hidden.stride(),
        query_start_loc.stride(0),
        is_spec.stride(0),
        WIDTH=width,
        BLOCK=size,
    )


@torch.library.custom_op("capwise::logits_rows", mutates_args=())
def logits_rows(
    hidden: torch.Tensor, query_start_loc: torch.Tensor, is_spec: torch.Tensor, width: int
) -> torch.Tensor:
    """Rows to take logits of, at most `width` a request. Strides are honoured.

    Args:
        hidden: [T, H]. query_start_loc: int [R+1].
        is_spec: bool [R], whether the request's chunk is a verify chunk.
        width: 1 + the number of draft tokens that a verify chunk may hold.

    Returns:
        [R, width, H] in hidden's dtype, dense; 0 where a request has no such row.

    Raises:
        ValueError: extents that contradict each other.
    """
    if hidden.dim() != 2 or query_start_loc.shape[0] != is_spec.shape[0] + 1 or width < 1:
        got = f"{tuple(hidden.shape)}, {tuple(query_start_loc.shape)}, {tuple(is_spec.shape)}, {width}"
        raise ValueError(
            f"logits_rows: expected hidden [T, H], query_start_loc [R+1], is_spec [R], width >= 1; got {got}"
        )
    if not on_triton(hidden):
        return logits_rows_reference(hidden, query_start_loc, is_spec, width)
    out = hidden.new_empty((is_spec.shape[0], width, hidden.shape[1]))
    if out.numel():
        _launch(hidden, query_start_loc, is_spec, width, out)
    return out


@logits_rows.register_fake
def _(hidden, query_start_loc, is_spec, width):
    return hidden.new_empty((is_spec.shape[0], width, hidden.shape[1]))


@contract("capwise::logits_rows")
def logits_rows_contract() -> Contract:
    """With the last boundary repeated, requests past the live ones are empty: their rows of the result are 0."""
    return Contract(
        rows={"hidden": Rows("T", None, tail=Any()), "out": Axes(("R", None, None), tail=Fill(0), write=True)},
        requests={"query_start_loc": Boundaries("R+1", tail=Last()), "is_spec": PerRequest("R", tail=Any())},
        locality="segment",
    )
