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
    return w8a8_reference(x, weight, weight_scale)


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
