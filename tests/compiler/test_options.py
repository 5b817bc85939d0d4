"""Options: a name or value that cannot be names the nearest that can."""

from __future__ import annotations

import dataclasses
import re

import pytest

import capwise
from capwise.options import DEFAULT_CAPTURE_SIZES, OptionError, Options, nearest

DOCUMENTED = "inputs key capacity capture_sizes capture repair lower outputs guards strict dump".split()


def test_the_documented_options_are_all_there():
    assert [f.name for f in dataclasses.fields(Options)] == DOCUMENTED


def test_defaults():
    made = Options.make({})
    assert (made.key, made.capture, made.repair, made.lower, made.outputs) == (
        (("T",),), "auto", "auto", "inductor", "view",
    )  # fmt: skip
    assert made.guards and not made.strict and made.dump is None
    assert DEFAULT_CAPTURE_SIZES[:5] == (1, 2, 4, 8, 16) and DEFAULT_CAPTURE_SIZES[-2:] == (496, 512)
    assert 256 in DEFAULT_CAPTURE_SIZES and 264 not in DEFAULT_CAPTURE_SIZES


@pytest.mark.parametrize("name, near", [("captures", "capture"), ("Key", "key"), ("lowering", "lower"), ("size", "")])
def test_an_unknown_option_names_the_nearest(name, near):
    with pytest.raises(OptionError) as caught:
        Options.make({name: 1})
    text = str(caught.value)
    assert f"option {name!r}: expected one of inputs, key," in text
    assert not near or f"did you mean '{near}'" in text or "did you mean" in text


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("capture", "tapes", "expected one of auto, graph, tape, off; got 'tapes'; did you mean 'tape'?"),
        ("repair", "fix", "expected one of auto, split, none; got 'fix'"),
        ("lower", "triton", "expected one of inductor, eager; got 'triton'"),
        ("outputs", "clone", "expected one of view, copy; got 'clone'"),
        ("guards", 1, "expected True or False; got 1"),
        ("strict", "yes", "expected True or False; got 'yes'"),
        ("key", 3, "expected a tuple of symbols"),
        ("key", [], "expected a tuple of symbols"),
        ("key", ("R+1",), "expected symbol names such as 'T'"),
        ("capture_sizes", [0], "expected a list of positive ints"),
        ("capture_sizes", 8, "expected a list of positive ints"),
        ("capacity", {"T": 0}, "expected symbol -> positive int"),
        ("capacity", 8, "expected symbol -> positive int"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(name, value, words):
    with pytest.raises(OptionError, match=re.escape(f"option {name!r}: {words}")):
        Options.make({name: value})


@pytest.mark.parametrize(
    "key, keys",
    [
        ("T", (("T",),)),
        (("T",), (("T",),)),
        (("T", "R"), (("T", "R"),)),
        ([("T", "R"), ("T",)], (("T", "R"), ("T",))),
        ([("T", "R"), "T"], (("T", "R"), ("T",))),
    ],
)
def test_keys_may_be_one_or_several(key, keys):
    assert Options.make({"key": key}).key == keys


def test_sizes_are_sorted_and_single():
    assert Options.make({"capture_sizes": [8, 2, 8, 4]}).capture_sizes == (2, 4, 8)


def test_options_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options.make({}).strict = True


@pytest.mark.parametrize("call", [capwise.compile, lambda f, **o: capwise.check(f, {}, **o)])
def test_every_way_in_refuses_an_unknown_option(call):
    with pytest.raises(OptionError, match="did you mean 'repair'"):
        call(lambda x: x, repairs="auto")


def test_verify_refuses_an_unknown_option(make_case):
    with pytest.raises(OptionError, match="did you mean 'capture'"):
        capwise.verify(make_case(lambda x: x + 1), captur="tape")


def test_far_names_suggest_nothing():
    assert nearest("zzz", ["key", "capture"]) == ""
