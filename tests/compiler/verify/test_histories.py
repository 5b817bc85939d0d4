"""Histories that leave something behind, and failing ones made short."""

from __future__ import annotations

import pytest
import torch

import capwise
from capwise import Case
from capwise.labels import normalise
from capwise.verify.histories import history, orders, shortest

INPUTS = {"x": ("T", 4), "starts": ("R+1",)}


def _case(*shapes, strided=()):
    batches = [{"x": torch.zeros(t, 4), "starts": torch.zeros(r + 1)} for t, r in shapes]
    for i in strided:
        batches[i]["x"] = torch.zeros(shapes[i][0], 8)[:, ::2]
    return Case(lambda x, starts: x, batches, inputs=INPUTS)


def _orders(case, count):
    return orders(case, normalise(case.inputs), count, 0)


def test_the_first_history_is_the_case_s_own_and_all_differ():
    made = _orders(_case((3, 1), (6, 2), (6, 1)), 9)
    assert made[0] == [0, 1, 2] and len({tuple(o) for o in made}) == 9


def test_histories_go_from_large_to_small_and_along_each_symbol():
    made = _orders(_case((3, 1), (6, 2), (6, 1), strided=(2,)), 6)
    assert [1, 2, 0] in made  # larger first: T
    assert [1, 2] in made  # equal T, fewer requests
    assert [2, 0] in made  # equal R, fewer tokens
    assert [2, 0, 1] in made  # strided first


def test_without_such_batches_histories_are_random():
    assert _orders(_case((4, 1)), 3) == [[0], history(1, 1, 0), history(1, 2, 0)]


@pytest.mark.parametrize(
    ("culprits", "steps", "found"),
    [((5,), 99, [5]), ((2, 5), 99, [2, 5]), ((0, 2, 5), 99, [0, 2, 5]), ((0, 2, 5), 4, list(range(6)))],
)
def test_a_failing_history_is_made_short(culprits, steps, found):
    run = []

    def fails(order):
        run.append(len(order))
        return [n for n in order if n in culprits] == list(culprits)

    assert shortest(list(range(9)), 5, fails, steps) == found
    assert sum(run) <= steps


def test_a_fault_that_needs_two_steps_is_shown_with_two(make_case):
    """What the first step leaves in the tail shows in a shorter one, whatever bucket it ran in."""
    steps = [{"x": torch.ones(t, 4)} for t in (8, 12, 16, 7, 3, 2)]
    result = capwise.verify(make_case(lambda x: x - x.sum(0), steps), unsafe=True, poison=False)
    assert result.history == [2, 3] and result.first.op == "aten.sum.dim_IntList"
    assert result.mismatches[0].step == 3 and result.adversaries == ()
