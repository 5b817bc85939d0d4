"""Which request a token is of, where it stands and where it goes: against loops, and kernels against references."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.logits_rows import logits_rows
from capwise.ops.metadata import slot_mapping, token_requests

BOTH = pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))
PAGE, TABLE = 4, 6


def body(kernel: bool):
    return compat.interpreted() if kernel else torch.no_grad()


@BOTH
@settings(max_examples=12, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), pad=st.sampled_from((0, 3)))
def test_tokens_find_their_request_position_and_slot(kernel, seed, pad, step, strided, junk):
    """Tokens and requests past the live ones, empty requests, null pages and tables too short; any strides."""
    batch, rng = step(seed), random.Random(seed)
    done = [rng.randint(0, TABLE * PAGE - n + 2) for n in batch.lengths]
    seq_lens = torch.tensor([d + n for d, n in zip(done, batch.lengths)], dtype=torch.int32)
    table = torch.tensor([[rng.randint(0, 9) for _ in range(TABLE)] for _ in done], dtype=torch.int32)
    starts = torch.cat([batch.starts, batch.starts[-1:].expand(pad)])
    padded = [torch.cat([t, junk(t.new_empty((pad, *t.shape[1:])), seed)]) for t in (seq_lens, table)]
    seq_lens, table, starts = (strided(t, seed + i) for i, t in enumerate((*padded, starts)))
    like = torch.empty(batch.tokens + pad, 2)
    with body(kernel):
        row, position = token_requests(starts, seq_lens, like)
        slots = slot_mapping(strided(row, seed + 7), strided(position, seed + 8), table, PAGE)
    wanted = []
    for r, (d, n) in enumerate(zip(done, batch.lengths)):
        for p in range(d, d + n):
            page = int(table[r, p // PAGE]) if p // PAGE < TABLE else 0
            wanted.append((r, p, page * PAGE + p % PAGE if page > 0 else -1))
    assert list(zip(row.tolist(), position.tolist(), slots.tolist()))[: batch.tokens] == wanted
    assert position[batch.tokens :].tolist() == slots[batch.tokens :].tolist() == [-1] * pad
    assert all(0 <= r < len(done) + pad for r in row.tolist())


@BOTH
@settings(max_examples=8, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), dtype=st.sampled_from((torch.float32, torch.bfloat16)))
def test_logits_rows_are_the_last_or_every_row(kernel, seed, width, dtype, step, strided):
    batch, generator = step(seed), torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch.tokens, 5, generator=generator).to(dtype)
    spec = torch.rand(batch.requests, generator=generator) < 0.5
    with body(kernel):
        out = logits_rows(strided(hidden, seed), batch.starts, strided(spec, seed + 1), width)
    for r, n in enumerate(batch.lengths):
        chunk = hidden[batch.starts[r] : batch.starts[r + 1]]
        rows = chunk[:width] if spec[r] else chunk[n - 1 :]
        assert torch.equal(out[r, : len(rows)], rows) and not out[r, len(rows) :].any()


@BOTH
def test_no_tokens(kernel):
    starts, lens, none = torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), torch.empty(0, 5)
    with body(kernel):
        row, position = token_requests(starts, lens, none)
        assert row.shape == position.shape == slot_mapping(row, position, torch.ones(2, 3).int(), 4).shape == (0,)
        assert not logits_rows(none, starts, torch.tensor([True, False]), 2).any()


def test_contradicting_extents_are_refused(raises):
    starts, lens = torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with raises("expected query_start_loc [R+1], seq_lens [R], R >= 1; got (3,), (3,)"):
        token_requests(starts, starts, torch.empty(4))
    with raises("block_table [R, NB], page_size >= 1; got (3,), (3,), (2,), 4"):
        slot_mapping(starts, starts, lens, 4)
    with raises("is_spec [R], width >= 1; got (4, 5), (3,), (2,), 0"):
        logits_rows(torch.empty(4, 5), starts, lens.bool(), 0)
