"""The gate of PLE: how much of a token's n-gram value enters each of its residual streams.

S streams (`hc`) of width H. For each token and stream, with k, q the stream's slices of key and hidden; all in float32,
rnd: rounded to the dtype of key (nothing in float32); norm weights are stored less one:

    k' = rnd(k * rsqrt(mean(k^2) + eps) * (1 + w_key))         q' likewise with w_query
    d  = rnd(rnd(sum_j rnd(k'_j q'_j)) / sqrt(H))
    g  = rnd(sigmoid(sign(d) * rnd(sqrt(max(|d|, 1e-6)))))     sign(0) = 0
    gated  = rnd(g * value)
    normed = rnd(gated * rsqrt(mean(gated^2) + eps) * (1 + w_conv))

key [T, S*H], value [T, H], hidden [T, S*H], weights [S*H] -> gated, normed [T, S*H]. Row-local. key and value are
usually the two halves of one projection: views whose rows are S*H + H apart.
"""

from __future__ import annotations

import math

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, contract
from capwise.ops.launch import block, jit, on_triton, tl
from capwise.ops.rows import load_row, row_tiles

SMALLEST = 1e-6


def gate_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor,
    w_key: torch.Tensor,
    w_query: torch.Tensor,
    w_conv: torch.Tensor,
    eps: float,
    hc: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    width, dtype = value.shape[1], key.dtype

    def rnd(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).float()

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return rnd(scaled * (1.0 + weight.float().view(hc, width)))

    k = norm(key.float().unflatten(1, (hc, width)), w_key)
    q = norm(hidden.float().unflatten(1, (hc, width)), w_query)
    d = rnd(rnd(rnd(k * q).sum(-1, keepdim=True)) / math.sqrt(width))
    g = rnd(torch.sigmoid(d.sign() * rnd(d.abs().clamp(min=SMALLEST).sqrt())))
    gated = rnd(g * value.float()[:, None, :])
    normed = norm(gated, w_conv)
    return gated.to(dtype).flatten(1), normed.to(dtype).flatten(1)


@jit
def _ple_gate_kernel(
    key_ptr, value_ptr, hidden_ptr, w_key_ptr, w_query_ptr, w_conv_ptr, gated_ptr, normed_ptr,
    tokens, width, eps, root, smallest, key_row, key_column, value_row, value_column, hidden_row, hidden_column,
    w_key_stride, w_query_stride, w_conv_stride,
    STREAMS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """One stream of some tokens, BLOCK_T after BLOCK_T: its weights are loaded once, and the next rows while these are
    worked on. A row stays in registers, and sums run over its tiles before they run over columns: one reduction a sum.
    Programs beside each other have the streams of the same tokens, which share the value."""
    stream, first = tl.program_id(0), tl.program_id(1).to(tl.int64) * TOKENS
    dtype = gated_ptr.dtype.element_ty
    at = stream * width
    always = tl.full((1, 1), True, dtype=tl.int1)
    of_keys = load_row(w_key_ptr, 0, at, width, w_key_stride, always, BLOCK, CHUNKS)
    of_queries = load_row(w_query_ptr, 0, at, width, w_query_stride, always, BLOCK, CHUNKS)
    of_conv = load_row(w_conv_ptr, 0, at, width, w_conv_stride, always, BLOCK, CHUNKS)
    for n in tl.range(0, TOKENS, BLOCK_T, num_stages=STAGES):
        token = first + (n + tl.arange(0, BLOCK_T))[:, None]
        live = token < tokens
        keys = load_row(key_ptr, token * key_row, at, width, key_column, live, BLOCK, CHUNKS)
        queries = load_row(hidden_ptr, token * hidden_row, at, width, hidden_column, live, BLOCK, CHUNKS)
        values = load_row(value_ptr, token * value_row, 0, width, value_column, live, BLOCK, CHUNKS)
        of_key = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
        of_query = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
        for c in tl.static_range(CHUNKS):
            k, q = keys[c].to(tl.float32), queries[c].to(tl.float32)
            of_key += k * k
            of_query += q * q
        by_key = (1.0 / tl.sqrt(tl.sum(of_key, 1) / width + eps))[:, None]
        by_query = (1.0 / tl.sqrt(tl.sum(of_query, 1) / width + eps))[:, None]
        products = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
        for c in tl.static_range(CHUNKS):
            k = (keys[c].to(tl.float32) * by_key * (1.0 + of_keys[c].to(tl.float32))).to(dtype).to(tl.float32)
            q = (queries[c].to(tl.float32) * by_query * (1.0 + of_queries[c].to(tl.float32))).to(dtype).to(tl.float32)
            products += (k * q).to(dtype).to(tl.float32)
        dot = tl.sum(products, 1).to(dtype).to(tl.float32)
        d = (dot / root).to(dtype).to(tl.float32)
        magnitude = tl.sqrt(tl.maximum(tl.abs(d), smallest)).to(dtype).to(tl.float32)
        signed = tl.where(d > 0, magnitude, tl.where(d < 0, -magnitude, d))
        g = (1.0 / (1.0 + tl.exp(-signed))).to(dtype).to(tl.float32)[:, None]
        of_gated = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
        for c in tl.static_range(CHUNKS):
            gated = (g * values[c].to(tl.float32)).to(dtype).to(tl.float32)
            of_gated += gated * gated
        by_gated = (1.0 / tl.sqrt(tl.sum(of_gated, 1) / width + eps))[:, None]
        for c in tl.static_range(CHUNKS):
            j = c * BLOCK + tl.arange(0, BLOCK)[None, :]
            gated = (g * values[c].to(tl.float32)).to(dtype)
            normed = gated.to(tl.float32) * by_gated * (1.0 + of_conv[c].to(tl.float32))
            out = (token * STREAMS + stream) * width + j
            tl.store(gated_ptr + out, gated, mask=live & (j < width))
            tl.store(normed_ptr + out, normed.to(dtype), mask=live & (j < width))


# One H200, 2560 columns in bfloat16: at 8192 tokens 182 us with eight rows a program, two of them on their way, 212 us
# with one on its way, 218 us with a row a program; at 512 tokens 16, 21 and 18 us. Copying as much takes 170 us.
ROWS, STAGES = 8, 3
FEW = 64  # tokens up to which each has programs of its own


def _launch(key, value, hidden, w_key, w_query, w_conv, eps, hc, gated, normed) -> None:
    tokens, width = value.shape
    tiles = row_tiles(tokens, width, key)
    each = tiles["BLOCK_T"] * block(tokens // FEW, key, gpu=ROWS, cpu=1)
    _ple_gate_kernel[(hc, -(-tokens // each))](
        key,
        value,
        hidden,
        w_key,
        w_query,
        w_conv,
        gated,
        normed,
        tokens,
        width,
        eps,
        math.sqrt(width),
        SMALLEST,
        *key.stride(),
        *value.stride(),
        *hidden.stride(),
        w_key.stride(0),
        w_query.stride(0),
        w_conv.stride(0),
        STREAMS=hc,
        TOKENS=each,
        STAGES=STAGES,
        **tiles,
        num_warps=2,
    )


def _check(key, value, hidden, w_key, w_query, w_conv, hc) -> None:
    tokens, width = value.shape
    for name, tensor, shape in (
        ("key", key, (tokens, hc * width)),
        ("hidden", hidden, (tokens, hc * width)),
        ("w_key", w_key, (hc * width,)),
        ("w_query", w_query, (hc * width,)),
        ("w_conv", w_conv, (hc * width,)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"ple_gate: {name}: expected {shape}; got {tuple(tensor.shape)}")


@torch.library.custom_op("capwise::ple_gate", mutates_args=())
def ple_gate(
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor,
    w_key: torch.Tensor,
    w_query: torch.Tensor,
    w_conv: torch.Tensor,
    eps: float,
    hc: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated values and their norms.

    Args:
        key, hidden: [T, hc*H]. value: [T, H]. Any strides, one dtype.
        w_key, w_query, w_conv: [hc*H], norm weights less one.
        eps: added to each mean of squares.
        hc: how many residual streams.

    Returns:
        gated and normed, [T, hc*H], in key's dtype, dense.

    Raises:
        ValueError: shapes that contradict each other.
    """
    _check(key, value, hidden, w_key, w_query, w_conv, hc)
    if not on_triton(key):
        return gate_reference(key, value, hidden, w_key, w_query, w_conv, eps, hc)
    gated, normed = key.new_empty(key.shape), key.new_empty(key.shape)
    if key.shape[0]:
        _launch(key, value, hidden, w_key, w_query, w_conv, eps, hc, gated, normed)
    return gated, normed


@ple_gate.register_fake
def _(key, value, hidden, w_key, w_query, w_conv, eps, hc):
    return key.new_empty(key.shape), key.new_empty(key.shape)


@contract("capwise::ple_gate")
def gate_contract() -> Contract:
    return Contract(
        rows={
            "key": Rows("T", None, tail=Any()),
            "value": Rows("T", None, tail=Any()),
            "hidden": Rows("T", None, tail=Any()),
            "w_key": Axes((None,)),
            "w_query": Axes((None,)),
            "w_conv": Axes((None,)),
            "out0": Rows("T", None, write=True),
            "out1": Rows("T", None, write=True),
        },
        locality="row",
    )
