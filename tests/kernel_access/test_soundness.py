"""Every proved offset, evaluated, is the address that Triton's interpreter touches."""

import dataclasses

import numpy as np
import pytest
import triton
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from capwise.kernel_access import NotFollowed, evaluate, summarize
from capwise.kernel_access.compare import compare
from capwise.kernel_access.symbolic import Poly

GRID = (5, 3, 1)
EXACT = [
    "slot_unit", "slot_passed", "search", "search_linear", "search_lanes", "boundaries", "state_checked",
    "state_unchecked", "state_masked", "state_two_ways", "shift_alone", "shift_blocks", "shift_barrier",
    "shift_by_passed", "moved_slots", "in_place", "halves", "rows_32", "rows_32_late", "masked_copy", "columns",
    "nested", "walk", "persistent", "shapes", "divided", "pages", "counted", "called", "either_base",
    "scatter", "tail_masked_load", "until_length", "state_by_program", "carried_lanes",
]  # fmt: skip
if tuple(int(x) for x in triton.__version__.split(".")[:2]) < (3, 9):
    EXACT.append("block_pointers")


def memory(seed, growing):
    """Small values; boundaries grow with the index."""

    def values(arg, where):
        where = np.asarray(where, dtype=np.int64)
        mixed = (where * 2654435761 + seed * 7919 + sum(map(ord, arg))) >> 4
        return where * 2 + mixed % 2 if arg in growing else mixed % 6 - 1

    return values


def findings(kernel, summary, scalars, seed, programs):
    growing = {row.arg for row in summary.arguments if row.role == "boundary"}
    named = {n: scalars[i % len(scalars)] for i, n in enumerate(summary.signature) if n not in pointers(summary)}
    return compare(kernel, summary, GRID, named, memory(seed, growing), programs)


def pointers(summary):
    return {n for n, kind in summary.signature.items() if kind.startswith("*")}


@pytest.mark.parametrize("name", EXACT)
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(
    scalars=st.lists(st.integers(1, 40), min_size=4, max_size=4),
    seed=st.integers(0, 99),
    pid=st.tuples(st.integers(0, 4), st.integers(0, 2), st.just(0)),
)
def test_proved_offsets_are_the_touched_ones(kernel, summary, name, scalars, seed, pid):
    found = findings(kernel(name), summary(name), scalars, seed, [pid])
    assert {f.arg for f in found} == {row.arg for row in summary(name).arguments}
    assert [f for f in found if f.outcome != "equal"] == []


@pytest.mark.parametrize("name", ["early_returns", "float_mask"])
def test_offsets_under_conditions_not_followed_enclose_the_touched_ones(kernel, summary, name):
    found = {f.arg: f.outcome for f in findings(kernel(name), summary(name), [3, 7], 1, [(1, 0, 0), (2, 0, 0)])}
    assert found["out_ptr"] == "enclosed" and "contradiction" not in found.values()


def test_carried_values_not_followed_matter_only_where_used(kernel, summary):
    found = summarize(kernel("beside_unknown"), {"x_ptr": "*i32", "w_ptr": "*fp32", "out_ptr": "*i32", "n": "i32"}, {})
    (access,) = found["out_ptr"].accesses
    memory = {"x_ptr": [5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]}
    assert evaluate(access, (0, 0, 0), GRID, {"n": 3}, memory).tolist() == [0, 8, 10]


def broken(summary, arg, **changes):
    """The summary with every access of one argument changed."""

    def change(access):
        return dataclasses.replace(access, **{k: v(access) for k, v in changes.items()})

    rows = tuple(
        dataclasses.replace(row, accesses=tuple(map(change, row.accesses))) if row.arg == arg else row
        for row in summary.arguments
    )
    return dataclasses.replace(summary, arguments=rows)


def test_a_wrong_offset_is_a_contradiction(kernel, summary):
    wrong = broken(summary("boundaries"), "x_ptr", poly=lambda a: a.poly + 1)
    found = {f.arg: f for f in findings(kernel("boundaries"), wrong, [9, 9], 0, [(1, 0, 0)])}
    assert found["x_ptr"].outcome == "contradiction" and found["out_ptr"].outcome == "equal"


def test_a_missing_condition_is_a_contradiction(kernel, summary):
    wrong = broken(summary("masked_copy"), "src_ptr", mask=lambda a: None)
    found = {f.arg: f for f in findings(kernel("masked_copy"), wrong, [9], 0, [(0, 0, 0)])}
    assert "does not touch" in found["src_ptr"].detail


def test_a_wrong_extent_is_a_contradiction(kernel, summary):
    right = summary("masked_copy")
    rows = tuple(dataclasses.replace(row, extents=tuple(h - 1 for h in row.extents)) for row in right.arguments)
    found = findings(kernel("masked_copy"), dataclasses.replace(right, arguments=rows), [9], 0, [(0, 0, 0)])
    assert all("past the extent" in f.detail for f in found)


def test_evaluate_gives_elements_of_one_program(summary):
    (access,) = summary("slot_passed")["idx_ptr"].accesses
    scalars = {"stride_idx": 4, "stride_state": 1, "stride_out": 1}
    assert evaluate(access, (3, 0, 0), GRID, scalars, {}).tolist() == [12]
    (state,) = summary("slot_unit")["state_ptr"].accesses
    touched = evaluate(state, (2, 0, 0), GRID, {"stride_state": 100, "stride_out": 1}, {"idx_ptr": [5, 6, 7]})
    assert touched.tolist() == list(range(700, 716))


def test_evaluate_steps_through_a_search(summary):
    (access,) = summary("search")["qsl_ptr"].accesses
    touched = evaluate(access, (4, 0, 0), GRID, {"num_reqs": 4}, {"qsl_ptr": [0, 2, 3, 6, 9]})
    assert touched.tolist() == [2, 3]


def test_evaluate_refuses_what_is_not_followed(summary):
    (access,) = summary("assembly")["x_ptr"].accesses
    with pytest.raises(NotFollowed):
        evaluate(access, (0, 0, 0), GRID, {}, {})


def test_evaluate_wants_every_scalar(summary):
    (access,) = summary("slot_passed")["idx_ptr"].accesses
    with pytest.raises(NotFollowed, match="stride_idx"):
        evaluate(access, (0, 0, 0), GRID, {}, {})


def test_offsets_are_sympy_expressions(summary):
    (access,) = summary("slot_passed")["idx_ptr"].accesses
    assert str(access.offset) == "pid0*stride_idx"
    assert isinstance(access.poly, Poly)
