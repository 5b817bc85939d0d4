"""`torch.compile(model, backend="capwise")`: one program for many batches; graph breaks are seams with CW002."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from capwise import entry

SETTINGS = {
    "inputs": {"x": ("T", 4)},
    "capture": "tape",
    "lower": "eager",
    "capture_sizes": (4, 8),
    "capacity": {"T": 32},
}


def _compile(model, **more):
    return torch.compile(model, backend="capwise", options={**SETTINGS, **more})


@pytest.fixture
def built(monkeypatch):
    """Programs that the backend made."""
    programs, build = [], entry.build

    def spy(*args, **kwargs):
        programs.append(build(*args, **kwargs))
        return programs[-1]

    monkeypatch.setattr(entry, "build", spy)
    return programs


def _equal(got, want):
    return torch.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [6, 1, 4])
def test_names_through_one_restart_give_one_program_for_many_batches(first, built, rows):
    model = _compile(lambda x: x - x.sum(0))
    for tokens in (first, 3, 1, 8, 20, 5):
        assert _equal(model(rows(tokens)), rows(tokens) - rows(tokens).sum(0))
    assert len(built) == 1 and built[0].staged_fills == {"x": 0}


def test_options_reach_the_compiler(built, rows):
    model = _compile(lambda x: x - x.sum(0), repair="split")
    for tokens in (6, 3):
        assert _equal(model(rows(tokens)), rows(tokens) - rows(tokens).sum(0))
    assert len(built[0].seams) == 1 and built[0].options.repair == "split"


def test_an_unknown_option_is_an_error_that_names_the_nearest(rows):
    with pytest.raises(Exception, match="option 'captures': expected one of .*did you mean 'capture'"):
        _compile(lambda x: x + 1, captures="tape")(rows(3))


def test_the_default_options_work(rows):
    model = torch.compile(lambda x: x.cumsum(0) + 1, backend="capwise")
    assert _equal(model(rows(3)), rows(3).cumsum(0) + 1)


def _broken(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y - y.sum(0)


@pytest.mark.parametrize("capture", ["off", "tape"])
def test_a_graph_break_is_a_seam_and_the_result_is_right(capture, built, rows):
    model = _compile(_broken, capture=capture)
    for tokens in (6, 3, 5, 6, 1):
        x = rows(tokens)
        assert _equal(model(x), x * 2 - (x * 2).sum(0))


def test_a_graph_break_is_reported_as_cw002_at_its_line(built, rows, caplog):
    with caplog.at_level(logging.WARNING, logger="capwise.entry"):
        _compile(_broken, capture="off")(rows(6))
    found = [d for p in built for d in p.report if d.code == "CW002"] or [
        r for r in caplog.records if "CW002" in r.getMessage()
    ]
    assert found
    line = _broken.__code__.co_firstlineno + 2
    said = [r.getMessage() for r in caplog.records if "CW002" in r.getMessage()]
    assert any(f"{__file__}:{line}" in text or f"{__file__}:{line + 1}" in text for text in said), said


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x):
        return x @ self.weight + x.sum(0)


def test_a_rebound_parameter_is_honoured(built, rows):
    model = Linear()
    compiled = _compile(model)
    with torch.no_grad():
        compiled(rows(6)), compiled(rows(6))
        model.weight = nn.Parameter(torch.full((4, 4), 2.0))
        for tokens in (6, 3):
            assert _equal(compiled(rows(tokens)), model(rows(tokens)))


def test_a_moved_static_input_is_honoured(built, rows):
    model = _compile(lambda x, w: x * w)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(model(rows(3), torch.full((4,), value)), rows(3) * value)


def test_state_is_written_in_place(built, rows):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            self.total.add_(x.sum(0))
            return x + self.total

    model = Counts()
    compiled = _compile(model)
    total = torch.zeros(4)
    for tokens in (6, 3, 5):
        total = total + rows(tokens).sum(0)
        assert _equal(compiled(rows(tokens)), rows(tokens) + total)
    assert _equal(model.total, total)


def test_state_that_is_rebound_is_carried(built, rows):
    class Carries(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = torch.zeros(4)

        def forward(self, x):
            self.h = self.h + x.sum(0)
            return x + self.h

    compiled, eager = _compile(Carries()), Carries()
    for tokens in (6, 3, 5, 3):
        assert _equal(compiled(rows(tokens)), eager(rows(tokens)))


class KeepsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.zeros(4)

    def forward(self, x, keep):
        y = x[0] * 2
        if keep:
            self.first = y
        return y + 0


def test_what_an_attribute_keeps_outlives_the_next_replay(built, rows, caplog):
    model = KeepsFirst()
    compiled = _compile(model)
    compiled(rows(3), True)
    kept = (rows(3)[0] * 2).clone()
    for _ in range(2):
        compiled(rows(3) + 5, False), compiled(rows(3) + 7, False)
    assert torch.equal(model.first, kept)
    compiled(rows(3) + 1, True)
    first = model.first
    compiled(rows(3) + 9, True)
    assert torch.equal(first, (rows(3) + 1)[0] * 2)


def test_more_than_the_capacity_is_one_clear_error(built, rows):
    model = _compile(lambda x: x + 1)
    model(rows(6))
    with pytest.raises(Exception, match="T: expected at most its capacity 32; got 40"):
        model(rows(40))
    assert torch.equal(model(rows(3)), rows(3) + 1)


def test_two_models_share_an_arena_and_do_not_disturb_each_other(built, rows):
    one, two = _compile(lambda x: x - x.sum(0)), _compile(lambda x: x * x.prod(0))
    for tokens in (6, 3, 5):
        x = rows(tokens)
        assert _equal(one(x), x - x.sum(0)) and _equal(two(x), x * x.prod(0))
    assert len(built) == 2
