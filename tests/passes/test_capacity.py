"""CW205: what would be recorded past the end of a buffer is not; what fits is."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Slices(nn.Module):
    def __init__(self, read, rows=12):
        super().__init__()
        self.read = read
        self.register_buffer("buf", torch.arange(rows * 4.0).view(rows, 4))

    def forward(self, x):
        return x + self.read(self.buf, x.shape[0])


def _steps(*tokens):
    return [{"x": torch.ones(t, 4) * t} for t in tokens]


def _caps(program):
    return [(d.repair, d.severity) for d in program.report if d.code == "CW205"]


READS = {
    "the first rows": (lambda buf, t: buf[:t], 12),
    "by narrow": (lambda buf, t: buf.narrow(0, 0, t), 12),
    "after two rows": (lambda buf, t: buf[2 : 2 + t], 10),
    "two rows a token": (lambda buf, t: buf[: 2 * t].view(t, 2, 4)[:, 0], 6),
    "the last rows": (lambda buf, t: buf[-t:], 12),
    "the last rows by number": (lambda buf, t: buf[12 - t :], 12),
}


@pytest.mark.parametrize("name", READS)
def test_the_bucket_is_capped_at_what_fits(name, make_case, program_of, replays):
    read, most = READS[name]
    program = program_of(make_case(Slices(read), _steps(6, 5, 3)))
    assert _caps(program) == [(f"cap the bucket at {most}", "note")] and program.caps == {"T": most}
    replays(make_case(Slices(read), _steps(most, 3, most - 1)))


def test_a_batch_at_the_cap_is_recorded_there_and_a_larger_one_is_not(make_case):
    from capwise.backend import CompiledModel
    from capwise.case import Case  # noqa: F401  the case below is one

    case = make_case(Slices(lambda buf, t: buf[:t].amax(0)), _steps(9, 3, 14))
    compiled = CompiledModel(case.model, case.make_options(capture="tape", lower="eager"))
    with torch.no_grad():
        for batch in case.batches:
            torch.testing.assert_close(compiled(**batch), case.model(**batch))
    (bound,) = [executor.bound for variant in compiled._all for executor in variant.executors]
    assert {captured[0] for captured in bound} == {8, 12}


def test_past_the_cap_a_slice_ends_with_its_buffer(replays, make_case):
    """Python cuts it there; such a batch is not recorded, and gets what eager gives."""

    class Returned(Slices):
        def forward(self, x):
            return x + 1, self.buf[: x.shape[0]], self.buf[4 : x.shape[0] + 4] * 2

    replays(make_case(Returned(None), _steps(8, 3, 14)))


def test_a_slice_that_no_extent_fits_is_no_hazard(replays, make_case):
    report = replays(make_case(Slices(lambda buf, t: buf[: t + 100].sum(0)), _steps(8, 3))).report
    assert not [d for d in report if d.code == "CW205"]


def test_a_buffer_as_large_as_the_largest_bucket_is_not_capped(make_case, program_of):
    program = program_of(make_case(Slices(lambda buf, t: buf[:t], 16), _steps(6, 5, 3)))
    assert not _caps(program) and program.caps == {}


def test_a_symbol_outside_the_key_is_recorded_at_what_fits(make_case, replays, program_of):
    def model(x, scale, table=torch.arange(3.0)):  # noqa: B008 - a constant
        return x + 1, scale * table[: scale.shape[0]]

    steps = [{"x": torch.ones(t, 4), "scale": torch.ones(r)} for t, r in ((6, 3), (5, 1), (3, 2))]
    case = make_case(model, steps, {"scale": ("R",)})
    assert program_of(case).caps == {"R": 3}
    replays(case)


def test_without_repair_it_is_an_error_and_cannot_be_recorded(make_case, program_of, differs):
    case = make_case(Slices(lambda buf, t: buf[:t]), _steps(10, 5))
    assert _caps(program_of(case, repair="none")) == [(None, "error")]
    result = differs(case)
    assert result.mismatches[0].kind == "capture"


def test_two_consumers_of_a_view_conflict_as_those_of_the_input_do(make_case, program_of, replays):
    """CW203 is told through views: the tail that a view has is the buffer's."""
    case = make_case(lambda x: (x.view(-1, 2, 2).sum(0), x.unsqueeze(0).amax(1)))
    found = [d for d in program_of(case).report if d.code == "CW203"]
    assert [d.repair for d in found] == ["second staged copy"] and "two consumers" in found[0].message
    replays(case)
