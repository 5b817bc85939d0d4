"""Indexer and attention, op by op: kernels against references over any strides, ties, what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.qsa_index import qsa_commit_, qsa_compress_
from capwise.ops.qsa_scores import qsa_scores
from capwise.ops.samples import SMALL, sample
from capwise.ops.sparse_attention import sparse_attention
from capwise.ops.top_blocks import top_blocks

BOTH = pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))
OPS = {
    "qsa_compress_": (qsa_compress_, 6),
    "qsa_commit_": (qsa_commit_, 8),
    "qsa_scores": (qsa_scores, 8),
    "sparse_attention": (sparse_attention, 4),
}


def body(kernel: bool):
    return compat.interpreted() if kernel else torch.no_grad()


def _results(op, call: dict, kernel: bool) -> list[torch.Tensor]:
    """What the call returns, and every tensor after it."""
    call = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    with body(kernel):
        out = op(**call)
    return [t for t in (out, *call.values()) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", OPS)
def test_kernels_equal_references_over_any_strides(name, step, strided):
    """Null slots, null pages, tokens at no position, requests that are none; in float16 too."""
    op, count = OPS[name]
    for seed in range(count):
        batch, rng = step(seed), random.Random(seed)
        call = sample(name, batch.lengths, SMALL, seed)
        for argument, value in call.items():
            if argument in ("token_to_req", "logical_pos", "block_table") and value.numel():
                value.view(-1)[rng.randrange(value.numel())] = rng.choice((-1, 0, 10**6))
        half = seed % 2 and name != "qsa_scores"
        call = {n: v.half() if half and _is_float(v) and n != "inv_freq" else v for n, v in call.items()}
        call = {n: strided(v, seed + i) if isinstance(v, torch.Tensor) else v for i, (n, v) in enumerate(call.items())}
        for right, got in zip(_results(op, call, False), _results(op, call, True), strict=True):
            torch.testing.assert_close(got, right, equal_nan=True, **({"rtol": 2e-3, "atol": 2e-3} if half else {}))


@pytest.mark.parametrize("few", (0, 128), ids=("whole", "in parts"))
def test_what_a_token_sees_takes_many_tiles(few, monkeypatch):
    """Later tiles hold larger logits than earlier ones, and smaller ones: sums are brought to one maximum."""
    monkeypatch.setattr("capwise.ops.sparse_attention.FEW_TOKENS", few)
    attention = replace(SMALL.attention, chosen=150, table=100, heads=1, query_heads=2)
    call = sample("sparse_attention", (2,), replace(SMALL, attention=attention), 3)
    assert int(call["logical_pos"].min()) > 300
    cache, pages = call["kv_cache"].clone(), call["block_table"][0].long()
    for growing in (torch.linspace(0.1, 3, 100), torch.linspace(3, 0.1, 100)):
        call["kv_cache"][pages] = cache[pages] * growing[:, None, None, None, None]
        (right, *_), (got, *_) = (_results(sparse_attention, call, kernel) for kernel in (False, True))
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


@BOTH
def test_a_ring_holds_the_last_keys_of_a_chunk(kernel):
    call = sample("qsa_commit_", (1, 0, 6, 3), SMALL, 2)
    ring, where = call["ring"].clone(), call["ring_positions"].clone()
    cap, slots, t = ring.shape[1], call["state_indices"].tolist(), 0
    for r, n in enumerate((1, 0, 6, 3)):
        for j in range(n):
            place = (int(call["seq_lens"][r]) - n + j) % cap
            if slots[r] and n - j <= cap:
                ring[slots[r], place], where[slots[r], place] = call["raw_key"][t], call["positions"][:, t]
            t += 1
    assert slots.count(0) == 1
    with body(kernel):
        qsa_commit_(**call)
    assert torch.equal(call["ring"], ring) and torch.equal(call["ring_positions"], where)


def _is_float(value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


# -------------------------------------------------------------------------------------------------------- the choice
def _best(row: list[float], k: int, visible: int) -> list[int]:
    usable = [c for c in range(min(max(visible, 0), len(row))) if row[c] > float("-inf")]
    chosen = sorted(sorted(usable, key=lambda c: (-row[c], c))[:k])
    return chosen + [-1] * (k - len(chosen))


@BOTH
@settings(max_examples=15, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 40), k=st.integers(1, 12))
def test_the_lowest_column_wins_a_tie(kernel, seed, width, k, strided):
    rng = random.Random(seed)
    values = rng.choice(((0.0, -0.0, 1.0, float("-inf")), (0.0,), (2.0, 2.0000002, -3.0, float("inf"), 1e-42, -1e-42)))
    rows = [[rng.choice(values) for _ in range(width)] for _ in range(3)]
    visible = [rng.choice((width, rng.randint(0, width), -1, 10**9)) for _ in rows]
    given_visible = torch.tensor(visible) if seed % 3 else None
    with body(kernel):
        chosen = top_blocks(strided(torch.tensor(rows), seed), k, given_visible)
    limits = visible if seed % 3 else [width] * 3
    assert chosen.tolist() == [_best(row, k, limit) for row, limit in zip(rows, limits)]


@BOTH
def test_a_choice_over_several_tiles(kernel):
    """Ties at the cut lie in different tiles of a row; digits of all four levels decide."""
    generator = torch.Generator().manual_seed(1)
    fine = 1.0 + torch.randint(0, 300, (2, 9000), generator=generator) * 2.0**-23
    coarse = torch.randint(-3, 2, (2, 9000), generator=generator) * torch.tensor([[1e20], [1e-20]])
    scores = torch.cat([fine, coarse])
    with body(kernel):
        chosen = top_blocks(scores, 700, torch.tensor([9000, 8999, 8500, 9000]))
    for t, limit in enumerate((9000, 8999, 8500, 9000)):
        assert chosen[t].tolist() == _best(scores[t].tolist(), 700, limit)


@BOTH
def test_nan_is_not_chosen(kernel):
    with body(kernel):
        chosen = top_blocks(torch.tensor([[1.0, float("nan"), 3.0, float("-inf"), -float("nan")]]), 4)
        some = top_blocks(torch.tensor([[1.0, float("nan"), 3.0, 2.0, -float("nan")]]), 2)
    assert chosen.tolist() == [[0, 2, -1, -1]] and some.tolist() == [[2, 3]]


@BOTH
def test_equal_scores_are_equal_bit_for_bit(kernel):
    """Blocks that no head likes score +0, whatever the signs were."""
    keys, iq = -torch.rand(3, 2, 16), torch.rand(4, 3, 16)
    table, request = torch.tensor([[1, 2]]), torch.zeros(4, dtype=torch.int32)
    with body(kernel):
        scores = qsa_scores(iq, keys, request, torch.tensor([7, 8, 15, -1]), table, 4)
    assert scores[:2].view(torch.int32)[:, :2].tolist() == [[0, 0]] * 2
    assert scores[2].view(torch.int32).tolist() == [0] * 4 and bool(scores[3].isneginf().all())


@BOTH
def test_many_tokens_of_many_requests_share_a_tile(kernel):
    """More tokens than a program of few has; requests in no order."""
    generator = torch.Generator().manual_seed(3)
    keys, iq = torch.randn(9, 2, 16, generator=generator), torch.randn(70, 3, 16, generator=generator)
    table = torch.randint(1, 9, (5, 3), generator=generator)
    request = torch.randint(0, 5, (70,), generator=generator)
    position = torch.randint(-1, 24, (70,), generator=generator)
    with body(kernel):
        scores = qsa_scores(iq, keys, request, position, table, 4)
    for t in range(70):
        for b in range(6):
            key = keys[table[request[t], b // 2], b % 2]
            right = float((iq[t] @ key).relu().sum()) / 4 if 4 * b + 3 <= position[t] else float("-inf")
            assert abs(float(scores[t, b]) - right) < 1e-5 or scores[t, b] == right


@BOTH
def test_no_tokens(kernel):
    calls = {name: sample(name, (0, 0), SMALL) for name in (*OPS, "top_blocks")}
    for name, call in calls.items():
        before = {n: v.clone() for n, v in call.items() if isinstance(v, torch.Tensor)}
        with body(kernel):
            out = getattr(torch.ops.capwise, name)(**call)
        assert out is None or out.shape[0] == 0
        assert all(torch.equal(v, call[n]) for n, v in before.items())


def test_contradicting_extents_are_refused(raises):
    call = sample("qsa_compress_", (4,), SMALL)
    for changed, text in (
        ({"ring": call["ring"][:, :1]}, "ring_positions: expected (16, 1, 3)"),
        ({"ring": call["ring"][:, :1], "ring_positions": call["ring_positions"][:, :1]}, "ratio: expected 1..cap = 1"),
        ({"seq_lens": call["seq_lens"].repeat(2)}, "state_indices [R], R >= 1; got (2,), (2,), (1,)"),
        ({"block_table": call["block_table"].repeat(2, 1)}, "block_table: expected [1, NB]; got (2, 5)"),
        ({"block_keys": call["block_keys"][..., 1:]}, "block_keys: expected [blocks, page/ratio, 11]"),
        ({"norm_weight": call["norm_weight"][1:]}, "norm_weight: expected (11,); got (10,)"),
        ({"positions": call["positions"].T}, "positions: expected [3, 4] (axis-major)"),
    ):
        with raises(text):
            qsa_compress_(**{**call, **changed})
    call = sample("qsa_scores", (4,), SMALL)
    with raises("token_to_req, logical_pos: expected [4] each; got (3,), (4,)"):
        qsa_scores(**{**call, "token_to_req": call["token_to_req"][1:]})
    with raises("scores float32 [T, W], k >= 1; got (2, 3) torch.float64, 1"):
        top_blocks(torch.zeros(2, 3, dtype=torch.float64), 1)
    with raises("visible: expected [2]; got (3,)"):
        top_blocks(torch.zeros(2, 3), 1, torch.zeros(3))
    call = sample("sparse_attention", (4,), SMALL)
    with raises("kv_cache: expected HQ a multiple of HK, and a page; got 3 heads"):
        sparse_attention(**{**call, "q": call["q"][:, :3]})
    with raises("expected blocks [T, k], token_to_req [T], logical_pos [T], T = 4; got (3, 3), (4,), (4,)"):
        sparse_attention(**{**call, "blocks": call["blocks"][1:]})
