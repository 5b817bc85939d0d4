"""Verification itself must be able to fail: each kind of mismatch can be produced, and is what it says."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import capwise
from capwise import Buffer, Contract, Input
from capwise.models.footguns import FOOTGUNS
from capwise.ops.contract import Rows, contract
from capwise.verify import Mismatch, VerifyResult, difference, history

# What no reader of bodies can see: a function without a source, as one of an extension module is.
ask = eval("lambda x: x[0, 0].item()", {})


# Ops whose contracts lie: the analysis believes them, verification does not.
@torch.library.custom_op("liars::sums", mutates_args=())
def sums(x: torch.Tensor) -> torch.Tensor:
    """Says that it is row-local; sums over rows."""
    return x + x.sum(0)


@torch.library.custom_op("liars::counts", mutates_args=())
def counts(x: torch.Tensor) -> torch.Tensor:
    """Says that it is row-local; multiplies by the number of rows."""
    return x * x.shape[0]


@torch.library.custom_op("liars::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """Says that it does not sync."""
    return x * ask(x)


for _op in (sums, counts, waits):
    _op.register_fake(lambda x: torch.empty_like(x))


@contract("liars::sums")
@contract("liars::counts")
@contract("liars::waits")
def row_local():
    return Contract(rows={"x": Rows("T", None), "out": Rows("T", None)}, locality="row")


def _kinds(result):
    return {m.kind for m in result.mismatches}


# ---------------------------------------------------------------------------------------------------------- kinds
def test_a_tail_that_shows_is_a_history_mismatch(make_case):
    result = capwise.verify(make_case(lambda x: torch.ops.liars.sums(x)))
    assert not result.ok and "history" in _kinds(result)
    first = result.mismatches[0]
    assert (first.step, first.what, first.rows, first.tolerance) == (0, "output 0", (0, 1, 2, 3, 4, 5), 0.0)


def test_a_captured_extent_that_shows_is_an_eager_mismatch_only(make_case):
    result = capwise.verify(make_case(lambda x: torch.ops.liars.counts(x)))
    assert _kinds(result) == {"eager"}
    assert [(m.step, m.rows) for m in result.mismatches] == [(0, tuple(range(6))), (1, tuple(range(5))), (2, (0, 1, 2))]
    assert result.mismatches[0].expected == 0.125 * 6 and result.mismatches[0].got == 0.125 * 8


def test_what_cannot_be_recorded_is_a_capture_mismatch(make_case):
    result = capwise.verify(make_case(lambda x: torch.ops.liars.waits(x)))
    (only,) = result.mismatches
    assert (only.kind, only.what, only.step) == ("capture", "capture", 0) and "syncs with the host" in only.got


@pytest.mark.parametrize("name", ["item", "boolean mask"])
def test_a_naive_engine_cannot_record_a_sync(name):
    result = capwise.verify(FOOTGUNS[name].case(), unsafe=True)
    assert _kinds(result) == {"capture"} and capwise.verify(FOOTGUNS[name].case()).ok


NAIVELY_WRONG = ["row of a token", "write to slots", "stale boundaries", "last token"]


@pytest.mark.parametrize("name", NAIVELY_WRONG)
def test_a_naive_engine_is_wrong_where_a_fault_is_real_and_capwise_is_not(name):
    assert not capwise.verify(FOOTGUNS[name].case(), unsafe=True).ok
    torch._dynamo.reset()
    result = capwise.verify(FOOTGUNS[name].case())
    assert result.ok, str(result)


@pytest.mark.parametrize("name", ["opaque op", "one row a request"])
def test_what_capwise_cannot_prove_is_not_called_wrong(name):
    assert capwise.verify(FOOTGUNS[name].case(), unsafe=True).ok


def test_state_that_differs_is_named(make_case):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.full((16, 4), 0.5))

        def forward(self, x):
            self.seen[: x.shape[0]] = x
            return x + 1

    result = capwise.verify(make_case(Writes()), unsafe=True)
    assert {m.what for m in result.mismatches} == {"state seen"}
    assert result.mismatches[0].rows == (6, 7)


# ---------------------------------------------------------------------------------------------------------- shape
def test_json_is_as_documented(make_case):
    result = capwise.verify(make_case(lambda x: torch.ops.liars.counts(x)))
    data = json.loads(json.dumps(result.to_dict()))
    assert list(data) == ["version", "case", "steps", "ok", "mismatches", "history", "adversaries", "first"]
    assert (data["history"], data["adversaries"]) == ([0], []) and data["first"]["op"] == "liars.counts.default"
    assert (data["first"]["file"], data["first"]["line"] > 0) == (__file__, True)
    assert (data["version"], data["case"], data["steps"], data["ok"]) == (1, "case", 3, False)
    assert all(set(m) == {"step", "what", "kind", "rows", "expected", "got", "tolerance"} for m in data["mismatches"])
    assert data["mismatches"][0]["rows"] == list(range(6)) and data["mismatches"][0]["tolerance"] == 5e-4


def test_json_of_a_good_result(make_case):
    data = capwise.verify(make_case(lambda x: x + 1)).to_dict()
    assert data == {"version": 1, "case": "case", "steps": 3, "ok": True, "mismatches": []}


def test_results_and_mismatches_print():
    one = Mismatch(2, "output 0", "eager", (1, 3), 1.0, 2.0, 5e-4)
    assert str(one) == "step 2: output 0 (eager) rows [1, 3]: expected 1.0, got 2.0"
    assert str(VerifyResult("c", 3)) == "c: 3 steps, replay equals eager"
    assert "replay differs" in str(VerifyResult("c", 3, [one]))


# ---------------------------------------------------------------------------------------------------------- what counts
def test_scratch_rows_are_not_compared(make_case):
    """Padded rows write the null row; it stands for nothing."""

    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(8, 4))

        def forward(self, x, slots):
            self.cache[slots] = x
            return x + 1

    steps = [{"x": torch.ones(t, 4) * t, "slots": torch.arange(1, t + 1)} for t in (6, 5, 3)]
    case = make_case(Cache(), steps, {"slots": Input("T", null=0)})
    result = capwise.verify(case)
    (program,) = capwise.backend.programs_of(case)
    assert result.ok and program.scratch == [("cache", 0, 0)]


def test_differences():
    one = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert difference(one, one.clone(), exact=True) is None
    assert difference(one, one + torch.tensor([[0.0, 0.0], [0.0, 1.0]]), exact=False) == ((1,), 4.0, 5.0, 5e-4)
    assert difference(one, one + 1e-5, exact=False) is None
    assert difference(one, one + 1e-5, exact=True)[3] == 0.0
    nan = torch.tensor([float("nan"), 1.0])
    assert difference(nan, nan.clone(), exact=True) is None
    assert difference(nan, torch.ones(2), exact=False)[0] == (0,)
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3]), exact=False) == ((1,), 2, 3, 0.0)
    assert difference(one, one[:1], exact=False)[:3] == ((), "(2, 2) torch.float32", "(1, 2) torch.float32")
    assert difference(one, one.double(), exact=False) is not None
    assert difference(3, 3, exact=True) is None and difference(3, 4, exact=True) == ((), 3, 4, 0.0)
    assert difference(one, one * 2, exact=True, scratch=[(0, 0), (0, 1)]) is None
    assert difference(torch.tensor(True), torch.tensor(False), exact=True)[0] == ()


def test_the_reference_says_what_is_right(make_case):
    case = make_case(lambda x: x + 1)
    case.reference = lambda x: x + 2
    assert _kinds(capwise.verify(case)) == {"eager"}


def test_the_case_s_own_model_and_batches_stay_as_they_are(make_case):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(4))

        def forward(self, x):
            self.n.add_(1)
            x.mul_(2)
            return x + self.n

    case = make_case(Counts())
    kept = [b["x"].clone() for b in case.batches]
    assert capwise.verify(case).ok and not case.model.n.any()
    assert all(torch.equal(b["x"], k) for b, k in zip(case.batches, kept))


# ---------------------------------------------------------------------------------------------------------- adversaries
def test_without_poison_a_tail_that_nothing_left_there_does_not_show(make_case):
    """One batch: zeroed buffers have a zero tail, which poison overwrites."""
    case = make_case(lambda x: torch.ops.liars.sums(x), [{"x": torch.ones(3, 4)}])
    assert capwise.verify(case, poison=False).ok
    torch._dynamo.reset()
    assert not capwise.verify(case, poison=True).ok


def test_histories_are_reproducible_by_seed():
    orders = [history(5, n, seed) for seed in (0, 1) for n in range(4)]
    assert orders == [history(5, n, seed) for seed in (0, 1) for n in range(4)]
    assert orders[0] == orders[4] == [0, 1, 2, 3, 4]
    assert len({tuple(o) for o in orders}) == 7
    assert all(set(o) == set(range(5)) and len(o) >= 5 for o in orders)


def test_histories_are_run_and_repeat_by_seed(make_case):
    def faults(seed):
        torch._dynamo.reset()
        case = make_case(lambda x: torch.ops.liars.sums(x), [{"x": torch.ones(t, 4)} for t in (6, 3)])
        return capwise.verify(case, histories=2, seed=seed)

    one, again, other = faults(3), faults(3), faults(4)
    assert one.steps == again.steps > 2
    assert [str(m) for m in one.mismatches] == [str(m) for m in again.mismatches]
    assert [str(m) for m in one.mismatches] != [str(m) for m in other.mismatches]


def test_a_guard_miss_is_counted(make_case):
    steps = [{"x": torch.ones(t, 4), "w": torch.ones(4) * t} for t in (6, 5, 3)]
    result = capwise.verify(make_case(lambda x, w: x * w, steps))
    assert result.ok and result.misses >= 2


def test_an_engines_buffer_keeps_its_address_and_what_lies_behind_it(make_case):
    table = torch.arange(32).view(16, 2)
    steps = [{"x": torch.ones(t, 4), "n": table[:t, 0]} for t in (6, 5, 3)]
    result = capwise.verify(make_case(lambda x, n: x + n.sum(), steps, {"n": Buffer("T")}))
    assert result.ok and result.misses == 0 and torch.equal(table, torch.arange(32).view(16, 2))


def test_a_batch_that_contradicts_the_case_is_an_error(make_case):
    case = make_case(lambda x: x + 1, [{"x": torch.ones(3, 4)}, {"x": torch.ones(3, 5)}])
    with pytest.raises(capwise.InputError, match="x dimension 1: expected 4; got 5"):
        capwise.verify(case)
