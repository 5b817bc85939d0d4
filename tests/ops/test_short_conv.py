"""The short convolution and its state: against a loop over requests, and the kernels against the reference."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.short_conv import ple_short_conv, ple_short_conv_state_

CHANNELS, SLOTS = 5, 12


def _sample(batch, seed, taps=4, dilation=3, spare=0, dtype=torch.float32):
    """x, weight, state, starts, slots, has_initial; slots are the first column of a table, some of them null."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    x = torch.randn(batch.tokens, CHANNELS, generator=generator).to(dtype)
    weight = torch.randn(CHANNELS, taps, generator=generator).to(dtype)
    state = torch.randn(SLOTS, CHANNELS, (taps - 1) * dilation + spare, generator=generator).to(dtype)
    own = rng.sample(range(1, SLOTS), batch.requests)
    slots = torch.tensor([0 if rng.random() < 0.2 else s for s in own], dtype=torch.int32)
    initial = torch.tensor([rng.random() < 0.6 for _ in own])
    return x, weight, state, batch.starts, slots, initial


def _by_request(x, weight, state, starts, slots, initial, dilation):
    """Each request alone, with torch's own convolution."""
    length, outputs, after = (weight.shape[1] - 1) * dilation, [], state.clone()
    for r, slot in enumerate(slots.tolist()):
        chunk = x[starts[r] : starts[r + 1]].float()
        if slot == 0:
            outputs.append(torch.zeros_like(chunk))
            continue
        before = state[slot, :, :length].float() if initial[r] else torch.zeros(x.shape[1], length)
        whole = torch.cat([before, chunk.T], 1)
        if len(chunk):
            y = F.conv1d(whole[None], weight.float()[:, None], groups=x.shape[1], dilation=dilation)[0].T
            outputs.append(F.silu(y))
            after[slot, :, :length] = whole[:, -length:].to(state.dtype)
    return torch.cat(outputs) if outputs else torch.zeros_like(x), after


def _run(sample, dilation):
    x, weight, state, *request = sample
    y = ple_short_conv(x, weight, state, *request, dilation)
    after = state.clone()
    ple_short_conv_state_(x, after, *request, (weight.shape[1] - 1) * dilation)
    return y, after


@settings(max_examples=40, deadline=None, database=None)
@given(
    seed=st.integers(0, 10_000), taps=st.integers(2, 4), dilation=st.sampled_from((1, 3)), spare=st.sampled_from((0, 3))
)
def test_reference_equals_a_loop_over_requests(seed, taps, dilation, spare, step):
    sample = _sample(step(seed), seed, taps, dilation, spare)
    y, after = _run(sample, dilation)
    want, want_after = _by_request(*sample, dilation)
    assert torch.allclose(y, want, atol=1e-5)
    assert torch.equal(after, want_after)


@settings(max_examples=25, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), dilation=st.sampled_from((1, 3)), spare=st.sampled_from((0, 3)))
def test_kernels_equal_reference(seed, dilation, spare, step, strided):
    """Any strides; a request without state may find NaN in its slot; the state moves bitwise alike."""
    dtype = (torch.float32, torch.float16)[seed % 2]
    sample = list(_sample(step(seed), seed, 4, dilation, spare, dtype))
    slots, initial = sample[4], sample[5]
    sample[2][slots[~initial].long()] = float("nan")
    sample = [strided(t, seed + i) for i, t in enumerate(sample)]
    y, after = _run(sample, dilation)
    with compat.interpreted():
        got, got_after = _run(sample, dilation)
    assert torch.allclose(y.float(), got.float(), atol=1e-5 if dtype == torch.float32 else 4e-3)
    assert torch.equal(after.nan_to_num(7.0), got_after.nan_to_num(7.0))


@settings(max_examples=12, deadline=None, database=None)
@given(seed=st.integers(0, 10_000))
def test_chunks_give_what_the_whole_gives(seed):
    """Chunk lengths around the window of nine tokens, where old columns and new rows meet."""
    rng = random.Random(seed)
    lengths = [rng.choice((1, 1, 2, 8, 9, 10)) for _ in range(4)]
    x = torch.randn(sum(lengths), CHANNELS)
    weight, state = torch.randn(CHANNELS, 4), torch.full((3, CHANNELS, 9), float("nan"))
    slot = torch.tensor([2], dtype=torch.int32)
    whole = ple_short_conv(x, weight, state, torch.tensor([0, len(x)]), slot, torch.tensor([False]), 3)
    pieces, done = [], 0
    for length in lengths:
        request = torch.tensor([0, length]), slot, torch.tensor([done > 0])
        chunk = x[done : done + length]
        pieces.append(ple_short_conv(chunk, weight, state, *request, 3))
        ple_short_conv_state_(chunk, state, *request, 9)
        done += length
    assert torch.equal(torch.cat(pieces), whole)
    assert bool(state[:2].isnan().all())


def test_slots_are_read_by_the_stride_of_the_table():
    table = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]], dtype=torch.int32)
    x, state = torch.randn(6, CHANNELS), torch.zeros(40, CHANNELS, 9)
    request = torch.tensor([0, 2, 4, 6]), table[:, 0], torch.tensor([True] * 3)
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            after = state.clone()
            ple_short_conv_state_(x, after, *request, 9)
            assert after.flatten(1).any(1).nonzero().flatten().tolist() == [10, 20, 30]


def test_rows_past_the_last_boundary_are_zero():
    x, weight, state = torch.randn(5, CHANNELS), torch.randn(CHANNELS, 4), torch.randn(2, CHANNELS, 9)
    request = torch.tensor([0, 3, 3]), torch.tensor([1, 1]), torch.tensor([True, True])
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            y = ple_short_conv(x, weight, state, *request, 3)
            assert bool(y[:3].all()) and not y[3:].any()


def test_no_tokens():
    request = torch.tensor([0, 0]), torch.tensor([1]), torch.tensor([True])
    x, weight, state = torch.empty(0, CHANNELS), torch.randn(CHANNELS, 4), torch.randn(2, CHANNELS, 9)
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            after = state.clone()
            assert ple_short_conv(x, weight, state, *request, 3).shape == (0, CHANNELS)
            ple_short_conv_state_(x, after, *request, 9)
            assert torch.equal(after, state)


def test_contradicting_extents_are_refused(raises):
    x, weight, state = torch.randn(2, CHANNELS), torch.randn(CHANNELS, 4), torch.randn(2, CHANNELS, 8)
    request = torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([True])
    with raises("state: expected [slots, 5, at least 9], slots >= 1; got (2, 5, 8)"):
        ple_short_conv(x, weight, state, *request, 3)
    with raises("got (2,), (2,), (1,)"):
        ple_short_conv_state_(x, state, request[0], torch.tensor([1, 1]), request[2], 8)


# ---------------------------------------------------------------------------------------------------------- verify rows
def _verified(lengths, accepted, drafts, dilation, run):
    """One request from empty: chunks, each with how many of its tokens stay; None for one that is no verify chunk.

    Returns the outputs of the tokens that stayed, and the tokens."""
    length, x = 3 * dilation, torch.randn(sum(lengths), CHANNELS)
    weight, state = torch.randn(CHANNELS, 4), torch.full((3, CHANNELS, length + drafts), float("nan"))
    slot, stayed, outputs, done, last = torch.tensor([2], dtype=torch.int32), [], [], 0, 1
    for n, keep in zip(lengths, accepted):
        chunk = x[done : done + n]
        request = torch.tensor([0, n]), slot, torch.tensor([done > 0])
        verify = torch.tensor([last], dtype=torch.int32), torch.tensor([keep is not None])
        y = run(ple_short_conv, chunk, weight, state, *request, dilation, *verify)
        run(ple_short_conv_state_, chunk, state, *request, length, *verify)
        last = n if keep is None else keep
        outputs.append(y[:last])
        stayed.append(chunk[:last])
        done, last = done + n, 1 if keep is None else keep
    return torch.cat(outputs), torch.cat(stayed), weight, state


@settings(max_examples=12, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), dilation=st.sampled_from((1, 3)), kernel=st.booleans())
def test_rejected_drafts_leave_no_trace(seed, dilation, kernel):
    """A prefill, then verify chunks of 1 to 1+S tokens of which any number stays: as if the rest had never been."""
    rng, drafts = random.Random(seed), 3
    torch.manual_seed(seed)
    lengths = [rng.randint(1, 12)] + [rng.randint(1, 1 + drafts) for _ in range(5)]
    accepted = [None] + [rng.randint(1, n) for n in lengths[1:]]

    def run(op, *args):
        with compat.interpreted() if kernel else torch.no_grad():
            return op(*args)

    got, tokens, weight, state = _verified(lengths, accepted, drafts, dilation, run)
    whole = torch.tensor([0, len(tokens)]), torch.tensor([1]), torch.tensor([False])
    want = ple_short_conv(tokens, weight, torch.zeros(2, CHANNELS, 3 * dilation), *whole, dilation)
    assert torch.allclose(got, want, atol=1e-5)
    assert bool(state[:2].isnan().all())


@pytest.mark.parametrize(("accepted", "window"), [(3, [9, 10]), (9, [10, 11]), (0, [7, 8])])
def test_what_a_verify_chunk_leaves_in_its_slot(accepted, window):
    """history[1:] ++ chunk, in L - 1 + n columns; those after stay. The count is cut to what a slot holds."""
    x, state = torch.arange(2.0)[:, None] + 100, torch.arange(18.0).view(3, 1, 6).clone()
    request = torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([True])
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            after = state.clone()
            ple_short_conv_state_(x, after, *request, 3, torch.tensor([accepted]), torch.tensor([True]))
            assert after[1, 0].tolist() == [*window, 100, 101, 10, 11] and torch.equal(after[::2], state[::2])


@settings(max_examples=12, deadline=None, database=None)
@given(seed=st.integers(0, 10_000))
def test_kernels_equal_reference_in_mixed_steps(seed, step, strided):
    """Some requests verify, any accepted count, out-of-range ones too, and strides; both kernels."""
    batch, generator = step(seed), torch.Generator().manual_seed(seed)
    sample = list(_sample(batch, seed, spare=3))
    accepted = torch.randint(-1, 7, (batch.requests,), generator=generator, dtype=torch.int32)
    spec = (torch.rand(batch.requests, generator=generator) < 0.6) & (torch.tensor(batch.lengths) <= 4)
    sample = [strided(t, seed + i) for i, t in enumerate((*sample, accepted, spec))]
    x, weight, state, *request, accepted, spec = sample

    def run():
        after = state.clone()
        y = ple_short_conv(x, weight, state, *request, 3, accepted, spec)
        ple_short_conv_state_(x, after, *request, 9, accepted, spec)
        return y, after

    y, after = run()
    with compat.interpreted():
        got, got_after = run()
    assert torch.allclose(y, got, atol=1e-5) and torch.equal(after, got_after)


def test_half_a_verify_is_refused(raises):
    x, weight, state = torch.randn(2, CHANNELS), torch.randn(CHANNELS, 4), torch.randn(2, CHANNELS, 9)
    request = torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([True])
    with raises("num_accepted, is_spec: expected both or neither"):
        ple_short_conv(x, weight, state, *request, 3, torch.tensor([1]))
    with raises("is_spec: expected [R] = (1,); got (2,)"):
        ple_short_conv(x, weight, state, *request, 3, torch.tensor([1]), torch.tensor([True, True]))
