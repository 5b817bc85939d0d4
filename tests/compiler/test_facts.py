"""Tails: what is known of padded rows, and the least that covers several."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from capwise.axes import Rows
from capwise.facts import FINITE, LIVE, PADDED, Fact, clear, fact, facts, filled, has_fact, join

LAST = sympy.Symbol("last_x")
TAILS = [
    LIVE,
    FINITE,
    PADDED,
    filled(0),
    filled(0.0),
    filled(1),
    filled(float("inf")),
    filled(LAST),
    filled(None, own=True),
]
tails = st.sampled_from(TAILS)
RANK = {"live": 0, "filled": 1, "finite": 2, "padded": 3}


def test_values_of_a_fill():
    assert filled(0).is_value(0) and filled(0.0).is_value(0) and filled(False).is_value(False)
    assert not filled(1).is_value(0) and not filled(LAST).is_value(0) and not FINITE.is_value(0)
    assert filled(2).constant == 2 and filled(LAST).constant is None and PADDED.constant is None


@pytest.mark.parametrize("tail, finite", [(LIVE, False), (FINITE, True), (PADDED, False), (filled(3), True)])
def test_what_is_finite(tail, finite):
    assert tail.is_finite is finite


def test_an_infinite_fill_is_not_finite():
    assert not filled(float("inf")).is_finite and not filled(float("nan")).is_finite


@given(tails, tails)
def test_a_join_covers_both_and_does_not_depend_on_the_order(a, b):
    both = join([a, b])
    assert both == join([b, a]) or {a.kind, b.kind} == {"filled"}
    assert RANK[both.kind] >= max(RANK[a.kind], RANK[b.kind])
    if both.is_finite:
        assert all(t.is_finite or t.kind == "live" for t in (a, b))
    if both.kind == "filled":
        assert {a, b} <= {both, LIVE}


@given(tails)
def test_a_join_with_itself_or_with_no_tail_is_itself(tail):
    assert join([tail, tail]) == tail and join([tail, LIVE]) == join([LIVE, tail]) == tail and join([]) == LIVE


def test_facts_of_a_node():
    graph = fx.Graph()
    node = graph.placeholder("x")
    assert not has_fact(node) and not facts(node).eager and not has_fact("x")
    with pytest.raises(KeyError, match="x: no single fact"):
        fact(node)
    facts(node).value = Fact(((Rows("T"),), (4,)), (filled(0), LIVE), 1, "staged", "x")
    assert has_fact(node) and str(fact(node)) == "[T:filled(0), 4] staged"
    assert fact(node).with_tail(0, PADDED).tails == (PADDED, LIVE)
    clear(graph)
    assert not has_fact(node)
