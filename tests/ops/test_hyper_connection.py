"""Hyper-connections: against the transformers module, its roundings, and the kernels against the references."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextGatedResidual

from capwise import compat
from capwise.ops.hyper_connection import hc_mix, hc_norm, hc_write

HC, WIDTH = 4, 6


def _theirs(dtype):
    config = SimpleNamespace(hc_count=HC, hidden_size=WIDTH, hc_lowrank=5, rms_norm_eps=1e-6)
    module = Qwen4ExpTextGatedResidual(config)
    for parameter in module.parameters():
        parameter.data.normal_(std=0.5)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_and_writing_as_transformers_does(dtype):
    """Bitwise in bfloat16: the roundings stand where theirs do."""
    torch.manual_seed(1)
    module, x, y = _theirs(dtype), torch.randn(7, HC * WIDTH).to(dtype), torch.randn(7, WIDTH).to(dtype)
    want, skipped, inject = module(x)
    n = hc_norm(x, module.hc_norm.weight, 1e-6, HC)
    low = F.silu(module.input_mix_weight_down(n) / HC)
    got = hc_mix(n, module.input_mix_weight_up(low), HC)
    written = (skipped.unflatten(1, (HC, WIDTH)) + inject[..., None] * y[:, None]).flatten(1)
    torch.testing.assert_close(got, want, rtol=1e-6 if dtype == torch.float32 else 0, atol=0)
    assert torch.equal(hc_write(x, y, inject), written)


@settings(max_examples=10, deadline=None, database=None)
@given(tokens=st.integers(0, 4), hc=st.integers(1, 3), width=st.integers(1, 20), seed=st.integers(0, 999))
def test_kernels_equal_references(tokens, hc, width, seed, strided):
    dtype, generator = (torch.float32, torch.float16)[seed % 2], torch.Generator().manual_seed(seed)
    shapes = (tokens, hc * width), (hc * width,), (tokens, hc * width), (tokens, width), (tokens, hc)
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    x, weight, gate, y, inject = [strided(t, seed + i) for i, t in enumerate(drawn)]
    tolerance = 2e-6 if dtype == torch.float32 else 2e-3
    for run in (lambda: hc_norm(x, weight, 1e-6, hc), lambda: hc_mix(x, gate, hc), lambda: hc_write(x, y, inject)):
        right = run()
        with compat.interpreted():
            got = run()
        torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


def test_contradicting_shapes_are_refused(raises):
    x = torch.randn(3, 8)
    with raises("hc_norm: weight: expected (8,); got (4,)"):
        hc_norm(x, torch.ones(4), 1e-6, 2)
    with raises("hc_mix: n: expected a multiple of the 3 streams in each row; got 8"):
        hc_mix(x, x, 3)
    with raises("hc_write: y: expected (3, 4); got (3, 8)"):
        hc_write(x, x, torch.ones(3, 2))
