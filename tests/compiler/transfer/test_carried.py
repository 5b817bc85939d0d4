"""State that loops from step to step: what padded rows left there in one step is an input of the next."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capwise import Case, Input


def _steps(*tokens):
    return [{"x": torch.ones(t, 4) * t, "slots": torch.arange(t) + 1} for t in tokens or (5, 3, 2)]


def _case(model, batches=None, **inputs):
    return Case(
        model, batches or _steps(), {"x": ("T", 4), "slots": Input("T", null=0), **inputs}, {"T": 8},
        options={"capture_sizes": (8,)}, name="carried",
    )  # fmt: skip


class Pool(nn.Module):
    """`read` sees the state before this step's rows are written: what padded rows did shows one step later."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.register_buffer("state", torch.zeros(8, 4))

    def forward(self, x, slots):
        seen = self.read(self.state, slots)
        self.state[slots] = x
        return x + seen


WHOLE = {
    "sum of all rows": lambda state, slots: state.sum(0),
    "the null row by its number": lambda state, slots: state[0],
    "rows by another list": lambda state, slots: state[torch.arange(3)].amax(0),
    "a copy that is summed": lambda state, slots: (state * 2).view(-1, 2, 4).sum((0, 1)),
    "a product with all rows": lambda state, slots: torch.ones(8) @ state,
}
APART = {
    "rows of the slots": lambda state, slots: state[slots],
    "rows behind the null row": lambda state, slots: state[1:].sum(0),
    "nothing": lambda state, slots: 0,
}


def _repairs(report):
    return [d.repair for d in report if d.code == "CW204"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_row_that_a_later_step_reads_is_no_null_row(name, replays):
    """The first step is right either way: the taint arrives in the second."""
    result = replays(_case(Pool(WHOLE[name])))
    assert _repairs(result.report) == ["fill last"] and not result.report.seams
    (found,) = [d for d in result.report if d.code == "CW204"]
    assert any("no row of 'state' can be scratch" in note for note in found.notes)


@pytest.mark.parametrize("name", APART)
def test_a_row_that_nobody_reads_stays_one(name, replays, program_of):
    case = _case(Pool(APART[name]))
    assert _repairs(replays(case).report) == ["null slot fill"]
    assert program_of(case).scratch == [("state", 0, 0)]


def test_the_fault_is_one_of_the_second_step(monkeypatch):
    """Without the loop the first step is right and the second is not."""
    import capwise

    monkeypatch.setattr("capwise.transfer.inputs.readers", lambda flow, graph: {})
    result = capwise.verify(_case(Pool(WHOLE["sum of all rows"])))
    wrong = {m.step for m in result.mismatches if m.what == "output 0"}
    assert wrong and 0 not in wrong, str(result)


class TwoPools(nn.Module):
    """What one state's repair does to another: the first is read whole only where the second writes it back."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(8, 4))
        self.register_buffer("second", torch.zeros(8, 4))

    def forward(self, x, slots):
        self.second.copy_(self.first)
        self.first[slots] = x
        self.second[slots] += x
        return x + self.second[slots]


def test_states_that_feed_each_other_are_found_in_turn(replays, program_of):
    """`second` is overwritten from all of `first`, so that `first` can have no null row; `second` itself may."""
    case = _case(TwoPools())
    replays(case)
    assert program_of(case).scratch == [("second", 0, 0)]


class Returned(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 4))

    def forward(self, x, slots):
        self.state[slots] = x
        return self.state


def test_a_returned_state_is_read(replays):
    assert _repairs(replays(_case(Returned())).report) == ["fill last"]


class Phases(nn.Module):
    """A program that writes rows, and another, of another signature, that reads all of them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 4))

    def forward(self, x, slots, whole=None):
        if whole is not None:
            return x + self.state.sum(0)
        self.state[slots] = x
        return x + 1


def test_programs_of_one_model_share_what_is_read(replays):
    """The reader first: the writer is told. The writer first: it is too late, and that is said."""
    write, read = _steps(5, 3), [{**b, "whole": torch.ones(1)} for b in _steps(4)]
    replays(_case(Phases(), [*read, *write, *read]))
    import capwise

    late = capwise.verify(_case(Phases(), [*write, *read]))
    assert not late.ok
    errors = [d for d in late.report if d.severity == "error"]
    assert [d.code for d in errors] == ["CW202"] and "earlier program" in errors[0].message
