"""The shift without an order: right where lanes run in order, wrong as the code that a device runs."""

from __future__ import annotations

import pytest

import capwise
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
