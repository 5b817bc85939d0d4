"""The n-gram embedding: the table rows that a token's ids name, side by side.

    out[t, h*D + d] = table[ids[t, h], d]       0 where ids[t, h] is no row of the table

ids [T, H], table [rows, D] -> out [T, H*D]. Row-local. Ids outside the table read as zeros, so that padded rows may
hold anything. Offsets are 64-bit: the released table has 320 million rows of 160.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl


def table_gather_reference(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    valid = (ids >= 0) & (ids < table.shape[0])
    rows = table[torch.where(valid, ids, 0)]
    return torch.where(valid[..., None], rows, 0.0).flatten(1)


@jit
def _table_gather_kernel(
    ids_ptr, table_ptr, out_ptr,
    tokens, rows, heads, width, ids_row, ids_head, table_row, table_column,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_D)
    token, head = place // heads, place % heads
    row = tl.load(ids_ptr + token * ids_row + head * ids_head, mask=token < tokens, other=-1).to(tl.int64)
    inside = (token < tokens)[:, None] & (column < width)[None, :]
    valid = ((row >= 0) & (row < rows))[:, None] & inside
    value = tl.load(table_ptr + row[:, None] * table_row + column[None, :] * table_column, mask=valid, other=0.0)
    tl.store(out_ptr + place[:, None] * width + column[None, :], value, mask=inside)


def _launch(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    (tokens, heads), (rows, width) = ids.shape, table.shape
    places = block(tokens * heads, ids, gpu=16, cpu=512)
    _table_gather_kernel[(-(-tokens * heads // places),)](
        ids,
        table,
        out,
        tokens,
        rows,
        heads,
        width,
        *ids.stride(),
        *table.stride(),
        BLOCK_N=places,
        BLOCK_D=1 << (width - 1).bit_length(),
    )


@torch.library.custom_op("capwise::ple_table_gather", mutates_args=())
def ple_table_gather(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the n-gram table.

    Args:
        ids: int64 [T, H]. An id outside [0, rows) reads as a row of zeros.
        table: [rows, D], any strides.

    Returns:
        [T, H*D] in the table's dtype, dense.
    """
    if not on_triton(ids):
        return table_gather_reference(ids, table)
    out = table.new_empty((ids.shape[0], ids.shape[1] * table.shape[1]))
    if ids.shape[0]:
        _launch(ids, table, out)
    return out


@ple_table_gather.register_fake
def _(ids, table):
    return table.new_empty((ids.shape[0], ids.shape[1] * table.shape[1]))


@contract("capwise::ple_table_gather")
def table_gather_contract() -> Contract:
    return Contract(
        rows={
            "ids": Rows("T", None, tail=Any()),
            "table": Axes((None, None)),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
