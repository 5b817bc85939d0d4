"""The re-check: a pass that does not do its work is caught, said, and answered by a seam."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import capwise
from capwise.passes.contiguous import ContiguousCopy
from capwise.passes.device_scalar import DeviceScalar
from capwise.passes.fill import Fill
from capwise.passes.masked_write import MaskedWrite


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.full((16, 4), 0.5))

    def forward(self, x):
        self.seen[: x.shape[0]] = x
        return x + 1


BROKEN = [
    (Fill, lambda: lambda x: x - torch.exp(x).sum(0), "CW202"),
    (Fill, lambda: lambda x: torch.softmax(x @ x.t(), -1) @ x, "CW202"),
    (DeviceScalar, lambda: lambda x: x * x.shape[0], "CW102"),
    (MaskedWrite, Writes, "CW204"),
]
IDS = ["fill", "fill twice", "device_scalar", "masked_write"]


@pytest.mark.parametrize("broken, model, code", BROKEN, ids=IDS)
def test_a_sound_repair_leaves_nothing(broken, model, code, make_case, program_of, replays):
    case = make_case(model())
    assert "CW901" not in program_of(case).report.codes()
    replays(case)


@pytest.mark.parametrize("broken, model, code", BROKEN, ids=IDS)
def test_a_pass_that_does_nothing_is_caught_and_the_result_is_still_right(
    broken, model, code, make_case, program_of, replays, monkeypatch
):
    monkeypatch.setattr(broken, "run", lambda self, graph: False)
    case = make_case(model())
    report = program_of(case).report
    found = [d for d in report if d.code == "CW901"]
    assert found and all(d.severity == "warning" and d.repair == "seam" for d in found)
    assert any(f"did not remove {code}" in d.message for d in found)
    assert any(s.code == "CW901" for s in report.seams)
    replays(case)


def test_a_fill_of_the_wrong_value_is_caught(make_case, program_of, replays, monkeypatch):
    from capwise.passes import fill

    monkeypatch.setattr(fill, "_cast", lambda value, dtype: 3.0)
    case = make_case(lambda x: x - torch.exp(x).sum(0))
    assert "CW901" in program_of(case).report.codes()
    replays(case)


def test_a_mask_at_the_wrong_extent_is_caught(make_case, program_of, replays, monkeypatch):
    from capwise.compilation import Editor

    right = Editor.expression
    monkeypatch.setattr(Editor, "expression", lambda self, expr: right(self, expr + 1))
    case = make_case(lambda x: x - torch.exp(x).sum(0))
    assert "CW901" in program_of(case).report.codes()
    replays(case)


def test_an_arena_fill_that_is_wrong_is_caught(make_case, program_of, replays, monkeypatch):
    from capwise.passes.padding import Padding

    monkeypatch.setattr(Padding, "_choose", lambda self, name, values: 5.0)
    case = make_case(lambda x: x - x.sum(0))
    program = program_of(case)
    assert program.staged_fills == {"x": 5.0} and program.report.fills == 2
    replays(case)


def test_a_copy_that_was_not_made_is_caught(program_of, monkeypatch, replays):
    """The kernel assumes a unit stride, and nobody makes the column dense."""
    from capwise.models.demo_cases import s2_golden

    monkeypatch.setattr(ContiguousCopy, "run", lambda self, graph: False)
    report = program_of(s2_golden(4, "unit")).report
    assert "CW901" in report.codes()


def test_under_none_nothing_is_caught(make_case, program_of):
    assert "CW901" not in program_of(make_case(lambda x: x - x.sum(0)), repair="none").report.codes()
    assert not capwise.verify(make_case(lambda x: x - x.sum(0)), unsafe=True).ok
