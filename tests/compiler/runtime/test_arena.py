"""Static buffers: one a staged input, shared by every bucket; live rows in, tails filled."""

from __future__ import annotations

import pytest
import torch

import capwise
from capwise import Buffer, Input, InputError
from capwise.labels import Dim
from capwise.runtime.arena import Arena, TailFill, most_shape, whole_buffer


def test_buckets_share_the_front_of_one_buffer():
    arena, like = Arena(), torch.zeros(1)
    big, small = (arena.view("x", like, (n, 4), (8, 4)) for n in (8, 3))
    assert big.data_ptr() == small.data_ptr() and small.is_contiguous() and not big.any()
    big.fill_(7)
    assert bool((small == 7).all())


def test_names_and_dtypes_have_buffers_of_their_own():
    arena = Arena()
    one = arena.view("x", torch.zeros(1), (4,), (4,))
    assert one.data_ptr() != arena.view("y", torch.zeros(1), (4,), (4,)).data_ptr()
    assert arena.view("x", torch.zeros(1, dtype=torch.int32), (4,), (4,)).dtype == torch.int32


def test_a_larger_buffer_does_not_move_an_older_one():
    arena, like = Arena(), torch.zeros(1)
    old = arena.view("x", like, (4,), (4,))
    old.fill_(3)
    arena.view("x", like, (9,), (9,))
    assert bool((old == 3).all())


def test_a_naive_engine_keeps_the_strides_of_the_first_batch():
    column = torch.arange(8.0).view(4, 2)[:, 0]
    assert Arena(keep_strides=True).view("x", column, (4,), (4,)).stride() == (2,)
    assert Arena().view("x", column, (4,), (4,)).stride() == (1,)


def test_poison_reaches_every_buffer():
    arena = Arena(keep_strides=True)
    dense, strided = arena.view("x", torch.zeros(1), (4,), (8,)), arena.view("y", torch.zeros(4)[::2], (2,), (2,))
    arena.poison(lambda name, place: place.fill_({"x": 1.0, "y": 2.0}[name]))
    assert bool((dense == 1).all()) and bool((strided == 2).all())


# ---------------------------------------------------------------------------------------------------------- fills
def _filled(place, dim, live, value, affine=(1, 0)):
    TailFill(place, dim, torch.tensor(live), affine, value)()
    return place


@pytest.mark.parametrize("live", [1, 3, 5])
@pytest.mark.parametrize("value", [0, 2.5, float("-inf"), "last"])
def test_the_tail_is_filled_and_live_rows_are_left(live, value):
    before = torch.arange(20.0).view(5, 4) + 1
    got = _filled(before.clone(), 0, live, value)
    assert torch.equal(got[:live], before[:live])
    want = before[live - 1] if value == "last" else torch.full((4,), float(value))
    assert all(torch.equal(row, want) for row in got[live:])


def test_a_tail_may_lie_along_any_dimension_and_start_off_the_extent():
    got = _filled(torch.ones(2, 6), 1, 2, 0, affine=(2, 1))
    assert got.tolist() == [[1, 1, 1, 1, 1, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.float16])
def test_fills_keep_the_dtype(dtype):
    got = _filled(torch.ones(4, dtype=dtype), 0, 2, 0)
    assert got.dtype == dtype and got.tolist() == [1, 1, 0, 0]


def test_noise_in_the_tail_does_not_survive_a_fill():
    place = torch.full((4,), float("nan"))
    place[:2] = torch.tensor([1.0, 2.0])
    assert _filled(place.clone(), 0, 2, "last").tolist() == [1, 2, 2, 2]
    assert _filled(place.clone(), 0, 2, 0).tolist() == [1, 2, 0, 0]


# ---------------------------------------------------------------------------------------------------------- buffers
def test_the_whole_buffer_behind_a_view():
    whole = torch.arange(20).view(10, 2)
    place = whole_buffer("x", whole[:3, 1], (9,))
    assert place.tolist() == list(range(1, 19, 2)) and place.data_ptr() == whole[:, 1].data_ptr()


def test_a_buffer_that_ends_early_is_one_clear_error():
    with pytest.raises(InputError, match=r"x: CW205: expected a buffer that reaches to the captured extent \(8,\)"):
        whole_buffer("x", torch.arange(6)[:3], (8,))


def test_the_largest_shape_over_all_buckets():
    dims = (Dim("T"), Dim("R", 1, 1), Dim(None, 1, 4), Dim(None, 1, None))
    assert most_shape(dims, [8, 5, 4, 3], {"T": 64, "R": 8}) == [64, 9, 4, 3]


SETTINGS = {"capture": "tape", "lower": "eager", "capture_sizes": (4, 8), "capacity": {"T": 16, "R": 4}}


def test_an_engines_buffer_is_filled_in_place_and_nothing_is_copied():
    whole = torch.full((12,), 99.0)
    model = capwise.compile(lambda x, n: x + n.sum(), inputs={"x": ("T", 4), "n": Buffer("T")}, **SETTINGS)
    for tokens in (3, 6, 2):
        whole[:tokens] = torch.arange(1.0, tokens + 1)
        y = model(x=torch.zeros(tokens, 4), n=whole[:tokens])
        assert torch.equal(y, torch.full((tokens, 4), tokens * (tokens + 1) / 2))
    assert whole[:2].tolist() == [1, 2] and not whole[2:4].any() and bool((whole[8:] == 99).all())
    assert all(name != "n" for name, *_ in model.arena._flat)


def test_an_engines_buffer_that_is_too_short_is_refused():
    model = capwise.compile(lambda x, n: x + n.sum(), inputs={"x": ("T", 4), "n": Buffer("T")}, **SETTINGS)
    with pytest.raises(InputError, match="n: CW205"):
        model(x=torch.zeros(3, 4), n=torch.ones(3))


def test_no_byte_outside_a_view_is_written():
    """Staged inputs come from views of a larger tensor: capwise only reads them."""
    big = torch.arange(60.0).view(10, 6)
    kept = big.clone()
    model = capwise.compile(lambda x: x - x.sum(0), inputs={"x": Input("T", 4, fill=0)}, **SETTINGS)
    for tokens in (3, 6, 2):
        model(x=big[:tokens, 1:5])
    assert torch.equal(big, kept)
