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
    return norm_reference(x, weight, eps, hc)


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
    return mix_reference(n, gate_logits, hc)


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
    return write_reference(x, y, inject)


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
