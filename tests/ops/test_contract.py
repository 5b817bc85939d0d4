"""Contracts: what may be declared, and what is refused at declaration."""

from __future__ import annotations

import re

import pytest
import torch

import capwise
from capwise.ops import contract as c
from capwise.testing import withheld_contracts


@torch.library.custom_op("contract_tests::op", mutates_args={"state"})
def op(x: torch.Tensor, slots: torch.Tensor, state: torch.Tensor, eos: int) -> torch.Tensor:
    return x * 2


@op.register_fake
def _(x, slots, state, eos):
    return torch.empty_like(x)


@torch.library.custom_op("contract_tests::two", mutates_args=())
def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x + 2


@two.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


NAME = "contract_tests::op"
OP = torch.ops.contract_tests.op.default


@pytest.fixture(autouse=True)
def _declared_stays():
    before = c.all_declared()
    yield
    c._DECLARED.clear()
    c._DECLARED.update(before)


# ---------------------------------------------------------------------------------------------------------- declaring
def test_a_declared_contract_is_found():
    value = c.Contract(rows={"x": c.Rows("T")}, locality="row")
    assert c.declared(OP) is None and c.declare(NAME, value) is value
    assert c.declared(OP) is value and c.all_declared()[OP] is value


def test_the_decorator_declares_what_its_function_returns():
    @capwise.contract(NAME)
    def make():
        return capwise.Contract(locality="segment")

    assert c.declared(OP) == make() == c.Contract(locality="segment")


def test_a_later_declaration_replaces_an_earlier_one():
    c.declare(OP, c.Contract(locality="row"))
    c.declare(OP, c.Contract(locality="global"))
    assert c.declared(OP).locality == "global"


def test_two_results_are_named_by_number():
    c.declare("contract_tests::two", c.Contract(rows={"out0": c.Rows("T"), "out1": c.Rows("T")}))


@pytest.mark.parametrize(
    "name", ["contract_tests::ops", "nobody::op", "op", "aten::add.Tenser", "contract_tests::op.x"]
)
def test_a_misspelt_op_fails_at_once(name):
    with pytest.raises(
        ValueError, match=re.escape(f"expected a registered op 'namespace::name[.overload]'; got {name!r}")
    ):
        c.declare(name, c.Contract())


@pytest.mark.parametrize(
    "value, words",
    [
        (c.Contract(rows={"y": c.Rows("T")}), r"expected arguments of .*; got y"),
        (c.Contract(requests={"q": c.PerRequest("R"), "p": c.PerRequest("R")}), r"got p, q"),
        (c.Contract(strides={"z": c.Unit()}), r"got z"),
        (c.Contract(state=("cache",)), r"got cache"),
        (c.Contract(rows={"out1": c.Rows("T")}), r"got out1"),
        (c.Contract(locality="rows"), r"locality: expected one of .*; got 'rows'"),
        (c.Contract(requests={"slots": c.Slots(into="cache", null=0)}), r"slots indexes 'cache', which is no argument"),
        (c.Contract(rows={"x": c.Rows("T", tail=c.Fill("bos"))}), r"x: fill 'bos' names no argument"),
    ],
)
def test_a_contract_that_names_what_is_not_there_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        c.declare(NAME, value)
    assert c.declared(OP) is None


def test_what_an_argument_may_say():
    value = c.Contract(
        rows={"x": c.Rows("T", 4, tail=c.Fill("eos"))},
        requests={"slots": c.Slots("R", into="state", null=0)},
        strides={"x": c.Contiguous()},
        host=("eos",),
        state=("state",),
    )
    c.declare(NAME, value)
    assert value.arguments["slots"].tail == c.Fill(0) and value.arguments["slots"].null == 0
    assert c.Boundaries().tail == c.Last() and c.Boundaries().axes == ("R+1",)
    assert c.Rows("T", None, dim=1).axes == (None, "T") and c.PerRequest("R", 2).axes == ("R", 2)
    assert set(value.arguments) == {"x", "slots"}


# ---------------------------------------------------------------------------------------------------------- withheld
def test_withheld_contracts_are_hidden_and_come_back():
    c.declare(OP, c.Contract())
    with withheld_contracts():
        assert c.declared(OP) is None
        with withheld_contracts():
            assert c.declared(OP) is None
        assert c.declared(OP) is None
    assert c.declared(OP) is not None
    with pytest.raises(KeyError), withheld_contracts():
        raise KeyError
    assert c.declared(OP) is not None


def test_without_its_contract_an_op_is_still_found_by_the_symbols_of_its_arguments(make_case, program_of, replays):
    def model(x, scale):
        return torch.ops.contract_tests.two(x)[0] * scale.sum(), torch.ops.contract_tests.two(scale)[1]

    c.declare("contract_tests::two", c.Contract(rows={n: c.Rows("T") for n in ("x", "out0", "out1")}, locality="row"))
    steps = [{"x": torch.ones(t, 4) * t, "scale": torch.ones(r)} for t, r in ((6, 3), (3, 4))]
    case = make_case(model, steps, {"scale": ("R",)})
    assert "CW001" not in program_of(case).report.codes() and not program_of(case).seams
    torch._dynamo.reset()
    with withheld_contracts():
        found = [d for d in program_of(case).report if d.code == "CW001"]
        notes = [n for d in found for n in d.notes]
        assert "symbol R outside the key reaches it through scale" in notes and "symbol T reaches it through x" in notes
        torch._dynamo.reset()
        replays(case)


# ---------------------------------------------------------------------------------------------------------- shipped
def test_every_shipped_op_has_a_contract():
    shipped = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("capwise::")}
    declared = {op._schema.name for op in c.all_declared()}
    assert shipped and {n.split(".")[0] for n in shipped} <= declared
