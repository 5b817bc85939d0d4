"""The live part of a tensor at captured extents, wherever its tails stand."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from capwise.axes import Cat, Opaque, Rows, Space
from capwise.runtime.live import live_view

T, R = Rows("T"), Rows("R")
CAPTURED = {"T": 5, "R": 3}


def _space():
    symbols = {sympy.Symbol("u0"): "T", sympy.Symbol("u1"): "R"}
    return Space(symbols, ["T", "R"])


def _positions(axis, space, live):
    """Which positions of an axis are live, by walking it atom by atom: the specification."""
    if not axis:
        return [0]
    first, *rest = axis
    inner = _positions(tuple(rest), space, live)
    size = space.extent(tuple(rest), CAPTURED)
    return [i * size + j for i in _atom_positions(first, space, live) for j in inner]


def _atom_positions(atom, space, live):
    if isinstance(atom, int):
        return list(range(atom))
    if isinstance(atom, Rows):
        return list(range(max(0, live[atom.symbol] + atom.hi - atom.lo)))
    found, at = [], 0
    for part in atom.parts:
        found += [at + i for i in _positions(part, space, live)]
        at += space.extent(part, CAPTURED)
    return found


AXES = {
    "T": (T,),
    "R+1": (Rows("R", 0, 1),),
    "boundaries without the first": (Rows("R", 1, 1),),
    "T-major": (T, 2),
    "head-major": (2, T),
    "square": (T, R),
    "padded on the left": (Cat(((3,), (T,))),),
    "padded on the right": (Cat(((T,), (3,))),),
    "two sequences": (Cat(((T,), (R,))),),
    "head-major at the end": (Cat(((3,), (2, T))),),
    "head-major of a concatenation": (2, Cat(((1,), (T,)))),
    "plain": (4,),
}


@pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
@pytest.mark.parametrize("live", itertools.product((1, 3, 5), (1, 3)), ids=str)
def test_live_rows_are_taken_from_where_they_stand(axis, live):
    space, live = _space(), dict(zip("TR", live))
    size = space.extent(axis, CAPTURED)
    tensor = torch.arange(2 * size * 3).view(2, size, 3)
    got = live_view(tensor, ((2,), axis, (3,)), space, live, CAPTURED)
    assert torch.equal(got, tensor[:, _positions(axis, space, live)])


@pytest.mark.parametrize("name", ["T", "R+1", "T-major", "padded on the left"])
def test_a_tail_at_the_end_is_cut_off_by_a_view(name):
    space = _space()
    size = space.extent(AXES[name], CAPTURED)
    tensor = torch.arange(size)
    got = live_view(tensor, (AXES[name],), space, {"T": 2, "R": 2}, CAPTURED)
    assert got.data_ptr() == tensor.data_ptr() and len(got) < size


@pytest.mark.parametrize("name", ["head-major", "square", "padded on the right", "head-major at the end"])
def test_an_axis_with_a_tail_inside_is_not_said_to_lead(name):
    assert _space().layout(AXES[name])[0] == "axis"


def test_an_axis_of_which_nothing_is_known_has_no_live_part():
    space = _space()
    square = space.axis(sympy.Symbol("u0") ** 2)
    assert isinstance(square[0], Opaque) and space.is_opaque(square)
    with pytest.raises(ValueError, match="expected one whose live part can be told"):
        live_view(torch.ones(25), (square,), space, {"T": 2, "R": 2}, CAPTURED)


@given(st.integers(1, 5), st.integers(1, 3), st.permutations(["T", "head-major", "plain"]))
def test_several_axes_are_cut_one_after_another(tokens, requests, names):
    space, live = _space(), {"T": tokens, "R": requests}
    axes = tuple(AXES[n] for n in names)
    sizes = [space.extent(a, CAPTURED) for a in axes]
    tensor = torch.arange(sizes[0] * sizes[1] * sizes[2]).view(sizes)
    want = tensor
    for dim, axis in enumerate(axes):
        want = want.index_select(dim, torch.tensor(_positions(axis, space, live)))
    assert torch.equal(live_view(tensor, axes, space, live, CAPTURED), want)
