"""Random numbers in a recording: captured where as many are drawn as eager draws, else between pieces."""

from __future__ import annotations

import pytest
import torch

import capwise


def _fixed(x):
    return x * torch.rand(4)


def _rows(x):
    return x * torch.rand(x.shape[0], 4)


def _dropped(x):
    return torch.nn.functional.dropout(x, 0.5)


def _of_row(x):
    return x + torch.nn.functional.dropout(x[0], 0.5)


@pytest.mark.parametrize(("model", "repair"), [
    (_fixed, "registered generator"), (_of_row, "registered generator"), (_rows, "seam"), (_dropped, "seam"),
])  # fmt: skip
def test_extents_decide(model, repair: str, make_case, program_of) -> None:
    case = make_case(model, [{"x": torch.ones(t, 4)} for t in (6, 3, 5)])
    program = program_of(case)
    (found,) = [d for d in program.report if d.code == "CW104"]
    assert found.repair == repair and bool(program.seams) == (repair == "seam")
    result = capwise.verify(case)
    assert result.ok, str(result)


@pytest.mark.parametrize("options", [
    {"capture": "tape", "lower": "eager"}, {"capture": "off", "lower": "inductor"},
], ids=["replayed", "lowered"])  # fmt: skip
def test_numbers_are_those_of_eager_and_seeds_count_after_capture(options, rows) -> None:
    compiled = capwise.compile(_fixed, inputs={"x": ("T", 4)}, **options)
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        got = [compiled(x=rows(3)).clone(), compiled(x=rows(3)).clone()]
        torch.manual_seed(seed)
        want = [_fixed(rows(3)), _fixed(rows(3))]
        assert all(torch.equal(g, w) for g, w in zip(got, want))
