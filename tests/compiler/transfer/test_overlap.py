"""Which places two views of one storage hold, by physical location."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise.axes import Space
from capwise.transfer.overlap import coincide, share, stays

X = torch.arange(40.0).view(5, 8)
NUMBERS = Space({}, ())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X[:, :3], X[:, 3:]),  # columns
        (X[:2], X[2:]),  # rows
        (X[0], X[1]),
        (X[:, ::2], X[:, 1::2]),  # every other column
        (X[::2], X[1::4]),  # even rows, and every other odd one
        (X.view(5, 2, 4)[:, 0], X.view(5, 2, 4)[:, 1]),
        (X[1:3, :2], X[:, 2:4]),
        (X.view(-1)[::6], X.view(-1)[1::9]),  # strides with a common divisor
        (X.view(torch.int16)[:, :8], X[:, 4:]),  # counted in other units
        (X[:0], X),
    ],
)
def test_views_without_a_common_place(a, b):
    assert share(a, b, NUMBERS) is False and share(b, a, NUMBERS) is False


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X[:3], X[2:]),
        (X[:, :4], X[:, 3:]),
        (X, X),
        (X[:, ::2], X[:, ::3]),
        (X.view(-1)[0:3], X.view(-1)[2:5]),
        (X.view(-1).as_strided((4, 2), (8, 4), 6), X[:, :4]),  # wraps into the next row
        (X.view(torch.int32)[:, :4], X.view(torch.int16)[:, 7:]),
    ],
)
def test_views_that_meet(a, b):
    assert share(a, b, NUMBERS) is True and share(b, a, NUMBERS) is True


# ------------------------------------------------------------------------------------------------ every place by itself
@dataclass(frozen=True)
class View:
    """A layout whose sizes, strides and start, counted in elements, may be expressions over extents."""

    shape: tuple
    strides: tuple
    start: object
    size: int = 4

    def stride(self):
        return self.strides

    def storage_offset(self):
        return self.start

    def element_size(self):
        return self.size

    def dim(self):
        return len(self.shape)

    def at(self, **extents):
        def number(e):
            return int(sympy.sympify(e).subs({T: extents["T"], R: extents["R"]}))

        return View(tuple(map(number, self.shape)), tuple(map(number, self.strides)), number(self.start), self.size)

    def element(self, index):
        return self.start + sum(i * s for i, s in zip(index, self.strides))

    def indices(self):
        return list(itertools.product(*map(range, self.shape)))

    def places(self):
        starts = [self.element(i) * self.size for i in self.indices()]
        return {start + byte for start in starts for byte in range(self.size)}

    def broadcast(self, shape):
        """As an op sees it beside an operand of that shape; None where the two do not broadcast."""
        missing = len(shape) - len(self.shape)
        if missing < 0:
            return None
        sizes, strides = [1] * missing + list(self.shape), [0] * missing + list(self.strides)
        if any(m not in (1, n) for n, m in zip(shape, sizes)):
            return None
        return View(shape, tuple(0 if m == 1 else s for m, s in zip(sizes, strides)), self.start, self.size)


T, R = sympy.symbols("u0 u1", integer=True)
SPACE = Space({T: "T", R: "R"}, ("T", "R"), {"T": 3, "R": 4})
EXTENTS = [{"T": t, "R": r} for t in (0, 1, 2, 3) for r in (0, 1, 4)]
sizes = st.sampled_from([1, 2, 3, 4, T, R, T + 1, 2 * R, 5 - R])
starts = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 9, T, 2 * T, 8 * T, 8 * R, 4 * T + 2])


@st.composite
def views(draw, rank=3):
    rank = draw(st.integers(0, rank))
    shape = tuple(draw(sizes) for _ in range(rank))
    dense = [sympy.Mul(*shape[i + 1 :]) for i in range(rank)]
    strides = tuple(draw(st.sampled_from([1, 2, 3, 4, 8, dense[i], dense[i]])) for i in range(rank))
    return View(shape, strides, draw(starts), draw(st.sampled_from([4, 4, 4, 2])))


@st.composite
def neighbours(draw):
    """A view, and one that is like it but for one thing."""
    one = draw(views())
    other = {"shape": one.shape, "strides": one.strides, "start": one.start, "size": one.size}
    part = draw(st.sampled_from([None, "start", "start", "shape", "strides"]))
    if part == "start":
        other["start"] = one.start + draw(st.sampled_from([1, 2, 8, T, *one.strides]))
    elif part is not None and one.shape:
        at = draw(st.integers(0, len(one.shape) - 1))
        new = draw(sizes) if part == "shape" else draw(st.sampled_from([0, 1, 8]))
        other[part] = (*other[part][:at], new, *other[part][at + 1 :])
    return one, View(**other)


pairs = st.one_of(neighbours(), st.tuples(views(), views()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (View((T, 8), (8, 1), 0, 1), View((R, 8), (8, 1), 8 * T, 1)),  # what follows the first T rows
        (View((4, T), (T, 1), 0), View((2, T), (T, 1), 4 * T)),  # rows of T elements
        (View((T, 3), (8, 1), 0), View((R, 5), (8, 1), 3)),  # columns, of as many rows as there may be
        (View((T, 3), (8, 1), 5), View((R, 5), (8, 1), 0)),
        (View((T, 3), (8, 1), 0, 1), View((R, 5), (8, 1), 3, 1)),
        (View((T, 3), (8, 1), 5, 1), View((R, 5), (8, 1), 0, 1)),
    ],
)
def test_extents_without_a_bound(one, other):
    """One element more, or one place on, and they may meet."""
    unbounded = Space({T: "T", R: "R"}, ("T", "R"))
    assert share(one, other, unbounded) is False and share(other, one, unbounded) is False
    longer = replace(one, shape=(*one.shape[:-1], one.shape[-1] + 1))
    assert share(longer, other, unbounded) is None and share(other, longer, unbounded) is None
    moved = replace(one, start=one.start + 1)
    assert share(moved, other, unbounded) is None and share(other, moved, unbounded) is None


def test_rows_up_to_capacity():
    first = View((R, 8), (8, 1), 0)
    assert share(first, View((T, 8), (8, 1), 32), SPACE) is False  # R is at most 4
    assert share(first, View((T, 8), (8, 1), 31), SPACE) is True


@settings(max_examples=100)
@given(pairs)
def test_what_is_said_of_common_places_is_so_at_all_extents(pair):
    one, other = pair
    said = share(one, other, SPACE)
    if said is False:
        for extents in EXTENTS:
            assert not one.at(**extents).places() & other.at(**extents).places(), extents
    elif said is True:
        assert one.at(T=3, R=4).places() & other.at(T=3, R=4).places()


@settings(max_examples=100)
@given(pairs)
def test_numbers_are_decided_exactly(pair):
    one, other = (view.at(T=3, R=4) for view in pair)
    assert share(one, other, NUMBERS) is bool(one.places() & other.places())


@settings(max_examples=100)
@given(pairs)
def test_views_that_coincide_are_the_same_elements_in_the_same_order(pair):
    one, other = pair
    if coincide(one, other, SPACE):
        for extents in EXTENTS:
            a = one.at(**extents)
            b = other.at(**extents).broadcast(a.shape)
            assert b is not None and all(a.element(i) == b.element(i) for i in a.indices()), extents


@settings(max_examples=100)
@given(views(2), st.data())
def test_rows_that_stay_are_written_with_what_they_hold(one, data):
    """A copy of the second view to the first, both dense or not, leaves what the second holds, at whatever extents."""
    repeats = [data.draw(st.booleans()) for _ in one.shape]
    start = one.start + sum(s * data.draw(st.integers(0, 2)) for s, again in zip(one.strides, repeats) if again)
    shape = tuple(1 if again else n for n, again in zip(one.shape, repeats))
    other = View(shape, one.strides, start, one.size)
    if not stays(one, other, SPACE):
        return
    for extents in EXTENTS:
        a = one.at(**extents)
        b = other.at(**extents).broadcast(a.shape)
        if b is None or len({a.element(i) for i in a.indices()}) < len(a.indices()):
            continue  # does not broadcast, or writes a place twice
        written = {a.element(i): b.element(i) for i in a.indices()}
        assert all(written.get(place, place) == place for place in written.values()), extents


def test_what_coincides_and_what_stays():
    assert coincide(X[:, :4], X[:, :4], NUMBERS) and coincide(X[2:3], X[2], NUMBERS)
    assert coincide(X, X.view(torch.int32), NUMBERS)
    for other in (X[:, 1:5], X[:1, :4], X.t()[:5, :4], X[None, :, :4]):
        assert not coincide(X[:, :4], other, NUMBERS)
    assert not coincide(X[0, :4], X.view(torch.int16)[0, :4], NUMBERS)
    assert stays(X, X[3], NUMBERS) and stays(X[:, :4], X[3, :4].expand(5, 4), NUMBERS) and stays(X, X[2, 5], NUMBERS)
    for other in (X[3, :4], X[3:4, :4], X[0, 1:5], X[None, :3, :4], X.t()[:3, :4], X.view(torch.int16)[0, 1]):
        assert not stays(X[:3, :4], other, NUMBERS)
