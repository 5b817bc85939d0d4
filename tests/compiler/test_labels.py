"""What the user says of inputs: one clear error names the argument, what was expected and what came."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import capwise
from capwise import Buffer, Input, InputError, Live
from capwise.labels import Dim, bind_extents, check_names, infer, normalise, parse_dim

SPECS = normalise({"x": ("T", 4), "starts": ("R+1",), "pairs": ("2*T",), "n": "Q", "live": Live("T")})


# ---------------------------------------------------------------------------------------------------------- labels
@pytest.mark.parametrize(
    "label, dim",
    [
        ("T", Dim("T")),
        ("R+1", Dim("R", 1, 1)),
        ("R - 1", Dim("R", 1, -1)),
        ("2*T", Dim("T", 2, 0)),
        ("3 * T + 2", Dim("T", 3, 2)),
        (7, Dim(None, 1, 7)),
        (None, Dim(None, 1, None)),
    ],
)
def test_labels_are_read(label, dim):
    assert parse_dim(label, "x") == dim


@given(st.integers(1, 9), st.sampled_from("TRQ"), st.integers(-5, 5))
def test_a_label_reads_as_it_prints(scale, symbol, offset):
    dim = Dim(symbol, scale, offset)
    assert parse_dim(str(dim), "x") == dim
    assert dim.extent({symbol: 10}) == scale * 10 + offset


@pytest.mark.parametrize("label", ["T+", "2T", "T*2", "", "T R", 1.5, True, ("T",)])
def test_other_labels_are_refused(label):
    with pytest.raises(InputError, match=r"x: expected a label such as 'T', 'R\+1'.*got " + re.escape(repr(label))):
        parse_dim(label, "x")


@pytest.mark.parametrize("value", [7, None, {"T": 1}, torch.ones(2)])
def test_a_description_that_is_none_is_refused(value):
    with pytest.raises(InputError, match=r"inputs\['x'\]: expected a tuple of labels, Input, Buffer, Live"):
        normalise({"x": value})


def test_descriptions_are_normalised():
    specs = normalise({"a": ["T", None], "b": Input("R", 4, null=0, fill=2.0, range=(0, 5)), "c": Buffer("R+1")})
    assert (specs["a"].kind, specs["a"].symbols) == ("staged", ("T",))
    assert (specs["b"].null, specs["b"].fill, specs["b"].range) == (0, 2.0, (0, 5))
    assert specs["c"].kind == "buffer" and specs["c"].dims == (Dim("R", 1, 1),)
    assert SPECS["n"].kind == "int" and SPECS["live"].kind == "live"


def test_descriptions_print_as_they_are_written():
    assert repr(Input("R", 4, null=0)) == "Input('R', 4, null=0)"
    assert repr(Buffer("R+1")) == "Buffer('R+1')"


# ---------------------------------------------------------------------------------------------------------- batches
@given(st.integers(1, 20), st.integers(0, 8), st.integers(0, 50))
def test_extents_are_bound(tokens, requests, number):
    batch = {
        "x": torch.ones(tokens, 4),
        "starts": torch.ones(requests + 1),
        "pairs": torch.ones(2 * tokens),
        "n": number,
    }
    assert bind_extents(SPECS, batch) == {"T": tokens, "R": requests, "Q": number}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"x": torch.ones(3)}, r"x: expected 2 dimensions \(T, 4\); got shape \(3,\)"),
        ({"x": torch.ones(3, 5)}, r"x dimension 1: expected 4; got 5"),
        ({"x": [1]}, r"x: expected a tensor of axes \(T, 4\); got list"),
        ({"pairs": torch.ones(5)}, r"pairs dimension 0: expected an extent of the form 2\*T; got 5"),
        ({"pairs": torch.ones(8)}, r"pairs dimension 0: expected 6 \(2\*T with T = 3 from x dimension 0\); got 8"),
        ({"starts": torch.ones(0)}, r"starts dimension 0: expected an extent of the form R\+1; got 0"),
        ({"n": 1.5}, r"n: expected an int \(Q\); got float"),
        ({"n": True}, r"n: expected an int \(Q\); got bool"),
        ({"live": 2}, r"live: expected the live extent T = 3; got 2"),
    ],
)
def test_a_batch_that_contradicts_its_description_is_refused(change, words):
    batch = {"x": torch.ones(3, 4), "starts": torch.ones(3), "pairs": torch.ones(6), "n": 1, "live": 3, **change}
    with pytest.raises(InputError, match=words):
        bind_extents(SPECS, batch)


def test_a_live_extent_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"n: Live\('Q'\) names a symbol that no input carries"):
        bind_extents(normalise({"x": ("T",), "n": Live("Q")}), {"x": torch.ones(3), "n": 3})


def test_a_device_scalar_is_not_read_back():
    scalar = torch.empty((), dtype=torch.int64, device="meta")
    assert bind_extents(normalise({"x": ("T",), "n": Live("T")}), {"x": torch.ones(3), "n": scalar}) == {"T": 3}


def test_a_description_of_no_argument_names_the_nearest():
    with pytest.raises(InputError, match=r"inputs\['input_id'\]: expected an argument of the model.*'input_ids'"):
        check_names(normalise({"input_id": ("T",)}), ["input_ids", "positions"])


def test_axes_are_inferred_and_said():
    batch = {"x": torch.ones(6, 4), "starts": torch.ones(4), "scale": torch.ones(3), "k": 3}
    inputs, said = infer(batch)
    assert inputs["x"] == ("T", 4)
    assert len(said) == 3 and all("name them with inputs=" in text for text in said)


# ---------------------------------------------------------------------------------------------------------- untouched
class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, starts=None, scale=None):
        self.seen.add_(x.sum(0))
        return x + self.seen


@pytest.fixture
def stateful():
    inputs = {"x": ("T", 4), "starts": ("R+1",), "scale": ("R",)}
    options = {"capture": "tape", "lower": "eager", "capture_sizes": (4, 8), "capacity": {"T": 32, "R": 3}}
    return capwise.compile(Stateful(), inputs=inputs, **options)


def _good(tokens=3):
    return {"x": torch.ones(tokens, 4), "starts": torch.tensor([0, 1, tokens]), "scale": torch.ones(2)}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"x": torch.ones(33, 4)}, r"T: expected an extent from 1 to (its )?capacity 32; got 33"),
        ({"x": torch.ones(0, 4)}, r"T: expected an extent from 1 to (its )?capacity 32; got 0"),
        ({"x": torch.ones(3, 5)}, r"x dimension 1: expected 4; got 5"),
        ({"scale": torch.ones(3)}, r"(scale|starts) dimension 0: expected \d .* got \d"),
        (
            {"starts": torch.arange(5), "scale": torch.ones(4)},
            r"R: expected an extent from 1 to (its )?capacity 3; got 4",
        ),
        ({"starts": torch.tensor([0, 3, 1])}, r"starts: expected boundaries that do not decrease"),
        ({"x": None}, r"x: expected"),
        ({"other": torch.ones(3)}, r"other.*expected.*x, starts, scale"),
        ({"x": torch.ones(3, 4).tolist()}, r"x: expected a tensor of axes \(T, 4\); got list"),
        ({"x": torch.ones(3, 4, device="meta")}, r"x: expected.*cpu.*got.*meta"),
        ({"x": torch.ones(3, 4).double()}, r"x: expected dtype torch.float32.*got torch.float64"),
    ],
    ids="T-over T-zero width R-contradicts R-over decreasing missing unknown no-tensor device dtype".split(),
)
def test_a_rejected_batch_leaves_everything_as_it_was(stateful, change, words):
    stateful(**_good())
    stateful(**_good(2))
    before = {"seen": stateful.model.seen.clone()}
    arena = [(t, t.clone()) for t in (*stateful.arena._flat.values(), *stateful.arena._strided.values())]
    programs, misses, report = len(stateful.programs), stateful.misses, len(stateful.report)
    with pytest.raises(InputError, match=words):
        stateful(**{**_good(), **change})
    assert torch.equal(stateful.model.seen, before["seen"])
    assert all(torch.equal(t, kept) for t, kept in arena)
    assert (len(stateful.programs), stateful.misses, len(stateful.report)) == (programs, misses, report)
    y = stateful(**_good())
    assert torch.equal(y, torch.ones(3, 4) + before["seen"] + 3)


def test_a_rejected_first_batch_compiles_nothing(stateful):
    with pytest.raises(InputError, match="T: expected an extent from 1 to (its )?capacity 32; got 40"):
        stateful(**{**_good(), "x": torch.ones(40, 4)})
    assert stateful.programs == [] and not stateful.model.seen.any()
    stateful(**_good())
    assert stateful.model.seen.tolist() == [3.0] * 4
