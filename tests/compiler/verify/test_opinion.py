"""The second opinion: captured ATen nodes are run twice; what cannot be lowered never counts as agreed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import capwise
from capwise.verify import opinion


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(16, 4))

    def forward(self, x):
        self.seen[: x.shape[0]] = x * 2
        near = torch.searchsorted(self.seen[0], x)
        return self.seen[: x.shape[0]] + near, x.topk(2).values.exp()


@pytest.fixture
def case(make_case, rows):
    return make_case(Writes(), [{"x": rows(5)}, {"x": rows(3)}])


def test_every_captured_node_agrees_or_is_listed_with_its_reason(case):
    result = capwise.verify(case, mlir=True)
    assert result.ok
    verdicts = {r.place.op: (r.verdict, r.reason) for r in result.opinion.rows}
    assert verdicts["aten.copy_.default"] == ("not lowered", "writes memory")
    verdict, reason = verdicts["aten.searchsorted.Tensor"]
    assert verdict == "not lowered" and "failed to legalize" in reason
    assert {verdicts[op][0] for op in ("aten.mul.Tensor", "aten.add.Tensor", "aten.topk.default")} == {"agrees"}
    listed = result.to_dict()["mlir"]
    assert listed["not_lowered"] == 2 and listed["agrees"] == len(listed["nodes"]) - 2 and listed["differs"] == 0
    assert "not lowered: searchsorted" in str(result) and "copy_" in str(result)


def test_a_value_that_differs_is_a_mismatch_at_its_line(case, monkeypatch):
    real = opinion.execute
    monkeypatch.setattr(opinion, "execute", lambda *given: [r + 1 for r in real(*given)])
    result = capwise.verify(case, mlir=True)
    assert not result.ok and {m.kind for m in result.mismatches} == {"eager"}
    assert all(m.what.startswith("mlir ") and m.place.span.file == __file__ for m in result.mismatches)
    assert result.opinion.count("differs") > 0 and result.opinion.count("agrees") == 0


def test_the_text_has_what_is_lowered_and_names_what_is_not(case):
    text = opinion.linalg_text(case)
    assert "linalg.generic" in text and "// piece0: not lowered: copy_: writes memory" in text
