"""Rotation by three axes: against complex numbers, kernels against references, every layout, what is refused."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.mrope import mrope, mrope_kv_write_
from capwise.ops.mrope_path import mrope_path
from capwise.ops.rope import pair_axes

RELEASED = [11, 11, 10]
FREQUENCIES = 1e7 ** (-torch.arange(32, dtype=torch.float64) / 32)
INV_FREQ = FREQUENCIES.float()
LAYOUT = pytest.mark.parametrize("token_major", (False, True), ids=("axis-major", "token-major"))
BOTH = pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))


def body(kernel: bool):
    return compat.interpreted() if kernel else torch.no_grad()


def positions_of(tokens: int, most: int, seed: int, token_major: bool) -> torch.Tensor:
    """Three different axes; the first token at 0, the last at the largest position."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, most + 1, (tokens, 3), generator=generator)
    positions[:1] = 0
    positions[1:][-1:] = torch.tensor([most, most - 1, most - 2])
    return positions if token_major else positions.T.contiguous()


def by_complex_numbers(x: torch.Tensor, positions: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """x [T, h, D], positions [T, 3]; angles rounded as the definition rounds them, all else in float64."""
    n = len(axes)
    angle = (positions[:, axes].float() * INV_FREQ[:n]).double()
    pairs = torch.complex(x[..., :n].double(), x[..., n : 2 * n].double())
    spun = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([spun.real, spun.imag, x[..., 2 * n :].double()], -1)


def test_the_released_sections_deal_eleven_eleven_and_ten_pairs():
    axes = pair_axes(RELEASED, 32)
    height = [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31]
    width = [2, 5, 8, 11, 14, 17, 20, 23, 26, 29]
    assert [i for i, a in enumerate(axes) if a == 1] == height and [i for i, a in enumerate(axes) if a == 2] == width
    assert [axes.count(a) for a in range(3)] == RELEASED


@BOTH
@LAYOUT
@pytest.mark.parametrize("tokens", (0, 1, 3, 7))
def test_a_rotation_is_a_product_of_complex_numbers(tokens, token_major, kernel):
    """T = 3 too, where both layouts have one shape; positions up to the largest that the model may have."""
    x = torch.randn(tokens, 3, 80)
    positions = positions_of(tokens, 262143, 5, token_major)
    with body(kernel):
        y = mrope(x, positions, INV_FREQ, RELEASED, token_major)
    right = by_complex_numbers(x, positions if token_major else positions.T, pair_axes(RELEASED, 32))
    assert torch.allclose(y.double(), right, atol=2e-6)
    if tokens == 3:
        with body(kernel):
            other = mrope(x, positions, INV_FREQ, RELEASED, not token_major)
        assert not torch.allclose(other, y, atol=1e-2)


def test_equal_axes_are_the_plain_rotation():
    x, where = torch.randn(5, 2, 64), torch.tensor([0, 1, 2, 50, 262143])
    y = mrope(x, where.expand(3, 5), INV_FREQ, RELEASED)
    assert torch.allclose(y.double(), by_complex_numbers(x, where[:, None].expand(5, 3), [0] * 32), atol=2e-6)


def _write_call(seed: int, tokens: int, dtype: torch.dtype, strided):
    """Slots of tokens in any order, some of them -1 or of no page; q is half of a projection's heads."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    pairs, sections, width = rng.choice(((5, [2, 2, 1], 12), (3, [1, 1, 1], 6), (32, RELEASED, 80), (2, [1, 1, 0], 7)))
    q = torch.randn(tokens, 5, 2 * width, generator=generator).to(dtype)[..., :width]
    k, v = (torch.randn(tokens, 2, width, generator=generator).to(dtype) for _ in range(2))
    slots = torch.tensor(rng.sample(range(7 * 4), tokens), dtype=torch.int64)
    slots[::4] = torch.tensor(rng.choices((-1, 28, 10**9), k=len(slots[::4])))
    cache = torch.randn(7, 4, 2, 2, width, generator=generator).to(rng.choice((dtype, torch.float32)))
    positions = positions_of(tokens, 3000, seed, False) - 40
    call = [q, k, v, positions, INV_FREQ[:pairs], slots, cache]
    return [strided(t, seed + i) for i, t in enumerate(call)], sections


@settings(max_examples=15, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), tokens=st.integers(0, 19), dtype=st.sampled_from((torch.float32, torch.float16)))
def test_kernel_equals_reference_over_any_strides(seed, tokens, dtype, strided):
    """In float16 bit for bit: every rounding is where the definition has it."""
    call, sections = _write_call(seed, tokens, dtype, strided)
    caches = [strided(call[-1], seed + 50) for _ in range(2)]
    y = mrope_kv_write_(*call[:-1], caches[0], sections)
    with compat.interpreted():
        got = mrope_kv_write_(*call[:-1], caches[1], sections)
    within = {"atol": 2e-6} if dtype == torch.float32 else {"atol": 0.0, "rtol": 0.0}
    assert torch.allclose(got.float(), y.float(), **within)
    assert torch.allclose(caches[1].float(), caches[0].float(), **within)
    slots, right = call[5], caches[0].clone()
    rotated = mrope(call[1], call[3], call[4], sections)
    for t, slot in enumerate(slots.tolist()):
        if 4 <= slot < 28:
            right[slot // 4, slot % 4] = torch.stack([rotated[t], call[2][t]]).to(right.dtype)
    assert torch.equal(caches[0], right) and torch.equal(y, mrope(call[0], call[3], call[4], sections))
    untouched = torch.tensor([*range(4), *(set(range(4, 28)) - set(slots.tolist()))])
    assert torch.equal(caches[1].flatten(0, 1)[untouched], call[-1].flatten(0, 1)[untouched])


@BOTH
def test_what_cannot_be_rotated_is_refused_by_name(kernel, raises):
    x, positions = torch.randn(4, 2, 80), positions_of(4, 9, 0, False)
    with body(kernel):
        with raises("expected [3, 4] (axis-major) integers; got [4, 3] torch.int64; did you mean token_major=True?"):
            mrope(x, positions.T, INV_FREQ, RELEASED)
        with raises("expected [4, 3] (token-major) integers; got [3, 4] torch.int64; did you mean token_major=False?"):
            mrope(x, positions, INV_FREQ, RELEASED, True)
        with raises("positions: expected [3, 4] (axis-major) integers; got [4, 4]"):
            mrope(x, torch.zeros(4, 4, dtype=torch.int64), INV_FREQ, RELEASED)
        with raises("positions: expected [3, 4] (axis-major) integers; got [3, 3]"):
            mrope(x, positions[:, :3], INV_FREQ, RELEASED)
        with raises("positions: expected [3, 4] (axis-major) integers; got [4]"):
            mrope(x, positions[0], INV_FREQ, RELEASED)
        with raises("positions: expected [3, 4] (axis-major) integers; got [3, 4] torch.float32"):
            mrope(x, positions.float(), INV_FREQ, RELEASED)
        with raises("over 32 pairs; got [10, 11, 11], which would deal [11, 11, 10]"):
            mrope(x, positions, INV_FREQ, [10, 11, 11])
        with raises("sections: expected three counts of interleaved pairs"):
            mrope(x, positions, INV_FREQ, [8, 8, 8, 8])
        with raises("inv_freq: expected [n], 2n <= 60; got (32,)"):
            mrope(x[..., :60], positions, INV_FREQ, RELEASED)
        cache, slots = torch.zeros(2, 4, 2, 2, 80), torch.zeros(4, dtype=torch.int64)
        with raises("v: expected k's shape (4, 2, 80); got (4, 1, 80)"):
            mrope_kv_write_(x, x, x[:, :1], positions, INV_FREQ, slots, cache, RELEASED)
        with raises("slot_mapping: expected [4]; got (3,)"):
            mrope_kv_write_(x, x, x, positions, INV_FREQ, slots[:3], cache, RELEASED)
        with raises("kv_cache: expected [blocks, page, 2, 2, 80], not empty; got (2, 4, 2, 1, 80)"):
            mrope_kv_write_(x, x, x, positions, INV_FREQ, slots, cache[:, :, :, :1], RELEASED)
        assert not cache.any()


# ------------------------------------------------------------------------------------------------ choice of the path
def path(**changes):
    return mrope_path(
        INV_FREQ, **{"sections": RELEASED, "width": 80, "interleaved": True, "layout": "axis-major", **changes}
    )


def test_interleaved_sections_take_the_kernels():
    for layout, token_major in (("axis-major", False), ("token-major", True)):
        taken, x = path(layout=layout), torch.randn(5, 2, 80)
        positions = positions_of(5, 99, 1, token_major)
        assert (taken.path, taken.reason) == ("kernel", "")
        assert torch.equal(taken.rotate(x, positions), mrope(x, positions, INV_FREQ, RELEASED, token_major))


@LAYOUT
def test_sections_one_after_another_take_the_reference_and_say_so(token_major):
    taken = path(interleaved=False, sections=[16, 8, 8], layout="token-major" if token_major else "axis-major")
    assert taken.path == "reference" and "[16, 8, 8] lie one after another" in taken.reason
    q, k, v = torch.randn(5, 4, 80), torch.randn(5, 2, 80), torch.randn(5, 2, 80)
    positions = positions_of(5, 999, 1, token_major)
    by_token, axes = positions if token_major else positions.T, [0] * 16 + [1] * 8 + [2] * 8
    cache, slots = torch.zeros(3, 4, 2, 2, 80), torch.tensor([4, 5, -1, 7, 11])
    y = taken.rotate_and_write(q, k, v, positions, slots, cache)
    assert torch.allclose(y.double(), by_complex_numbers(q, by_token, axes), atol=2e-6)
    assert torch.equal(y, taken.rotate(q, positions))
    rows, keys = cache.flatten(0, 1), by_complex_numbers(k, by_token, axes)
    written = [t for t in range(5) if slots[t] >= 0]
    assert torch.allclose(rows[slots[written], 0].double(), keys[written], atol=2e-6)
    assert torch.equal(rows[slots[written], 1], v[written])
    assert rows.flatten(1).any(1).nonzero().flatten().tolist() == [4, 5, 7, 11]


def test_a_path_that_cannot_be_is_refused_by_name(raises):
    x, positions = torch.randn(4, 2, 80), positions_of(4, 9, 0, False)
    with raises("layout: expected one of axis-major, token-major, as positions have it; got None"):
        path(layout=None)
    with raises("sections: expected three counts (time, height, width) that make 32 pairs; got [8, 8, 8, 8]"):
        path(interleaved=False, sections=[8, 8, 8, 8])
    with raises("sections: expected three counts of interleaved pairs"):
        path(sections=[8, 12, 12])
    with raises("interleaved: expected True for the kernels; got False: sections [16, 8, 8] lie one after another"):
        path(interleaved=False, sections=[16, 8, 8], fallback=False)
    for taken in (path(), path(interleaved=False, sections=[16, 8, 8])):
        with raises("positions: expected a tensor of positions; got None"):
            taken.rotate(x, None)
        with raises("positions: expected [3, 4] (axis-major) integers; got [4, 3]"):
            taken.rotate(x, positions.T)
        with raises("positions: expected [3, 4] (axis-major) integers; got [3, 2]"):
            taken.rotate_and_write(x, x, x, positions[:, :2], positions[0], torch.zeros(2, 4, 2, 2, 80))
