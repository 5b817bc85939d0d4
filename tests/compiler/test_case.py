"""A Case: a model, a history, and what its axes are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import capwise
from capwise import Case, OptionError


def _case(**more):
    return Case(**{"model": nn.ReLU(), "batches": [{"input": torch.ones(2)}], **more})


def test_a_case_is_named_after_its_model():
    assert _case().name == "ReLU" and _case(name="mine").name == "mine"


def test_no_batch_is_refused():
    with pytest.raises(ValueError, match="batches: expected at least one batch; got none"):
        _case(batches=[])


def test_a_batch_that_is_no_mapping_is_refused():
    with pytest.raises(ValueError, match=r"batches\[1\]: expected argument name -> value; got Tensor"):
        _case(batches=[{"input": torch.ones(2)}, torch.ones(2)])


def test_options_of_the_call_win_over_the_case_and_those_over_its_fields():
    case = _case(key=("R",), capacity={"T": 4}, options={"repair": "split", "key": ("Q",)})
    made = case.make_options(repair="none")
    assert (made.repair, made.key, made.capacity) == ("none", (("Q",),), {"T": 4})
    with pytest.raises(OptionError):
        _case(options={"repairs": "none"}).make_options()


def test_an_absent_optional_is_a_missing_key_or_none(make_case, replays):
    def model(x, bias=None):
        return x + 1 if bias is None else x + bias

    x, bias = torch.ones(3, 4), torch.ones(3, 4) * 5
    case = make_case(model, [{"x": x}, {"x": x, "bias": None}, {"x": x, "bias": bias}, {"x": x}], {"bias": ("T", 4)})
    replays(case)
    torch._dynamo.reset()
    assert len(capwise.backend.programs_of(case)) == 2


def test_capacity_grows_to_hold_the_batches_of_a_case():
    case = _case(batches=[{"input": torch.ones(70)}, {"input": torch.ones(3)}], inputs={"input": ("R",)}, key=("R",))
    assert capwise.backend.case_options(case).capacity == {"R": 70}
