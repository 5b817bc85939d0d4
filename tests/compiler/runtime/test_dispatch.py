"""Which recording serves a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capwise.runtime.dispatch import bucket, captured_extents, choose_key


@given(st.integers(1, 100), st.lists(st.integers(1, 64), min_size=1, unique=True).map(sorted))
def test_the_bucket_is_the_least_size_that_holds(size, sizes):
    found = bucket(size, sizes)
    assert found == min((s for s in sizes if s >= size), default=None)


KEYS = [("T", "R"), ("T",)]


@pytest.mark.parametrize(
    "extents, key", [((6, 3), 0), ((6, 6), 0), ((6, 1), 0), ((1, 1), 0), ((5, 3), 1), ((3, 4), 1), ((4, 0), 1)]
)
def test_a_key_with_more_symbols_holds_only_where_requests_are_uniform(extents, key):
    assert choose_key(KEYS, dict(zip("TR", extents))) == key


def test_a_single_key_always_holds():
    assert choose_key([("T",)], {"T": 5, "R": 3}) == 0 and choose_key([()], {}) == 0


def test_a_key_whose_symbols_are_not_all_there_does_not_hold():
    assert choose_key(KEYS, {"T": 5}) == 1


def test_captured_extents():
    live, capacity = {"T": 5, "R": 3, "Q": 2}, {"T": 32, "R": 4, "Q": 9}
    assert captured_extents(("T",), live, [4, 8], capacity) == {"T": 8, "R": 4, "Q": 9}
    assert captured_extents(("T", "R"), live, [4, 8], capacity) == {"T": 8, "R": 3, "Q": 9}
    assert captured_extents((), live, [4, 8], capacity) == capacity
    assert captured_extents(("T",), {"T": 9}, [4, 8], capacity) is None
    assert captured_extents(("T",), {"T": 8}, [4, 8], capacity) == {"T": 8}
