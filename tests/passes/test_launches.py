"""What a launch must be sure of by itself: places that two of its arguments share, and offsets of 32 bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capwise.labels import Input
from capwise.models import kernel_cases
from capwise.ops.launch import jit, tl


def _found(program, code):
    return [(d.verdict, d.repair) for d in program.report if d.code == code]


# ------------------------------------------------------------------------------------------------ offsets of 32 bits
def _narrow(most: int | None):
    case = kernel_cases.case(kernel_cases.Narrow(), "x", "slots")
    if most is not None:
        case.inputs = {**case.inputs, "slots": Input("R", range=(0, most))}
    return case


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (None, [("assumed", "bound guard")]),  # by where it must lie
        (15, []),  # by what it is made of
        (2**28 - 1, []),
        (2**28, [("refuted", "64-bit offset")]),
    ],
)
def test_a_slot_times_a_row_size_fits_by_the_range_of_the_slots(program_of, most, found):
    assert _found(program_of(_narrow(most)), "CW403") == found


def test_a_wide_launch_is_another_op_of_the_same_kernel(program_of, around):
    before, after = around(_narrow(2**28), "widen")
    (one,) = [line for line in before.splitlines() if "capwise_kernel" in line]
    (other,) = [line for line in after.splitlines() if "capwise_kernel" in line]
    assert one != other and one.partition("capwise_kernel")[0] == other.partition("capwise_kernel")[0]
    before, after = around(_narrow(15), "widen")
    assert before == after


# ------------------------------------------------------------------------------------------------ shared places
@jit
def _add_rows_kernel(x_ptr, y_ptr, row_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    tl.store(y_ptr + row * row_stride + column, tl.load(x_ptr + row * row_stride + column) + 1)


class Halves(nn.Module):
    """Two columns of a matrix from `start` on, plus one, go to its last two."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start

    def forward(self, x):
        both = x * 1
        _add_rows_kernel[(x.shape[0],)](both[:, self.start : self.start + 2], both[:, 2:], both.stride(0), WIDTH=2)
        return both


class InPlace(nn.Module):
    """Every program reads and writes its own row, of one tensor."""

    def forward(self, x):
        both = x * 1
        _add_rows_kernel[(x.shape[0],)](both, both, both.stride(0), WIDTH=2)
        return both


def test_columns_that_share_no_place_and_rows_of_one_tensor_have_no_finding(make_case, program_of, replays):
    for model in (Halves(0), InPlace()):
        assert _found(program_of(make_case(model)), "CW304") == []
        replays(make_case(model))


def test_columns_that_share_a_place_are_read_from_a_temporary(make_case, program_of):
    program = program_of(make_case(Halves(1)))
    assert _found(program, "CW304") == [("assumed", "temporary")]
    assert program.report.copies == 1


# ------------------------------------------------------------------------------------------------ strides passed
class Widths(nn.Module):
    """A kernel that is passed a row stride: the tensor's own, or the width of what is looked at."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own

    def forward(self, x):
        left, out = x[:, :2], torch.empty_like(x)[:, :2]
        _add_rows_kernel[(x.shape[0],)](left, out, x.stride(0) if self.own else left.shape[1], WIDTH=2)
        return out.clone()


def test_a_width_for_a_stride_is_found(make_case, program_of):
    assert _found(program_of(make_case(Widths(True))), "CW401") == []
    found = _found(program_of(make_case(Widths(False))), "CW401")
    assert found and set(found) == {("refuted", "contiguous copy")}
