"""The gated delta rule: against transformers' recurrence a request at a time, verify rows, and both kernel paths."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen4_exp.modeling_qwen4_exp import torch_recurrent_gated_delta_rule

from capwise import compat
from capwise.ops.gdn_scan import gdn_scan_

HK, HV, DK, DV, COLUMNS, SLOTS = 2, 4, 5, 7, 4, 40


def _call(lengths, seed, dtype=torch.float32):
    """Arguments by name; slots of all columns differ, a few are null; the state of who has none is NaN."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tokens, requests = sum(lengths), len(lengths)
    slots = torch.tensor(rng.sample(range(1, SLOTS), requests * COLUMNS), dtype=torch.int32).view(requests, COLUMNS)
    slots[torch.rand(slots.shape, generator=generator) < 0.1] = 0
    call = {
        "q": torch.randn(tokens, HK, DK, generator=generator).to(dtype),
        "k": torch.randn(tokens, HK, DK, generator=generator).to(dtype),
        "v": torch.randn(tokens, HV, DV, generator=generator).to(dtype),
        "g": -torch.rand(tokens, HV, generator=generator) * 2,
        "beta": torch.rand(tokens, HV, generator=generator),
        "state": torch.randn(SLOTS, HV, DK, DV, generator=generator),
        "query_start_loc": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
        "state_table": slots,
        "has_initial": torch.rand(requests, generator=generator) < 0.7,
        "num_accepted": torch.randint(1, COLUMNS + 1, (requests,), generator=generator, dtype=torch.int32),
        "is_spec": (torch.tensor(lengths) <= COLUMNS + 3) & (torch.rand(requests, generator=generator) < 0.5),
    }
    fresh = slots[~call["has_initial"] & ~call["is_spec"], 0]
    call["state"][fresh[fresh > 0].long()] = float("nan")
    call["has_initial"] |= call["is_spec"]
    return call


def _theirs(call, rows, state):
    """transformers' recurrence over some rows of one request: outputs [n, HV, DV] and the state after."""
    parts = [call[n][rows][None] for n in ("q", "k", "v", "g", "beta")]
    # Some releases of transformers repeat key heads inside, some before.
    parts[:2] = [part.repeat_interleave(HV // part.shape[2], 2) for part in parts[:2]]
    out, after = torch_recurrent_gated_delta_rule(
        *parts, initial_state=state[None], output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    return out[0], after[0]


def _by_request(call):
    """Each request alone, token by token where it verifies."""
    state, outs, starts = call["state"].clone(), torch.zeros_like(call["v"]), call["query_start_loc"].tolist()
    for r, (start, end) in enumerate(zip(starts, starts[1:])):
        table, spec = call["state_table"][r].tolist(), bool(call["is_spec"][r])
        source = table[int(call["num_accepted"][r]) - 1] if spec else table[0]
        if source == 0 or start == end:
            continue
        running = call["state"][source] if call["has_initial"][r] else torch.zeros(HV, DK, DV)
        for t in range(start, end):
            outs[t : t + 1], running = _theirs(call, slice(t, t + 1), running)
            if spec and t - start < COLUMNS and table[t - start]:
                state[table[t - start]] = running
        if not spec:
            state[source] = running
    return outs, state


def _run(call, kernel=False, **more):
    call = {**call, "state": call["state"].clone()}
    with compat.interpreted() if kernel else torch.no_grad():
        out = gdn_scan_(**call, **more)
    return out, call["state"]


def _close(got, want, tolerance=2e-5):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance, equal_nan=True)


@settings(max_examples=15, deadline=None, database=None)
@given(seed=st.integers(0, 10_000))
def test_reference_equals_a_loop_over_requests(seed, step):
    call = _call(step(seed).lengths, seed)
    _close(_run(call), _by_request(call))


@settings(max_examples=6, deadline=None, database=None)
@given(seed=st.integers(0, 10_000))
def test_kernels_equal_reference(seed, step, strided):
    """Any strides, noise in the gaps; requests of five tokens and more, or nine, go by products of matrices."""
    dtype = (torch.float32, torch.float16)[seed % 2]
    call = {n: strided(t, seed + i) for i, (n, t) in enumerate(_call(step(seed).lengths, seed, dtype).items())}
    wide = dtype == torch.float32
    _close(_run(call, True, chunk=16 if wide else 32), _run(call), 2e-5 if wide else 4e-3)


def test_chunk_after_chunk():
    """One more token than a chunk, and whole ones; the decay of a whole chunk far below what float32 holds. Drafts
    of more tokens than a short chunk has stay on the path that keeps a state for each."""
    call = _call((17, 6, 32), 5)
    call["g"][::3] *= 30
    call["state_table"][:] = torch.arange(1, 13).view(3, 4)
    call["is_spec"] = torch.tensor([False, True, False])
    got = _run(call, True, chunk=16)
    _close(got, _run(call))
    _close(got, _run(call, True, chunk=0))


def test_keys_that_are_all_alike():
    """The system of equations of a chunk is then as far from the identity as it gets."""
    call = _call((32,), 7)
    call["k"][:] = call["k"][:1]
    call["g"][:], call["beta"][:] = 0.0, 1.0
    _close(_run(call, True, chunk=16), _by_request(call))


def test_a_neighbour_changes_no_bit():
    """The same request alone, and behind another whose length moves it to any place in the batch."""
    alone = _call((21,), 9)
    alone["state_table"][:] = torch.tensor([[5, 6, 7, 8]])
    want, state = _run(alone, True, chunk=16)
    for other in (1, 13):
        both = _call((other, 21), 10)
        for name in ("q", "k", "v", "g", "beta", "state_table", "has_initial", "num_accepted", "is_spec"):
            both[name][-alone[name].shape[0] :] = alone[name]
        both["state_table"][0], both["state"][5] = torch.tensor([1, 2, 3, 4]), alone["state"][5]
        got, after = _run(both, True, chunk=16)
        assert torch.equal(got[other:], want) and torch.equal(after[5], state[5])


def test_rejected_drafts_leave_no_trace():
    """Prefill, then verify chunks of which some tokens stay, one without drafts: as if the rest had never been."""
    chunks, keeps = (6, 4, 3, 4, 1), (6, 2, 1, 4, 1)
    for kernel in (False, True):
        call = _call((sum(chunks),), 11)
        table, state = torch.tensor([[3, 8, 1, 6]], dtype=torch.int32), torch.full((SLOTS, HV, DK, DV), float("nan"))
        outs, stayed, done, last = [], [], 0, 1
        for step, (n, keep) in enumerate(zip(chunks, keeps)):
            rows = slice(done, done + n)
            with compat.interpreted() if kernel else torch.no_grad():
                out = gdn_scan_(
                    *(call[name][rows] for name in ("q", "k", "v", "g", "beta")),
                    state,
                    torch.tensor([0, n]),
                    table,
                    torch.tensor([step > 0]),
                    torch.tensor([last]),
                    torch.tensor([step > 0]),
                )
            outs.append(out[:keep])
            stayed += range(done, done + keep)
            done, last = done + n, keep if step else 1
        want, _ = _theirs(call, torch.tensor(stayed), torch.zeros(HV, DK, DV))
        _close([torch.cat(outs)], [want])
        assert bool(state[[s for s in range(SLOTS) if s not in table[0].tolist()]].isnan().all())


def test_rows_of_nobody_are_zero():
    call = _call((3, 5), 13)
    call["state_table"][:] = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    call["is_spec"][:], call["query_start_loc"] = False, torch.tensor([0, 3, 6], dtype=torch.int32)
    for kernel in (False, True):
        out, _ = _run(call, kernel, chunk=16)
        assert not out[:3].any() and bool(out[3:6].any()) and not out[6:].any()


def test_contradicting_arguments_are_refused(raises):
    call = _call((3,), 1)
    with raises("gdn_scan_: k: expected a divisor of the 4 value heads; got 3 key heads"):
        gdn_scan_(**{**call, "k": torch.zeros(3, 3, DK)})
    with raises("gdn_scan_: num_accepted: expected (1,); got (2,)"):
        gdn_scan_(**{**call, "num_accepted": torch.ones(2)})
    with raises("gdn_scan_: chunk: expected 0 or a power of two of at least 16; got 24"):
        gdn_scan_(**call, chunk=24)
