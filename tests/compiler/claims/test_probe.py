"""A drafted contract: the strongest claims that samples do not refute."""

from __future__ import annotations

import contextvars
import json
from types import SimpleNamespace

import pytest
import torch

from capwise.cli import main
from capwise.ops import contract as c
from capwise.testing import check_contract, probe

STEP = contextvars.ContextVar("probe_step", default=None)
LAYER = torch.nn.Linear(4, 4)


@torch.library.custom_op("probes::rowwise", mutates_args=())
def rowwise(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


@torch.library.custom_op("probes::largest", mutates_args=())
def largest(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(0)


@torch.library.custom_op("probes::centred", mutates_args=())
def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


@torch.library.custom_op("probes::by_context", mutates_args=())
def by_context(x: torch.Tensor) -> torch.Tensor:
    """Reads a context object, as a forward context is."""
    return x + STEP.get().requests


@torch.library.custom_op("probes::by_module", mutates_args=())
def by_module(x: torch.Tensor) -> torch.Tensor:
    """Hides state in a module."""
    return x @ LAYER.weight.t()


@torch.library.custom_op("probes::last_of_request", mutates_args=("cache",))
def last_of_request(cache: torch.Tensor, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    cache.copy_(x[starts[1:] - 1].sum(0).expand_as(cache))
    return x[starts[1:] - 1]


ROWS = [((torch.arange(t * 4.0).view(t, 4).sin(),), {}) for t in (5, 3)]


def test_a_row_local_op():
    drafted = probe(rowwise, ROWS)
    assert drafted.contract.rows == {"x": c.Axes(("T", 4)), "out": c.Axes(("T", 4))}
    assert drafted.contract.locality == "row" and not drafted.contract.hidden
    check_contract(rowwise, ROWS, drafted.contract)


def test_a_fill_is_found_where_one_is_neutral():
    drafted = probe(largest, ROWS)
    assert drafted.contract.rows["x"].tail == c.Fill(float("-inf")) and drafted.contract.locality == "global"


def test_without_a_harmless_tail_an_argument_is_left_out():
    drafted = probe(centred, ROWS)
    assert "x" not in drafted.contract.rows and "no tail of x that was tried is harmless" in str(drafted)


def test_a_context_object_and_a_module_are_hidden_inputs():
    token = STEP.set(SimpleNamespace(requests=3))
    try:
        drafted = probe(by_context, ROWS)
    finally:
        STEP.reset(token)
    assert drafted.contract.hidden and "STEP.get().requests" in str(drafted)
    before = LAYER.weight.clone()
    drafted = probe(by_module, ROWS)
    assert drafted.contract.hidden and "LAYER.weight" in str(drafted) and torch.equal(LAYER.weight, before)


def test_boundaries_name_the_axes_and_what_is_written_is_state():
    calls = [
        ((torch.zeros(2, 4), torch.arange(s[-1] * 4.0).view(-1, 4), torch.tensor(s)), {})
        for s in ([0, 2, 5], [0, 1, 3, 4])
    ]
    drafted = probe(last_of_request, calls).contract
    assert drafted.state == ("cache",) and drafted.requests["starts"] == c.Axes(("R+1",), c.Last())
    assert drafted.arguments["x"].axes == ("T", 4) and drafted.arguments["out"].axes == ("R", 4)


def test_the_command_prints_a_contract_that_declares_itself(capsys, tmp_path):
    file = tmp_path / "calls.py"
    file.write_text("import torch\nsome = lambda: [((torch.ones(t, 4) * t,), {}) for t in (5, 3)]\nnone = 3\n")
    assert main(["probe", "probes::rowwise", "--samples", f"{file}:some"]) == 0
    text = capsys.readouterr().out
    declared = {}
    scope = {"contract": lambda name: declared.setdefault, "Contract": c.Contract, "Axes": c.Axes}
    exec(text, scope)
    assert scope["rowwise"] is None and json.dumps(len(declared)) == "1"
    (made,) = declared
    assert made().locality == "row"
    assert main(["probe", "probes::rowwise", "--samples", f"{file}:none"]) == 2
    assert "expected a list of (args, kwargs); got int" in capsys.readouterr().err


def test_one_sample_is_not_enough():
    with pytest.raises(ValueError, match="expected at least two, at different extents; got 1"):
        probe(rowwise, ROWS[:1])
