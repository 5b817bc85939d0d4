"""A temporary is made for what a call reads where it writes, and for nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Shifts(nn.Module):
    """Columns from `start` on go to the columns from 0 on, of a value that the step makes."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start

    def forward(self, x):
        both = torch.cat([x, x + 1], 1)
        both[:, :4].copy_(both[:, self.start : self.start + 4])
        return both


def test_before_and_after(make_case, around, text):
    before, after = around(make_case(Shifts(2)), "temporary")
    assert before == text("""
        %0 = aten.add.Tensor(x, 1)  [T:padded, 4]
        %1 = aten.cat.default([x, %0], 1)  [T:padded, 8]
        %2 = aten.slice.Tensor(%1, 1, 0, 4)  [T:padded, 4]
        %3 = aten.slice.Tensor(%1, 1, 2, 6)  [T:padded, 4]
        %4 = aten.copy_.default(%2, %3)  [T:padded, 4]
        return [%1]""")
    assert after == text("""
        %0 = aten.add.Tensor(x, 1)  [T:padded, 4]
        %1 = aten.cat.default([x, %0], 1)  [T:padded, 8]
        %2 = aten.slice.Tensor(%1, 1, 0, 4)  [T:padded, 4]
        %3 = aten.slice.Tensor(%1, 1, 2, 6)  [T:padded, 4]
        %4 = aten.clone.default(%3, memory_format=torch.contiguous_format)
        %5 = aten.copy_.default(%2, %4)  [T:padded, 4]
        return [%1]""")


@pytest.mark.parametrize("start", [0, 4])
def test_columns_that_are_the_same_or_apart_stay_as_they_are(make_case, around, start):
    before, after = around(make_case(Shifts(start)), "temporary")
    assert before == after


def test_a_naive_engine_has_none(make_case, around):
    before, after = around(make_case(Shifts(2)), "temporary", repair="none")
    assert before == after


class Fills(nn.Module):
    """Rows of a table go to its rows at slots; the padded ones need a fill."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(32.0).view(8, 4))

    def forward(self, x, slots):
        self.table[:, :2].index_add_(0, slots, self.table[: slots.shape[0], :2])
        return x * 2


def test_a_filled_argument_is_a_temporary_already(make_case, around, program_of, rows, replays):
    batches = [{"x": rows(6), "slots": torch.tensor([3, 1, 2])}, {"x": rows(3), "slots": torch.tensor([0])}]
    case = make_case(Fills(), batches, {"slots": ("R",)})
    before, after = around(case, "temporary")
    assert before == after and "aten.where" in after
    assert {(d.code, d.repair) for d in program_of(case).report} >= {("CW304", "temporary"), ("CW204", "fill 0")}
    replays(case)


class Mixes(nn.Module):
    """The rows of a value become sums over the rows of that very value."""

    def forward(self, x):
        left = torch.cat([x + 1, x], 1)[:, :4]
        left.addmm_(x @ x.t(), left)
        return left * 2


def test_a_value_that_is_read_and_written_is_filled_where_it_is_read(make_case, around, replays):
    _, after = around(make_case(Mixes()), "temporary")
    (left,) = [line.split(" ")[0] for line in after.splitlines() if "aten.slice" in line]
    (call,) = [line for line in after.splitlines() if "addmm_" in line]
    written, *read = call[call.index("(") + 1 : call.index(")")].split(", ")
    assert written == left and left not in read and after.count("aten.where") == 2
    replays(make_case(Mixes()))


@pytest.mark.parametrize("start", [1, 2, 3])
def test_all_reads_come_before_all_writes(make_case, replays, start):
    result = replays(make_case(Shifts(start)), keep=True)
    for batch, seen in zip(make_case(Shifts(start)).batches, result.seen):
        both = torch.cat([batch["x"], batch["x"] + 1], 1)
        assert torch.equal(seen["output 0"], torch.cat([both[:, start : start + 4], both[:, 4:]], 1))
