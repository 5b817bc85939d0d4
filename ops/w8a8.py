"""A linear layer of 8-bit integers: weights quantised once with a scale for each output, activations at run time with
a scale for each row.

    s_t   = max_k |x_tk| / 127                   1 for a row of zeros
    q_tk  = round(x_tk / s_t)                    half to even, in [-127, 127]
    out   = (sum_k q_tk weight_nk) * s_t * weight_scale_n        an exact integer sum, then float32, then x's dtype

x [T, K], weight int8 [N, K], weight_scale float32 [N] -> out [T, N]. Row-local: no row's scale knows another row. One
scale for all rows is another thing: padded rows, and the other requests of a batch, would change every live row.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl

LARGEST = 127.0


def w8a8_reference(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    plain = x.float()
    most = plain.abs().amax(1, keepdim=True) if x.shape[1] else plain.new_zeros(x.shape[0], 1)
    scale = torch.where(most == 0, 1.0, most / LARGEST)
    steps = torch.round(plain / scale).clamp(-LARGEST, LARGEST)
    # Sums of products of 8-bit integers are exact in float64.
    total = (steps.double() @ weight.double().T).float()
    return (total * scale * weight_scale.float()).to(x.dtype)


def quantise_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [N, K] -> int8 [N, K], float32 [N], a scale for each output."""
    most = weight.float().abs().amax(1)
    scale = torch.where(most == 0, 1.0, most / LARGEST)
    return torch.round(weight.float() / scale[:, None]).clamp(-LARGEST, LARGEST).to(torch.int8), scale


@jit
def _w8a8_quantise_kernel(
    x_ptr, steps_ptr, scale_ptr,
    tokens, width, x_row, x_column,
    BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    live = (token < tokens)[:, None]
    most = tl.zeros((BLOCK_T,), dtype=tl.float32)
    for first in range(0, width, BLOCK):
        k = (first + tl.arange(0, BLOCK))[None, :]
        x = tl.load(x_ptr + token[:, None] * x_row + k * x_column, mask=live & (k < width), other=0.0)
        most = tl.maximum(most, tl.max(tl.abs(x.to(tl.float32)), 1))
    scale = tl.where(most == 0.0, 1.0, tl.div_rn(most, 127.0))
    tl.store(scale_ptr + token, scale, mask=token < tokens)
    for first in range(0, width, BLOCK):
        k = (first + tl.arange(0, BLOCK))[None, :]
        inside = live & (k < width)
        x = tl.load(x_ptr + token[:, None] * x_row + k * x_column, mask=inside, other=0.0).to(tl.float32)
        # Adding and taking away 1.5 * 2^23 leaves the nearest integer, the even one of two.
        step = (tl.div_rn(x, scale[:, None]) + 12582912.0) - 12582912.0
        step = tl.minimum(tl.maximum(step, -127.0), 127.0)
        tl.store(steps_ptr + token[:, None] * width + k, step.to(tl.int8), mask=inside)


@jit
def _w8a8_product_kernel(
    steps_ptr, scale_ptr, weight_ptr, weight_scale_ptr, out_ptr,
    tokens, outputs, width, weight_row, weight_column, weight_scale_stride,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.zeros((BLOCK_T, BLOCK_N), dtype=tl.int32)
    for first in range(0, width, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        there = (token < tokens)[:, None] & (k < width)[None, :]
        steps = tl.load(steps_ptr + token[:, None] * width + k[None, :], mask=there, other=0)
        weight_at = n[None, :] * weight_row + k[:, None] * weight_column
        weight = tl.load(weight_ptr + weight_at, mask=(n < outputs)[None, :] & (k < width)[:, None], other=0)
        total = tl.dot(steps, weight, total, out_dtype=tl.int32)
    scale = tl.load(scale_ptr + token, mask=token < tokens, other=0.0)
    weight_scale = tl.load(weight_scale_ptr + n * weight_scale_stride, mask=n < outputs, other=0.0)
    out = total.to(tl.float32) * scale[:, None] * weight_scale.to(tl.float32)[None, :]
    inside = (token < tokens)[:, None] & (n < outputs)[None, :]
    tl.store(out_ptr + token[:, None] * outputs + n[None, :], out.to(out_ptr.dtype.element_ty), mask=inside)


def _launch(x, weight, weight_scale, out) -> None:
    (tokens, width), outputs = x.shape, weight.shape[0]
    steps = x.new_empty((tokens, width), dtype=torch.int8)
    scale = x.new_empty((tokens,), dtype=torch.float32)
    block_t = block(tokens, x, gpu=4, cpu=64)
    _w8a8_quantise_kernel[(-(-tokens // block_t),)](
        x, steps, scale, tokens, width, *x.stride(), BLOCK_T=block_t, BLOCK=block(width, x, gpu=1024, cpu=4096)
    )
    tile_t, tile_n = max(16, block(tokens, x, gpu=64, cpu=64)), max(16, block(outputs, x, gpu=64, cpu=256))
    _w8a8_product_kernel[(-(-tokens // tile_t), -(-outputs // tile_n))](
        steps,
        scale,
        weight,
        weight_scale,
        out,
        tokens,
        outputs,
        width,
        *weight.stride(),
        weight_scale.stride(0),
        BLOCK_T=tile_t,
        BLOCK_N=tile_n,
        BLOCK_K=max(32, block(width, x, gpu=64, cpu=256)),
    )


@torch.library.custom_op("capwise::w8a8_linear", mutates_args=())
def w8a8_linear(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """x weight^T with 8-bit integer products.

    Args:
        x: [T, K], floating point. weight: int8 [N, K]. weight_scale: float32 [N]. Any strides.

    Returns:
        [T, N] in x's dtype, dense.

    Raises:
        ValueError: shapes or a dtype that do not fit.
    """
    if weight.dtype != torch.int8:
        raise ValueError(f"w8a8_linear: weight: expected int8; got {weight.dtype}")
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"w8a8_linear: x: expected [T, {weight.shape[1]}]; got {tuple(x.shape)}")
    if tuple(weight_scale.shape) != (weight.shape[0],):
        got = tuple(weight_scale.shape)
        raise ValueError(f"w8a8_linear: weight_scale: expected ({weight.shape[0]},); got {got}")
    if not on_triton(x):
        return w8a8_reference(x, weight, weight_scale)
    out = x.new_empty((x.shape[0], weight.shape[0]))
    if out.numel():
        _launch(x, weight, weight_scale, out)
    return out


@w8a8_linear.register_fake
def _(x, weight, weight_scale):
    return x.new_empty((x.shape[0], weight.shape[0]))


@contract("capwise::w8a8_linear")
def w8a8_contract() -> Contract:
    return Contract(
        rows={
            "x": Rows("T", None, tail=Any()),
            "weight": Axes((None, None)),
            "weight_scale": Axes((None,)),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
