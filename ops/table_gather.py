"""The n-gram embedding: the table rows that a token's ids name, side by side.

    out[t, h*D + d] = table[ids[t, h], d]       0 where ids[t, h] is no row of the table

ids [T, H], table [rows, D] -> out [T, H*D]. Row-local. Ids outside the table read as zeros, so that padded rows may
hold anything. Offsets are 64-bit: the released table has 320 million rows of 160.

A table of 8-bit floats (e4m3) has one scale for all of it: out = table[...] * scale in float32, rounded once. There are
two kinds: OCP (bias 7, largest 448) and fnuz (bias 8, largest 240, no negative zero), which is what gfx942 computes
with. The kernel decodes either from its bits, so that every target reads every table alike.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


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
    column = tl.arange(0, BLOCK_D).to(tl.int64)
    token, head = place // heads, place % heads
    row = tl.load(ids_ptr + token * ids_row + head * ids_head, mask=token < tokens, other=-1).to(tl.int64)
    inside = (token < tokens)[:, None] & (column < width)[None, :]
    valid = ((row >= 0) & (row < rows))[:, None] & inside
    value = tl.load(table_ptr + row[:, None] * table_row + column[None, :] * table_column, mask=valid, other=0.0)
    tl.store(out_ptr + place[:, None] * width + column[None, :], value, mask=inside)


@jit
def _decode(bits, FNUZ: tl.constexpr):
    """The float32 of e4m3 bits: sign, four bits of exponent, three of mantissa. int32 -> float32, exact."""
    BIAS: tl.constexpr = 8 if FNUZ else 7
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    normal = (((exponent + (127 - BIAS)) << 23) | (mantissa << 20)).to(tl.float32, bitcast=True)
    smallest = mantissa.to(tl.float32) * (0.5 ** (BIAS + 2))
    size = tl.where(exponent == 0, smallest, normal)
    nan = bits == 0x80 if FNUZ else (bits & 0x7F) == 0x7F
    return tl.where(nan, float("nan"), tl.where(bits >= 0x80, -size, size))


@jit
def _table_gather_fp8_kernel(
    ids_ptr, table_ptr, scale_ptr, out_ptr,
    tokens, rows, heads, width, ids_row, ids_head, table_row, table_column,
    FNUZ: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_D).to(tl.int64)
    token, head = place // heads, place % heads
    row = tl.load(ids_ptr + token * ids_row + head * ids_head, mask=token < tokens, other=-1).to(tl.int64)
    inside = (token < tokens)[:, None] & (column < width)[None, :]
    valid = ((row >= 0) & (row < rows))[:, None] & inside
    bits = tl.load(table_ptr + row[:, None] * table_row + column[None, :] * table_column, mask=valid, other=0)
    value = _decode(bits.to(tl.int32), FNUZ) * tl.load(scale_ptr).to(tl.float32)
    value = tl.where(valid, value, 0.0)
    tl.store(out_ptr + place[:, None] * width + column[None, :], value.to(out_ptr.dtype.element_ty), mask=inside)


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
        BLOCK_D=power_of_two(width),
    )


def _launch_fp8(ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    (tokens, heads), (rows, width) = ids.shape, table.shape
    places = block(tokens * heads, ids, gpu=16, cpu=512)
    _table_gather_fp8_kernel[(-(-tokens * heads // places),)](
        ids,
        table.view(torch.uint8),
        scale,
        out,
        tokens,
        rows,
        heads,
        width,
        *ids.stride(),
        *table.stride(),
        FNUZ=table.dtype == FP8[1],
        BLOCK_N=places,
        BLOCK_D=power_of_two(width),
    )


def fp8_dtype(arch: str = "") -> torch.dtype:
    """The 8-bit format in which a device computes: fnuz on gfx940 to gfx942, OCP elsewhere.

    Args:
        arch: as torch names it (`gcnArchName`), for example "gfx942:sramecc+:xnack-"; empty where there is none.
    """
    return FP8[1] if arch.partition(":")[0] in ("gfx940", "gfx941", "gfx942") else FP8[0]


def quantise_table(table: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """table [rows, D] -> the same in 8 bits, and the one scale of it, float32 [].

    Raises:
        ValueError: dtype is no e4m3 format.
    """
    if dtype not in FP8:
        raise ValueError(f"quantise_table: dtype: expected one of {FP8}; got {dtype}")
    most = table.abs().amax().float()
    scale = torch.where(most == 0, 1.0, most / torch.finfo(dtype).max)
    return (table.float() / scale).to(dtype), scale


def to_fnuz(table: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An OCP table and its scale as fnuz: the same bits mean half as much there, and the bits of -0 mean NaN.

    Raises:
        ValueError: the table is not OCP.
    """
    if table.dtype != FP8[0]:
        raise ValueError(f"to_fnuz: table: expected {FP8[0]}; got {table.dtype}")
    bits = table.view(torch.uint8)
    # 0x7f and 0xff are NaN in OCP and numbers in fnuz; 0x80 is the one NaN of fnuz.
    nan, zero = (bits & 0x7F) == 0x7F, bits == 0x80
    return torch.where(nan, 0x80, torch.where(zero, 0, bits)).to(torch.uint8).view(FP8[1]), scale * 2.0


def table_gather_fp8_reference(
    ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    valid = (ids >= 0) & (ids < table.shape[0])
    rows = table.view(torch.uint8)[torch.where(valid, ids, 0)].view(table.dtype)
    return torch.where(valid[..., None], rows.float() * scale.float(), 0.0).to(dtype).flatten(1)


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
            "ids": Slots("T", None, into="table", null=-1, tail=Any()),
            "table": Axes((None, None)),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )


@torch.library.custom_op("capwise::ple_table_gather_fp8", mutates_args=())
def ple_table_gather_fp8(
    ids: torch.Tensor, table: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Rows of an 8-bit n-gram table.

    Args:
        ids: int64 [T, H]. An id outside [0, rows) reads as a row of zeros.
        table: float8_e4m3fn or float8_e4m3fnuz [rows, D], any strides.
        scale: float32, one number: what the table's values are multiplied by.
        dtype: of the output.

    Returns:
        [T, H*D], dense.

    Raises:
        ValueError: the table is of another format, or there is more than one scale.
    """
    if table.dtype not in FP8:
        raise ValueError(f"ple_table_gather_fp8: table: expected one of {FP8}; got {table.dtype}")
    if scale.numel() != 1:
        raise ValueError(f"ple_table_gather_fp8: scale: expected one number; got {tuple(scale.shape)}")
    if not on_triton(ids):
        return table_gather_fp8_reference(ids, table, scale, dtype)
    out = ids.new_empty((ids.shape[0], ids.shape[1] * table.shape[1]), dtype=dtype)
    if ids.shape[0]:
        _launch_fp8(ids, table, scale, out)
    return out


@ple_table_gather_fp8.register_fake
def _(ids, table, scale, dtype):
    return ids.new_empty((ids.shape[0], ids.shape[1] * table.shape[1]), dtype=dtype)


@contract("capwise::ple_table_gather_fp8")
def table_gather_fp8_contract() -> Contract:
    return Contract(
        rows={
            "ids": Slots("T", None, into="table", null=-1, tail=Any()),
            "table": Axes((None, None)),
            "scale": Axes(()),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
