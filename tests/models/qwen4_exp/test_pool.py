"""Blocks and slots: whose they are, and what happens when there are none."""

from __future__ import annotations

import random

import pytest

from capwise.models.qwen4_exp import Pool, PoolError


def test_a_request_grows_and_gives_everything_back():
    pool = Pool(blocks=6, slots=9, page_size=4, num_spec=3)
    pool.reserve("a", 5)
    assert (len(pool.blocks("a")), len(pool.slots("a"))) == (2, 4)
    pool.reserve("a", 8), pool.reserve("b", 0)
    assert pool.free == {"blocks": 3, "slots": 0} and not pool.blocks("b")
    pool.reserve("a", 9)
    owned = [pool.blocks("a"), [*pool.slots("a"), *pool.slots("b")]]
    assert [sorted(o) for o in owned] == [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8]]
    pool.release("a"), pool.release("b")
    assert pool.free == {"blocks": 5, "slots": 8}


@pytest.mark.parametrize(
    ("owner", "tokens", "text"),
    [
        ("b", 13, "blocks: expected 4 free for request 'b'; got 3"),
        ("a", 25, "blocks: expected 5 free for request 'a'; got 3"),
    ],
)
def test_too_few_blocks_change_nothing(owner, tokens, text):
    pool = Pool(blocks=6, slots=9, page_size=4, num_spec=3, order=random.Random(0))
    pool.reserve("a", 8)
    before = (pool.blocks("a"), pool.slots("a"), pool.free)
    with pytest.raises(PoolError) as error:
        pool.reserve(owner, tokens)
    assert str(error.value) == text and (pool.blocks("a"), pool.slots("a"), pool.free) == before
    with pytest.raises(PoolError, match="owner: expected one that owns something; got 'b'"):
        pool.release("b")


def test_too_few_slots_take_no_block():
    pool = Pool(blocks=6, slots=4, page_size=4, num_spec=3)
    with pytest.raises(PoolError, match="slots: expected 4 free for request 'a'; got 3"):
        pool.reserve("a", 4)
    assert pool.free == {"blocks": 5, "slots": 3}


def test_the_null_numbers_are_nobodys():
    with pytest.raises(ValueError, match="slots: expected at least 2, the null one included; got 1"):
        Pool(blocks=2, slots=1, page_size=4)
    pool = Pool(blocks=2, slots=2, page_size=4)
    pool.reserve("a", 4)
    assert pool.blocks("a") == pool.slots("a") == [1]
