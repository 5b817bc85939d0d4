"""Rows whose width is no power of two, held by a kernel as tiles whose widths are: 2560 columns are five tiles of 512,
where one tile would have 4096 lanes and work on all of them."""

from __future__ import annotations

import torch

from capwise.ops.launch import block, jit, tl

TILE = 512


@jit
def load_row(ptr, base, first, width, column_stride, live, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):
    """The columns first..first+width-1 of some rows as CHUNKS tiles [rows, BLOCK], in registers. base int64 [rows, 1],
    where each row starts; live [rows, 1]. What is past the row, or in no live row, is 0."""
    tiles = ()
    for c in tl.static_range(CHUNKS):
        j = c * BLOCK + tl.arange(0, BLOCK)[None, :]
        tiles += (tl.load(ptr + base + (first + j) * column_stride, mask=live & (j < width), other=0.0),)
    return tiles


def row_tiles(tokens: int, width: int, like: torch.Tensor) -> dict[str, int]:
    """The constexprs BLOCK_T, BLOCK and CHUNKS of a kernel that holds rows of `width`; few tokens a program."""
    columns = block(width, like, gpu=TILE, cpu=1 << 20)
    rows = block(tokens, like, gpu=max(1, TILE // columns), cpu=64)
    return {"BLOCK_T": rows, "BLOCK": columns, "CHUNKS": -(-width // columns)}
