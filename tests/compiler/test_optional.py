"""Optional inputs: a program of its own for a step without one, or a default that is filled in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import capwise
from capwise.labels import Buffer, Input, InputError, normalise


class Biased(nn.Module):
    def forward(self, x, bias=None, gate=None):
        y = x * 2
        if bias is not None:
            y = y + bias
        return y if gate is None else y * gate


def case(bias: object, order: str = "with, without") -> capwise.Case:
    given = [{"bias": torch.full((t,), 3.0), "x": torch.arange(1.0, t + 1)} for t in (4, 3, 2, 3)]
    for i in (1, 3) if order == "with, without" else (0, 2):
        del given[i]["bias"]
    options = {"capture_sizes": (4,)}
    return capwise.Case(Biased(), given, inputs={"x": ("T",), "bias": bias}, capacity={"T": 8}, options=options)


@pytest.mark.parametrize(("bias", "programs", "repair"), [
    (("T",), 2, "program of its own"), (Input("T", default=0), 1, "fill default each step"),
])  # fmt: skip
def test_absence_is_reported_and_served(bias, programs: int, repair: str) -> None:
    compiled = capwise.backend.trace_case(case(bias))
    (found,) = [d for d in compiled.report if d.code == "CW302"]
    assert (found.node, found.repair, found.severity) == ("bias", repair, "note")
    assert "2 of 4" in found.notes[0] and found.line
    assert len(compiled.programs) == programs
    for order in ("with, without", "without, with"):
        result = capwise.verify(case(bias, order))
        assert result.ok, str(result)


def test_an_input_that_is_always_or_never_there_is_no_finding() -> None:
    both = capwise.Case(Biased(), [{"x": torch.ones(3)}] * 2, inputs={"x": ("T",), "bias": ("T",)})
    assert "CW302" not in capwise.backend.check_case(both).codes()
    x = {"x": torch.ones(3), "bias": torch.ones(3)}
    both = capwise.Case(Biased(), [x, x], inputs={"x": ("T",), "bias": ("T",)})
    assert "CW302" not in capwise.backend.check_case(both).codes()


def test_a_wrong_default_is_noticed() -> None:
    result = capwise.verify(case(Input("T", default=7)))
    assert [m.step for m in result.mismatches if m.kind == "eager"] == [1, 3]


def test_a_default_needs_memory_of_our_own_and_a_known_shape() -> None:
    assert "default=1" in repr(Input("T", default=1))
    with pytest.raises(InputError, match="no default of a Buffer"):
        normalise({"x": Buffer("T", default=0)})
    with pytest.raises(InputError, match="every dimension"):
        normalise({"x": Input("T", None, default=0)})
