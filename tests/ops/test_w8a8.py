"""The 8-bit linear: by hand, its roundings, rows that know nothing of each other, and the kernel."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.w8a8 import quantise_weight, w8a8_linear


def test_the_sum_is_of_integers():
    """Row scales 1/127 * (254, 127): steps (127, 1, -64) of 2, then (0, 127, ...); halves go to the even integer."""
    x = torch.tensor([[254.0, 1.0, -127.0], [0.5, 127.0, 1.5], [0.0, 0.0, 0.0]])
    weight, scale = torch.tensor([[1, 10, 100], [-127, 0, 1]], dtype=torch.int8), torch.tensor([1.0, 0.5])
    want = [[2 * (127 - 6400), (-127 * 127 - 64)], [1270 + 200, 1.0], [0, 0]]
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            assert w8a8_linear(x, weight, scale).tolist() == want


def test_a_quantised_layer_is_close_to_the_layer():
    torch.manual_seed(4)
    x, weight = torch.randn(9, 64), torch.randn(5, 64)
    steps, scale = quantise_weight(weight)
    assert steps.abs().max() == 127 and quantise_weight(torch.zeros(2, 3))[1].tolist() == [1, 1]
    assert (w8a8_linear(x, steps, scale) - x @ weight.T).abs().max() < 0.02 * 64**0.5


def test_a_row_has_the_same_result_in_any_company():
    """What one scale for all rows breaks: models/footguns.py."""
    torch.manual_seed(5)
    x, weight = torch.randn(3, 40), torch.randint(-127, 128, (6, 40), dtype=torch.int8)
    loud = torch.cat([x, torch.full((2, 40), 1e6), torch.full((1, 40), float("nan"))])
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            assert torch.equal(w8a8_linear(loud, weight, torch.ones(6))[:3], w8a8_linear(x, weight, torch.ones(6)))


@settings(max_examples=12, deadline=None, database=None)
@given(tokens=st.integers(0, 20), width=st.integers(1, 70), outputs=st.integers(1, 20), seed=st.integers(0, 999))
def test_kernel_equals_reference(tokens, width, outputs, seed, strided):
    dtype, generator = (torch.float32, torch.float16)[seed % 2], torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=generator).to(dtype)
    weight = torch.randint(-127, 128, (outputs, width), generator=generator, dtype=torch.int8)
    args = [strided(t, seed + i) for i, t in enumerate((x, weight, torch.rand(outputs, generator=generator)))]
    right = w8a8_linear(*args)
    with compat.interpreted():
        got = w8a8_linear(*args)
    torch.testing.assert_close(got, right, rtol=1e-6 if dtype == torch.float32 else 1e-3, atol=0)


def test_what_does_not_fit_is_refused(raises):
    x, weight = torch.randn(2, 4), torch.zeros(3, 4, dtype=torch.int8)
    with raises("w8a8_linear: weight: expected int8; got torch.float32"):
        w8a8_linear(x, weight.float(), torch.ones(3))
    with raises("w8a8_linear: x: expected [T, 4]; got (2, 3)"):
        w8a8_linear(x[:, :3], weight, torch.ones(3))
    with raises("w8a8_linear: weight_scale: expected (3,); got (1,)"):
        w8a8_linear(x, weight, torch.ones(1))
