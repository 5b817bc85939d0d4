"""The shift without an order: right where lanes run in order, wrong as the code that a device runs."""

from __future__ import annotations

import pytest

import capwise
from capwise.backend import check_case
from capwise.models import naive_shift


@pytest.mark.parametrize("make", (naive_shift.naive, naive_shift.repaired, naive_shift.ours))
def test_the_interpreter_shows_no_difference(make):
    assert capwise.verify(make()).ok


def test_only_the_naive_shift_differs_as_rocm_code():
    """On the other target: tests/ops/test_rocm.py."""
    found = capwise.verify(naive_shift.naive(), device="hip-emulated")
    assert not found.ok and {m.what for m in found.mismatches} == {"state windows"}
    assert {row for m in found.mismatches for row in m.rows} <= {1, 2, 4, 6}  # 6 takes over slot 1 later
    for make in (naive_shift.repaired, naive_shift.ours):
        result = capwise.verify(make(), device="hip-emulated", histories=2)
        assert result.ok, str(result)


def test_another_target_by_name():
    assert not capwise.verify(naive_shift.naive(), device="hip-emulated:gfx1201").ok


def test_an_overlap_that_an_op_declares_is_an_error_that_nothing_repairs():
    (found,) = [d for d in check_case(naive_shift.naive()) if d.code == "CW304"]
    assert (found.verdict, found.severity, found.repair) == ("refuted", "error", None)
    assert found.op == "footgun.naive_shift_.default"
    for make in (naive_shift.repaired, naive_shift.ours):
        assert "CW304" not in check_case(make()).codes()


def test_an_overlap_can_be_allowed():
    class Allowed(naive_shift.Shifting):
        def forward(self, x, sources, destinations, biases):
            with capwise.allow("CW304", reason="slots are never shifted within themselves"):
                self.shift(self.windows, sources, destinations, biases)
            return x + 1

    case = naive_shift.naive()
    case.model = Allowed(case.model.shift)
    (found,) = [d for d in check_case(case) if d.code == "CW304"]
    assert (found.verdict, found.severity) == ("assumed", "warning")
