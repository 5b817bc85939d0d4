"""Strides that consumers need against strides that producers have, over all batches of a case."""

from __future__ import annotations

import torch

from capwise import Buffer
from capwise.models.demo_cases import s2_golden


def _found(program, code):
    return [(d.severity, d.repair) for d in program.report if d.code == code]


def test_a_kernel_that_assumes_a_unit_stride_is_found(program_of, replays, differs):
    case = s2_golden(4, "unit")
    found = _found(program_of(case), "CW401")
    assert found and set(found) == {("note", "contiguous copy")}
    assert set(_found(program_of(case, repair="none"), "CW401")) == {("error", None)}
    replays(case)
    differs(s2_golden(4, "unit"))


def test_a_kernel_that_takes_its_strides_needs_nothing(program_of, replays):
    case = s2_golden(4, "ours")
    program = program_of(case)
    assert not _found(program, "CW401") and program.report.copies == 0
    replays(case)


def test_a_unit_stride_kernel_on_dense_slots_needs_nothing(program_of, replays):
    """A table of one column: its column is dense for every batch."""
    case = s2_golden(1, "unit")
    assert program_of(case).report.copies == 0
    replays(case)


def test_a_strided_buffer_that_is_handed_over_is_guarded(make_case, program_of, replays):
    table = torch.zeros(16, 2, dtype=torch.int64)
    steps = [{"x": torch.ones(t, 4), "column": table[:t, 0]} for t in (6, 3)]
    case = make_case(lambda x, column: x + column[:, None], steps, {"column": Buffer("T")})
    assert _found(program_of(case), "CW402") == [("note", "guard")]
    replays(case)
    dense = [{"x": s["x"], "column": torch.zeros(16, dtype=torch.int64)[: len(s["x"])]} for s in steps]
    torch._dynamo.reset()
    case = make_case(lambda x, column: x + column[:, None], dense, {"column": Buffer("T")})
    assert _found(program_of(case), "CW402") == []


def test_the_graph_stays_as_it_is(around):
    before, after = around(s2_golden(4, "unit"), "layout")
    assert before == after
