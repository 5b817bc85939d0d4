"""Hyper-connections: reading a layer's input from C residual streams of width H, and writing its output back.

All in float32, rnd: rounded to the dtype of the streams (nothing in float32); norm weights are stored less one. A
stream-major row x = [x_0 | ... | x_{C-1}], J = inject:

    norm    n_c = rnd(x_c * rsqrt(mean(x_c^2) + eps) * (1 + weight_c))
    mix     u   = rnd(mean over c of rnd(rnd(sigmoid(gate_logits_c)) * n_c))
    write   x_c + rnd(J_c * y)                                                  rounded once more

The products between them (down, up and inject projections) are plain GEMMs. Row-local.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl
from capwise.ops.rows import load_row, row_tiles


def norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float, hc: int) -> torch.Tensor:
    # A dense copy: what a sum rounds to must not depend on how its argument lies.
    streams = x.float().contiguous().unflatten(1, (hc, -1))
    scaled = streams * torch.rsqrt(streams.square().mean(-1, keepdim=True) + eps)
    return (scaled * (1.0 + weight.float().view(hc, -1))).to(x.dtype).flatten(1)


def mix_reference(n: torch.Tensor, gate_logits: torch.Tensor, hc: int) -> torch.Tensor:
    gate = torch.sigmoid(gate_logits.float().contiguous()).to(n.dtype).float()
    product = (gate * n.float().contiguous()).to(n.dtype).float()
    return product.unflatten(1, (hc, -1)).mean(1).to(n.dtype)


def write_reference(x: torch.Tensor, y: torch.Tensor, inject: torch.Tensor) -> torch.Tensor:
    product = (inject.float()[:, :, None] * y.float()[:, None, :]).to(x.dtype).float()
    return (x.float() + product.flatten(1)).to(x.dtype)


@jit
def _hc_norm_kernel(
    x_ptr, weight_ptr, out_ptr,
    tokens, width, eps, x_row, x_column, weight_stride,
    STREAMS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None].to(tl.int64)
    stream, live = tl.program_id(1), token < tokens
    xs = load_row(x_ptr, token * x_row, stream * width, width, x_column, live, BLOCK, CHUNKS)
    squares = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
    for c in tl.static_range(CHUNKS):
        squares += xs[c].to(tl.float32) * xs[c].to(tl.float32)
    scale = (1.0 / tl.sqrt(tl.sum(squares, 1) / width + eps))[:, None]
    for c in tl.static_range(CHUNKS):
        j = c * BLOCK + tl.arange(0, BLOCK)[None, :]
        at = stream * width + j
        weight = tl.load(weight_ptr + at * weight_stride, mask=j < width, other=0.0).to(tl.float32)
        normed = xs[c].to(tl.float32) * scale * (1.0 + weight)
        out_at = (token * STREAMS + stream) * width + j
        tl.store(out_ptr + out_at, normed.to(out_ptr.dtype.element_ty), mask=live & (j < width))


@jit
def _hc_mix_kernel(
    n_ptr, gate_ptr, out_ptr,
    tokens, width, n_row, n_column, gate_row, gate_column,
    STREAMS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None].to(tl.int64)
    j = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (token < tokens) & (j < width)
    dtype = out_ptr.dtype.element_ty
    total = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
    for stream in tl.static_range(STREAMS):
        at = stream * width + j
        n = tl.load(n_ptr + token * n_row + at * n_column, mask=inside, other=0.0).to(tl.float32)
        logits = tl.load(gate_ptr + token * gate_row + at * gate_column, mask=inside, other=0.0).to(tl.float32)
        gate = (1.0 / (1.0 + tl.exp(-logits))).to(dtype).to(tl.float32)
        total += (gate * n).to(dtype).to(tl.float32)
    tl.store(out_ptr + token * width + j, (total / STREAMS).to(dtype), mask=inside)


@jit
def _hc_write_kernel(
    x_ptr, y_ptr, inject_ptr, out_ptr,
    tokens, width, x_row, x_column, y_row, y_column, inject_row, inject_column,
    STREAMS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None].to(tl.int64)
    j = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (token < tokens) & (j < width)
    dtype = out_ptr.dtype.element_ty
    y = tl.load(y_ptr + token * y_row + j * y_column, mask=inside, other=0.0).to(tl.float32)
    for stream in tl.static_range(STREAMS):
        at = stream * width + j
        inject_at = token * inject_row + stream * inject_column
        inject = tl.load(inject_ptr + inject_at, mask=token < tokens, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + token * x_row + at * x_column, mask=inside, other=0.0).to(tl.float32)
        product = (inject * y).to(dtype).to(tl.float32)
        tl.store(out_ptr + (token * STREAMS + stream) * width + j, (x + product).to(dtype), mask=inside)


def _launch_norm(x, weight, eps, hc, out) -> None:
    tokens, width = x.shape[0], x.shape[1] // hc
    tiles = row_tiles(tokens, width, x)
    _hc_norm_kernel[(-(-tokens // tiles["BLOCK_T"]), hc)](
        x,
        weight,
        out,
        tokens,
        width,
        eps,
        *x.stride(),
        weight.stride(0),
        STREAMS=hc,
        **tiles,
        num_warps=2,
    )


def _grid(tokens: int, width: int, x: torch.Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Tiles of rows and columns: every stream of a tile is one program's, so that what they share is loaded once."""
    tile = {"BLOCK_T": block(tokens, x, gpu=4, cpu=64), "BLOCK": block(width, x, gpu=512, cpu=4096)}
    return (-(-tokens // tile["BLOCK_T"]), -(-width // tile["BLOCK"])), tile


def _launch_mix(n, gate_logits, hc, out) -> None:
    tokens, width = out.shape
    grid, tile = _grid(tokens, width, n)
    _hc_mix_kernel[grid](
        n, gate_logits, out, tokens, width, *n.stride(), *gate_logits.stride(), STREAMS=hc, **tile
    )


def _launch_write(x, y, inject, out) -> None:
    tokens, width = y.shape
    grid, tile = _grid(tokens, width, x)
    strides = *x.stride(), *y.stride(), *inject.stride()
    _hc_write_kernel[grid](x, y, inject, out, tokens, width, *strides, STREAMS=inject.shape[1], **tile)


def _check(op: str, name: str, got: torch.Tensor, expected: tuple[int, ...]) -> None:
    if tuple(got.shape) != expected:
        raise ValueError(f"{op}: {name}: expected {expected}; got {tuple(got.shape)}")


def _check_streams(op: str, name: str, x: torch.Tensor, hc: int) -> None:
    if hc < 1 or x.shape[1] % hc:
        raise ValueError(f"{op}: {name}: expected a multiple of the {hc} streams in each row; got {x.shape[1]}")


@torch.library.custom_op("capwise::hc_norm", mutates_args=())
def hc_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, hc: int) -> torch.Tensor:
    """Root-mean-square norm of each residual stream.

    Args:
        x: [T, hc*H]. weight: [hc*H], less one. Any strides.
        eps: added to each mean of squares.
        hc: how many residual streams.

    Returns:
        [T, hc*H] in x's dtype, dense.

    Raises:
        ValueError: shapes that contradict each other.
    """
    _check_streams("hc_norm", "x", x, hc)
    _check("hc_norm", "weight", weight, (x.shape[1],))
    if not on_triton(x):
        return norm_reference(x, weight, eps, hc)
    out = x.new_empty(x.shape)
    if out.numel():
        _launch_norm(x, weight, eps, hc, out)
    return out


@hc_norm.register_fake
def _(x, weight, eps, hc):
    return x.new_empty(x.shape)


@torch.library.custom_op("capwise::hc_mix", mutates_args=())
def hc_mix(n: torch.Tensor, gate_logits: torch.Tensor, hc: int) -> torch.Tensor:
    """A layer's input: the mean of the gated streams.

    Args:
        n, gate_logits: [T, hc*H], any strides; n as `hc_norm` gives it.
        hc: how many residual streams.

    Returns:
        [T, H] in n's dtype, dense.

    Raises:
        ValueError: shapes that contradict each other.
    """
    _check_streams("hc_mix", "n", n, hc)
    _check("hc_mix", "gate_logits", gate_logits, tuple(n.shape))
    if not on_triton(n):
        return mix_reference(n, gate_logits, hc)
    out = n.new_empty((n.shape[0], n.shape[1] // hc))
    if out.numel():
        _launch_mix(n, gate_logits, hc, out)
    return out


@hc_mix.register_fake
def _(n, gate_logits, hc):
    return n.new_empty((n.shape[0], n.shape[1] // hc))


@torch.library.custom_op("capwise::hc_write", mutates_args=())
def hc_write(x: torch.Tensor, y: torch.Tensor, inject: torch.Tensor) -> torch.Tensor:
    """The residual streams after a layer.

    Args:
        x: [T, C*H], the streams as they were before the norm. y: [T, H], what the layer gives. Any strides.
        inject: [T, C], how much of it enters each stream.

    Returns:
        [T, C*H] in x's dtype, dense.

    Raises:
        ValueError: shapes that contradict each other.
    """
    _check("hc_write", "inject", inject, (x.shape[0], inject.shape[1]))
    _check_streams("hc_write", "x", x, inject.shape[1])
    _check("hc_write", "y", y, (x.shape[0], x.shape[1] // inject.shape[1]))
    if not on_triton(x):
        return write_reference(x, y, inject)
    out = x.new_empty(x.shape)
    if out.numel():
        _launch_write(x, y, inject, out)
    return out


@hc_write.register_fake
def _(x, y, inject):
    return x.new_empty(x.shape)


@contract("capwise::hc_norm")
def norm_contract() -> Contract:
    return Contract(
        rows={"x": Rows("T", None, tail=Any()), "weight": Axes((None,)), "out": Rows("T", None, write=True)},
        locality="row",
    )


@contract("capwise::hc_mix")
def mix_contract() -> Contract:
    return Contract(
        rows={
            "n": Rows("T", None, tail=Any()),
            "gate_logits": Rows("T", None, tail=Any()),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )


@contract("capwise::hc_write")
def write_contract() -> Contract:
    return Contract(
        rows={
            "x": Rows("T", None, tail=Any()),
            "y": Rows("T", None, tail=Any()),
            "inject": Rows("T", None, tail=Any()),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
