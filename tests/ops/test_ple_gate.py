"""The gate: by hand, its rounding points, and the kernel against the reference."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.launch import device_tiles
from capwise.ops.ple_gate import ple_gate


def _sample(tokens, hc, width, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(tokens, hc * width + width, generator=generator).to(dtype)
    hidden = torch.randn(tokens, hc * width, generator=generator).to(dtype)
    weights = [torch.randn(hc * width, generator=generator).to(dtype) for _ in range(3)]
    return both[:, : hc * width], both[:, hc * width :], hidden, *weights


def test_the_gate_by_hand():
    key, query, value = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, -2.0]])
    zeros = torch.zeros(2)
    gated, normed = ple_gate(key, value, query, zeros, zeros, zeros, 1e-12, 1)
    dot = (3 / math.sqrt(12.5)) * (1 / math.sqrt(0.5)) / math.sqrt(2)
    gate = 1 / (1 + math.exp(-math.sqrt(dot)))
    assert torch.allclose(gated, gate * value) and torch.allclose(normed, torch.tensor([[1.0, -1.0]]))


def test_a_dot_product_of_zero_gates_by_one_half():
    key, query = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    zeros, value = torch.zeros(2), torch.tensor([[4.0, 6.0]])
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            assert ple_gate(key, value, query, zeros, zeros, zeros, 1e-6, 1)[0].tolist() == [[2.0, 3.0]]


def test_half_precision_rounds_where_the_model_does():
    """Step by step in the dtype itself: products, sum, quotient, root, sigmoid, gated value, norm."""
    hc, width = 2, 8
    key, value, hidden, w_key, w_query, w_conv = _sample(5, hc, width, 3, torch.bfloat16)

    def norm(x, weight):
        x = x.float().unflatten(1, (hc, width))
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return (y * (1 + weight.float().view(hc, width))).bfloat16()

    d = (norm(key, w_key) * norm(hidden, w_query)).sum(-1, keepdim=True) / math.sqrt(width)
    gate = d.abs().clamp_min(1e-6).sqrt() * d.sign()
    gated = (torch.sigmoid(gate) * value[:, None, :]).flatten(1)
    got, normed = ple_gate(key, value, hidden, w_key, w_query, w_conv, 1e-6, hc)
    assert torch.equal(got, gated) and torch.equal(normed, norm(gated, w_conv).flatten(1))


@settings(max_examples=15, deadline=None, database=None)
@given(tokens=st.integers(0, 4), hc=st.integers(1, 3), width=st.integers(1, 20), seed=st.integers(0, 999))
def test_kernel_equals_reference(tokens, hc, width, seed, strided):
    dtype = (torch.float32, torch.float16)[seed % 2]
    args = [strided(t, seed + i) for i, t in enumerate(_sample(tokens, hc, width, seed, dtype))]
    reference = ple_gate(*args, 1e-6, hc)
    with compat.interpreted():
        kernel = ple_gate(*args, 1e-6, hc)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    for a, b in zip(reference, kernel):
        assert a.dtype == dtype and torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance)


def test_tokens_one_after_another():
    """As a program of a device has them where tokens are many: the last of 200 come in its second tile."""
    args = _sample(200, 2, 3, 5)
    reference = ple_gate(*args, 1e-6, 2)
    with device_tiles(), compat.interpreted():
        kernel = ple_gate(*args, 1e-6, 2)
    for a, b in zip(reference, kernel):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_contradicting_shapes_are_refused(raises):
    key, value, hidden, *weights = _sample(3, 2, 4, 0)
    with raises("hidden: expected (3, 8); got (2, 8)"):
        ple_gate(key, value, hidden[:2], *weights, 1e-6, 2)
