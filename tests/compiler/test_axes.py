"""The algebra of axes: sizes are kept, positions are followed, equal sizes are not equal axes."""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from capwise.axes import ONE, Cat, Opaque, Rows, Space, as_expr, merge_ints, show

U, V = sympy.Symbol("u0", integer=True, positive=True), sympy.Symbol("u1", integer=True, positive=True)
T, R = Rows("T"), Rows("R")
EXTENTS = {"T": 5, "R": 3}


def space(padded=("T", "R"), most=None):
    return Space({U: "T", V: "R"}, padded, most)


def _value(expr, extents=EXTENTS):
    return int(sympy.sympify(expr).subs({U: extents["T"], V: extents["R"]}))


atoms = st.one_of(
    st.integers(2, 4),
    st.sampled_from([T, R, Rows("R", 0, 1), Rows("R", 1, 1)]),
    st.sampled_from([Cat(((3,), (T,))), Cat(((T,), (R,)))]),
)
axes = st.lists(atoms, max_size=3).map(merge_ints)


# ---------------------------------------------------------------------------------------------------------- sizes
@pytest.mark.parametrize(
    "size, axis, text",
    [
        (1, ONE, "1"),
        (7, (7,), "7"),
        (U, (T,), "T"),
        (V + 1, (Rows("R", 0, 1),), "R+1"),
        (V - 2, (Rows("R", 0, -2),), "R-2"),
        (2 * U, (T, 2), "T*2"),
    ],
)
def test_a_size_becomes_the_axis_that_it_names(size, axis, text):
    assert space().axis(size) == axis and show(axis) == text
    assert sympy.expand(space().size(axis) - size) == 0


@pytest.mark.parametrize("size", [U * V, U + V, U**2, sympy.floor(U / 2), -U, U / 2])
def test_other_sizes_are_opaque_and_keep_their_symbols(size):
    (atom,) = space().axis(size)
    assert isinstance(atom, Opaque) and space().is_opaque((atom,))
    assert space().symbols((atom,)) == {n for s, n in ((U, "T"), (V, "R")) if s in size.free_symbols}


@given(axes)
def test_an_extent_is_the_size_at_these_extents(axis):
    assert space().extent(axis, EXTENTS) == _value(space().size(axis))


def test_a_symbol_that_nobody_pads_is_no_tail():
    assert not space(padded=("R",)).is_padded((T, 2)) and space(padded=("R",)).is_padded((Rows("R", 0, 1),))
    assert space(padded=("R",)).layout((T, 2)) == ("size", 2 * U)


def test_a_minimum_is_decided_by_the_largest_extents():
    assert space(most={"T": 16}).expr(sympy.Min(32, U)) == U
    assert isinstance(space(most={"T": 64}).expr(sympy.Min(32, U)), sympy.Min)
    assert isinstance(space().expr(sympy.Min(32, U)), sympy.Min)


def test_as_expr_takes_ints_and_expressions():
    assert as_expr(3) == 3 and as_expr(U + 1) == U + 1


# ---------------------------------------------------------------------------------------------------------- regroup
def _positions(axis):
    """Symbolic-free picture of an axis: every position as a tuple of (atom, index) pairs, in order."""
    picture = [[(repr(atom), i) for i in range(space().atom_extent(atom, EXTENTS))] for atom in axis]
    return list(itertools.product(*picture))


@given(st.lists(axes, min_size=1, max_size=3), st.data())
def test_regrouping_keeps_the_size_of_every_dimension(old, data):
    """A view that joins neighbouring dimensions, or takes them apart at atoms."""
    flat = [atom for axis in old for atom in axis]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(flat)), max_size=2)))
    parts = [flat[i:j] for i, j in zip([0, *cuts], [*cuts, len(flat)])]
    sizes = [space().size(tuple(p)) for p in parts]
    new = space().regroup(old, sizes)
    for axis, size in zip(new, sizes):
        assert sympy.expand(space().size(axis) - size) == 0
    if not any(space().is_opaque(a) for a in new):
        assert math.prod(len(_positions(a)) for a in new) == math.prod(len(_positions(a)) for a in old)


@pytest.mark.parametrize(
    "old, sizes, new",
    [
        ([(T,), (4,)], [U, 2, 2], [(T,), (2,), (2,)]),
        ([(T,), (4,)], [2 * U, 2], [(T, 2), (2,)]),
        ([(T,), (4,)], [4 * U], [(T, 4)]),
        ([(T, 4)], [U, 4], [(T,), (4,)]),
        ([(T, 2), (2,)], [U, 4], [(T,), (4,)]),
        ([(2,), (T,), (3,)], [2 * U, 3], [(2, T), (3,)]),
        ([(2, T), (3,)], [2, U, 3], [(2,), (T,), (3,)]),
        ([(T,), (R,)], [U * V], [(T, R)]),
        ([(T, R)], [U, V], [(T,), (R,)]),
        ([(T,)], [1, U, 1], [ONE, (T,), ONE]),
        ([(12,)], [3, 4], [(3,), (4,)]),
        ([(Rows("R", 0, 1),), (2,)], [2 * V + 2], [(Rows("R", 0, 1), 2)]),
    ],
)
def test_atoms_are_dealt_out_in_order(old, sizes, new):
    assert space().regroup(old, sizes) == new


@pytest.mark.parametrize(
    "old, sizes",
    [
        ([(T,), (2,)], [2, U]),  # token-major read as head-major
        ([(2,), (T,)], [U, 2]),
        ([(T,), (R,)], [V, U]),
        ([(T,)], [2, sympy.floor(U / 2)]),
        ([(Cat(((3,), (T,))),), (2,)], [2, U + 3]),
    ],
)
def test_what_does_not_fit_is_opaque(old, sizes):
    assert any(space().is_opaque(a) for a in space().regroup(old, sizes))


def test_equal_sizes_are_not_equal_axes():
    assert space().same_size((T, 2), (2, T)) and space().layout((T, 2)) != space().layout((2, T))
    assert not space().same_size((T,), (R,))
    assert space().layout((T, R)) != space().layout((R, T))


def test_axes_whose_live_rows_stand_alike_meet():
    """Rows 1..R and 0..R-1 of boundaries are both R rows at the front."""
    assert space().layout((Rows("R", 1, 1),)) == space().layout((Rows("R", 0, 0),)) == ("leading", V)


# ---------------------------------------------------------------------------------------------------------- slices
@given(st.integers(0, 3), st.integers(0, 3), st.sampled_from([(T,), (Rows("R", 0, 1),), (Rows("R", 0, 4),)]))
def test_a_slice_of_rows_has_the_size_asked_for(start, end, axis):
    size = space().size(axis) - start - end
    got = space().slice(axis, start, size)
    assert sympy.expand(space().size(got) - size) == 0
    assert got[0].lo == axis[0].lo + start


def test_a_whole_slice_is_the_axis_itself():
    for axis in ((T, 2), (2, T), (4,), (Cat(((3,), (T,))),)):
        assert space().slice(axis, 0, space().size(axis)) in (axis, space().axis(space().size(axis)))
    assert space().slice((2, T), 0, 2 * U) == (2, T)


def test_a_slice_into_a_product_is_opaque():
    assert space().is_opaque(space().slice((T, 2), 1, 2 * U - 1))
    assert space().is_opaque(space().slice((2, T), 0, U))


def test_the_shifted_rows_of_a_left_padded_sequence():
    padded = (Cat(((3,), (T,))),)
    assert space().slice(padded, 3, U) == (T,)
    assert space().slice(padded, 2, U) == (T,)
    assert space().slice(padded, 0, U) == (T,)
    assert space().slice(padded, 1, U + 2) == (Cat(((2,), (T,))),)
    assert space().is_opaque(space().slice(padded, 1, U + 3))


# ---------------------------------------------------------------------------------------------------------- joins
@given(st.lists(axes.filter(bool), min_size=1, max_size=3))
def test_a_concatenation_has_the_sum_of_the_sizes(parts):
    got = space().concat(parts)
    assert sympy.expand(space().size(got) - sum(space().size(p) for p in parts)) == 0
    assert space().symbols(got) == frozenset().union(*[space().symbols(p) for p in parts])


def test_joins_of_numbers_and_of_one():
    assert space().concat([(2,), (3,)]) == (5,) and space().concat([(T,)]) == (T,)
    assert space().concat([(0,), (T,)]) == (T,)


@pytest.mark.parametrize(
    "parts, leads",
    [
        ([(3,), (T,)], True),
        ([(T,), (3,)], False),
        ([(T,), (R,)], False),
        ([(3,), (2, T)], False),
        ([(3,), (T, 2)], True),
    ],
)
def test_a_concatenation_leads_only_where_its_tail_is_one_block_at_the_end(parts, leads):
    assert (space().layout(space().concat(parts))[0] == "leading") is leads


@given(st.lists(st.integers(1, 4), max_size=5))
def test_merging_numbers_keeps_the_product(numbers):
    assert math.prod(merge_ints(numbers)) == math.prod(numbers) and len(merge_ints(numbers)) <= 1
    assert merge_ints([2, T, 3, 1, 2]) == (2, T, 6)


def test_axes_print():
    assert show((2, T, 3)) == "2*T*3" and show((Cat(((3,), (T,))),)) == "(3|T)" and show(ONE) == "1"
    assert show(space().axis(U * V)).startswith("?")


# ---------------------------------------------------------------------------------------------------------- by running
@given(st.sampled_from([2, 3]), st.sampled_from(["view", "transpose", "flatten"]))
def test_live_rows_by_the_algebra_are_live_rows_by_running(heads, last):
    """The same views on a mask of live elements, at concrete extents."""
    tokens, live = 5, 3
    mask = (torch.arange(tokens) < live)[:, None].expand(tokens, heads * 2).contiguous()
    s = space()
    axes_now = s.regroup([(T,), (heads * 2,)], [U, heads, 2])
    got = mask.view(tokens, heads, 2)
    if last != "view":
        axes_now, got = [axes_now[1], axes_now[0], axes_now[2]], got.transpose(0, 1)
    if last == "flatten":
        axes_now, got = s.regroup(axes_now, [heads * U, 2]), got.reshape(-1, 2)
    from capwise.runtime.live import live_view

    picked = live_view(got, tuple(axes_now), s, {"T": live, "R": 1}, {"T": tokens, "R": 1})
    assert bool(picked.all()) and picked.numel() == int(mask.sum())
