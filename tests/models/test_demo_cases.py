"""The seed faults as Cases: they show when nothing is repaired, and vanish with the right tail."""

from __future__ import annotations

import copy

import pytest
import torch

from capwise import compat
from capwise.models.demo_cases import (
    GOLDEN_IDS,
    GOLDEN_STALE_ROW,
    PROBES,
    S1_SIZES,
    s1,
    s1_before_after,
    s1_controls,
    s1_golden,
    s1_kinds,
    s2,
    s2_golden,
)


def _replayed(case, fill_starts=False, fill_context=False):
    """What a token-keyed graph with room for capacity["R"] requests gives: zeroed buffers, then stale tails."""
    room = case.capacity["R"]
    starts, context = torch.zeros(room + 1, dtype=torch.int32), torch.zeros(room, 2, dtype=torch.int32)
    outs = []
    for batch in case.batches:
        ids, requests = batch["input_ids"], batch["ngram_context"].shape[0]
        if len(ids) > S1_SIZES[-1]:
            outs.append(case.model(**batch))
            continue
        starts[: requests + 1], context[:requests] = batch["query_start_loc"], batch["ngram_context"]
        if fill_starts:
            starts[requests + 1 :] = batch["query_start_loc"][-1]
        if fill_context:
            context[requests:] = case.model.eos
        padded = torch.zeros(min(s for s in S1_SIZES if s >= len(ids)), dtype=torch.int32)
        padded[: len(ids)] = ids
        outs.append(case.model(padded, starts.clone(), context.clone())[: len(ids)])
    return outs


def _wrong(case, outs, kinds):
    """Wrong tokens, and steps that hold one, among the probe steps."""
    bad = [(out != case.model(**batch)).any(1) for out, batch in zip(outs, case.batches)]
    bad = [b for b, kind in zip(bad, kinds) if kind in PROBES]
    return sum(int(b.sum()) for b in bad), sum(bool(b.any()) for b in bad)


def test_s1_holds_46_probes_of_four_kinds_between_bursts():
    kinds = s1_kinds()
    assert len([k for k in kinds if k in PROBES]) == 46 and set(kinds) == {"burst", *PROBES}
    batches = s1().batches
    assert all(b["ngram_context"].shape[0] == 8 for b, kind in zip(batches, kinds) if kind == "burst")
    assert all(3 <= len(b["input_ids"]) <= 32 for b, kind in zip(batches, kinds) if kind == "prompt")


@pytest.mark.parametrize("seed", range(3))
def test_s1_stale_tails_spoil_at_least_50_ids_in_15_steps(seed):
    case, kinds = s1(seed=seed), s1_kinds(seed=seed)
    ids, steps = _wrong(case, _replayed(case), kinds)
    assert ids >= 50 and steps >= 15
    assert _wrong(case, _replayed(case, fill_starts=True), kinds) == (0, 0)
    assert _wrong(case, _replayed(case, fill_context=True), kinds)[1] >= 15


def test_s1_no_probe_survives_a_burst_without_the_fill():
    case = s1_before_after()
    for fill, same in ((False, 0), (True, 10)):
        outs = _replayed(case, fill_starts=fill)
        assert sum(torch.equal(a, b) for a, b in zip(outs[:10], outs[11:])) == same


def test_s1_controls_are_right_with_stale_tails():
    case = s1_controls()
    assert all(torch.equal(out, case.model(**batch)) for out, batch in zip(_replayed(case), case.batches))


def test_s1_golden():
    case = s1_golden()
    assert [tuple(r) for r in case.model(**case.batches[1]).tolist()] == list(GOLDEN_IDS)
    assert tuple(_replayed(case)[1][2].tolist()) == GOLDEN_STALE_ROW


def _s2_run(case, kernel):
    """Wrong rows and damaged slots after each step, against the reference."""
    model, reference, found = copy.deepcopy(case.model), copy.deepcopy(case.reference), []
    for batch in case.batches:
        want = reference(**batch)
        with compat.interpreted() if kernel else torch.no_grad():
            got = model(**batch)
        rows = (~torch.isclose(got, want, atol=1e-5)).any(1).nonzero().flatten().tolist()
        slots = (model.conv_state != reference.conv_state).flatten(1).any(1).nonzero().flatten().tolist()
        found.append((rows, slots))
    return found


BODIES = pytest.mark.parametrize("body", (False, True), ids=("reference", "kernel"))


@BODIES
@pytest.mark.parametrize("stride", (1, 2, 4))
def test_s2_our_kernel_honours_the_stride(stride, body):
    assert _s2_run(s2(stride, channels=32), body) == [([], [])] * 3


@BODIES
def test_s2_the_unit_stride_kernel_spoils_rows_after_the_first_request_and_foreign_slots(body):
    rows, slots = _s2_run(s2(4, "unit", channels=32), body)[0]
    assert rows == list(range(16, 25)) and slots == [11, 20]
    assert _s2_run(s2(1, "unit", channels=32), body) == [([], [])] * 3


@BODIES
@pytest.mark.parametrize("stride", (2, 4))
def test_s2_golden_table(stride, body):
    assert _s2_run(s2_golden(stride), body) == [([], [])] * 2
    first = _s2_run(s2_golden(stride, "unit"), body)[0][1]
    assert first == ([11, 12, 20, 30] if stride == 4 else [11, 20, 30])


def test_s2_has_the_shapes_of_the_report():
    case = s2()
    batch = case.batches[0]
    assert batch["query_start_loc"].tolist() == [0, 16, 692] and batch["x"].shape == (692, 10240)
    assert batch["state_table"].tolist() == [[10, 11, 12, 13], [20, 21, 22, 23]]
    assert 0 in case.batches[1]["state_table"][:, 0]


def test_an_unknown_kernel_or_stride_is_refused():
    with pytest.raises(ValueError, match="kernel: expected one of ours, unit; got 'mine'"):
        s2(kernel="mine")
    with pytest.raises(ValueError, match="stride: expected 1, 2 or 4; got 3"):
        s2(stride=3)


def test_building_cases_leaves_random_state_alone():
    before = torch.random.get_rng_state()
    s1(4), s2(channels=8), s2_golden()
    assert torch.equal(before, torch.random.get_rng_state())
