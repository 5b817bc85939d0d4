"""Routing and experts: against the transformers modules, ties, padded rows, and the kernels against the references."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextExperts, Qwen4ExpTextTopKRouter

from capwise import compat
from capwise.ops.moe import moe_experts, moe_route, tile_rows

NAN, INF = float("nan"), float("inf")
BOTH = pytest.mark.parametrize("kernel", [False, True], ids=["reference", "kernel"])


def _run(op, *args, kernel=True):
    with compat.interpreted() if kernel else torch.no_grad():
        return op(*args)


def _config(experts, k, hidden=10, inner=6):
    return SimpleNamespace(
        num_experts=experts, num_experts_per_tok=k, norm_topk_prob=True, hidden_size=hidden,
        moe_intermediate_size=inner, hidden_act="silu", _experts_implementation="eager",
    )  # fmt: skip


def test_routing_and_experts_as_transformers_have_them():
    torch.manual_seed(2)
    router, experts = Qwen4ExpTextTopKRouter(_config(9, 3)), Qwen4ExpTextExperts(_config(9, 3))
    for parameter in (*router.parameters(), *experts.parameters()):
        parameter.data.normal_()
    u = torch.randn(12, 10)
    logits, want_weights, want_experts = router(u)
    for kernel in (False, True):
        weights, chosen = _run(moe_route, logits, 3, kernel=kernel)
        assert torch.equal(chosen.long(), want_experts) and torch.allclose(weights, want_weights, atol=1e-6)
        got = _run(moe_experts, u, weights, chosen, experts.gate_up_proj.data, experts.down_proj.data, kernel=kernel)
        want = experts.forward(u, want_experts, want_weights)
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@BOTH
def test_the_lower_index_wins_ties_and_every_row_names_different_experts(kernel):
    rows = [[1.0, 2, 2, 1], [0, -0.0, 0, 0], [-INF, -INF, 3, -INF], [NAN, 1, NAN, 0], [NAN] * 4, [5, INF, 5, INF]]
    weights, experts = _run(moe_route, torch.tensor(rows), 3, kernel=kernel)
    assert experts.tolist() == [[1, 2, 0], [0, 1, 2], [2, 0, 1], [1, 3, 0], [0, 1, 2], [1, 3, 0]]
    assert torch.allclose(weights[1], torch.full((3,), 1 / 3)) and weights[2].tolist() == [1, 0, 0]


def test_weights_that_underflow_are_still_ranked():
    """In a softmax of float32 the last three are all 0."""
    assert moe_route(torch.tensor([[0.0, -200, -150, -300]]), 3)[1].tolist() == [[0, 2, 1]]


@settings(max_examples=8, deadline=None, database=None)
@given(tokens=st.integers(0, 20), number=st.integers(1, 7), seed=st.integers(0, 999))
def test_kernels_equal_references(tokens, number, seed, strided):
    """Tokens without experts, experts without tokens, experts of more tokens than a tile has rows."""
    dtype, generator = (torch.float32, torch.float16)[seed % 2], torch.Generator().manual_seed(seed)
    k, hidden, inner = min(number, 1 + seed % 3), 1 + seed % 21, 1 + seed % 18
    skew = torch.randint(-1, number + 1, (tokens, k), generator=generator, dtype=torch.int32)
    skew[::2] = skew[:1].clone()
    shapes = (tokens, hidden), (tokens, k), (number, 2 * inner, hidden), (number, hidden, inner)
    u, weights, gate_up, down = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    args = [strided(t, seed + i) for i, t in enumerate((u, weights, skew, gate_up, down))]
    tolerance = 5e-5 if dtype == torch.float32 else 2e-2
    right = _run(moe_experts, *args, kernel=False)
    torch.testing.assert_close(_run(moe_experts, *args), right, rtol=tolerance, atol=tolerance * 8)
    logits = strided(torch.randn(tokens, number, generator=generator).to(dtype), seed)
    (weights, chosen), (want, right) = _run(moe_route, logits, k), _run(moe_route, logits, k, kernel=False)
    assert torch.equal(chosen, right)
    torch.testing.assert_close(weights, want, rtol=2e-3, atol=2e-6)


def test_a_step_is_one_fixed_list_of_launches():
    """Tiles for every way in which the captured tokens may choose: all one expert, or as many as there are."""
    assert [tile_rows(pairs, 64) for pairs in (10, 1024, 1025, 15360, 81920)] == [16, 16, 32, 128, 128]
    torch.manual_seed(3)
    u, weights = torch.randn(40, 8), torch.rand(40, 2)
    gate_up, down = torch.randn(5, 12, 8), torch.randn(5, 8, 6)
    for chosen in (torch.full((40, 2), 3), torch.arange(80).view(40, 2) % 5, torch.full((40, 2), -1)):
        right = _run(moe_experts, u, weights, chosen.int(), gate_up, down, kernel=False)
        got = _run(moe_experts, u, weights, chosen.int(), gate_up, down)
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_contradicting_arguments_are_refused(raises):
    with raises("moe_route: k: expected 1 to 3, the number of experts; got 4"):
        moe_route(torch.randn(2, 3), 4)
    with raises("moe_experts: gate_up: expected (5, 12, 8); got (5, 6, 8)"):
        u, one = torch.randn(2, 8), torch.zeros(2, 1)
        moe_experts(u, one, one.int(), torch.zeros(5, 6, 8), torch.zeros(5, 8, 6))
