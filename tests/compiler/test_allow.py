"""`capwise.allow`: a finding that its author answers for."""

from __future__ import annotations

import pytest
import torch

import capwise


def _model(x):
    with capwise.allow("CW202", reason="rows are symmetric here"):
        y = x.flip(0)
    return y + 1


def _check(model):
    return capwise.check(model, {"x": torch.ones(6, 4)}, inputs={"x": ("T", 4)})


def test_an_allowed_finding_is_assumed_with_its_reason_and_no_seam():
    report = _check(_model)
    (found,) = [d for d in report if d.code == "CW202"]
    assert found.verdict == "assumed" and found.severity == "warning" and found.repair is None
    assert any("rows are symmetric here" in note for note in found.notes)
    assert not report.seams and report.pieces == 1


def test_only_the_code_that_is_named_is_allowed():
    def model(x):
        with capwise.allow("CW204", reason="another one"):
            return x.flip(0) + 1

    report = _check(model)
    assert [(d.code, d.repair) for d in report if d.code == "CW202"] == [("CW202", "seam")] and report.seams


def test_only_ops_inside_are_allowed():
    def model(x):
        with capwise.allow("CW202", reason="this one"):
            y = x.flip(0)
        return y + x.roll(1, 0)

    assert len(_check(model).seams) == 1


@pytest.mark.parametrize(
    "code, reason, words",
    [
        ("CW2O2", "x", "allow: expected a code such as CW203; got 'CW2O2'; did you mean 'CW202'"),
        ("CW202", " ", "allow: reason: expected why this is no fault; got nothing"),
    ],
)
def test_a_code_that_is_none_and_no_reason_are_refused(code, reason, words):
    with pytest.raises(ValueError, match=words):
        capwise.allow(code, reason=reason)
