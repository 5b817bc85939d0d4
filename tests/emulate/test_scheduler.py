"""What the serial schedule notices and lockstep does not: missing barriers and races through global memory."""

import re

import numpy as np
import pytest

from capwise.emulate import EmulatorError, run

GFX = ("gfx942", "gfx1201")
SEEDS = range(4)
BARRIER = re.compile(r"\ts_barrier(_wait\b.*)?\s*$")


def without_one_barrier(asm):
    """The assembly with each barrier removed in turn."""
    lines = asm.split("\n")
    for place in [i for i, line in enumerate(lines) if BARRIER.match(line)]:
        yield "\n".join(line for i, line in enumerate(lines) if i != place)


def outcome(case, asm, shared, **options):
    args, expected = case.data(np.random.default_rng(5))
    run(asm, case.grid, args, shared=shared, **options)
    return case.mismatch(args, expected)


@pytest.mark.parametrize("gfx", GFX)
def test_removed_barrier_shows_in_serial_and_not_in_lockstep(kernels, compiled, gfx):
    case, binary = kernels.CASES["softmax"], compiled("softmax", gfx, False)
    asm, shared = binary.asm["amdgcn"], binary.metadata.shared
    assert not any(outcome(case, asm, shared, sched="serial", seed=seed) for seed in SEEDS)
    broken = list(without_one_barrier(asm))
    assert broken
    for text in broken:
        assert outcome(case, text, shared, sched="lockstep") == ""
        assert any(outcome(case, text, shared, sched="serial", seed=seed) for seed in SEEDS)


def shift(kernels, gfx, warps, **options):
    """x[i] = x[i + 4] in one program of a block of 256."""
    signature = {"x": "*i32", "bias": "i32"}
    binary = kernels.compile_kernel(kernels.shift_block, signature, {"B": 256}, gfx, specialised=False, num_warps=warps)
    x = np.arange(260, dtype=np.int32)
    run(binary.asm["amdgcn"], (1,), [x, 4], shared=binary.metadata.shared, **options)
    return np.array_equal(x[:256], np.arange(4, 260))


@pytest.mark.parametrize("gfx", GFX)
def test_in_place_shift_across_waves_is_wrong_in_serial(kernels, gfx):
    assert shift(kernels, gfx, 4, sched="lockstep")
    assert not all(shift(kernels, gfx, 4, sched="serial", seed=seed) for seed in SEEDS)


@pytest.mark.parametrize("gfx", GFX)
def test_in_place_shift_within_one_wave_is_right(kernels, gfx):
    assert all(shift(kernels, gfx, 1, sched="serial", seed=seed) for seed in SEEDS)


@pytest.mark.parametrize("gfx", GFX)
def test_in_place_shift_of_rows_that_one_wave_owns_is_right(kernels, gfx):
    """Four waves, each with a row of its own: what a wave overwrites no other wave reads."""
    lanes = kernels.WAVE[gfx]
    binary = kernels.compile_kernel(
        kernels.shift_rows, {"x": "*i32", "stride": "i32", "bias": "i32"}, {"R": 4, "C": lanes}, gfx, specialised=False
    )
    for seed in SEEDS:
        x = np.arange(4 * (lanes + 4), dtype=np.int32).reshape(4, lanes + 4)
        want = x[:, 4:].copy()
        run(binary.asm["amdgcn"], (1,), [x, lanes + 4, 4], sched="serial", seed=seed)
        np.testing.assert_array_equal(x[:, :lanes], want)


def test_serial_order_is_drawn_from_the_seed(snippet):
    """Four waves store their number to one place; the last one to run wins."""
    body = """
	s_load_dwordx2 s[10:11], s[0:1], 0x0
	v_lshrrev_b32_e32 v1, 6, v0
	v_mov_b32_e32 v2, 0
	global_store_dword v2, v1, s[10:11]"""
    asm, last = snippet(body, gfx="gfx942", pointers=1, threads=256), []
    for seed in [*range(12), 0]:
        out = np.zeros(1, np.uint32)
        run(asm, (1,), [out], sched="serial", seed=seed)
        last.append(int(out[0]))
    assert set(last) == {0, 1, 2, 3} and last[0] == last[-1]


def test_waves_that_diverge_meet_again(snippet):
    """Wave w loops w + 1 times; lockstep must count the iterations of each wave by itself."""
    body = """
	s_load_dwordx2 s[10:11], s[0:1], 0x0
	v_lshrrev_b32_e32 v1, 6, v0
	v_lshlrev_b32_e32 v3, 2, v0
	v_mov_b32_e32 v2, 0
	v_readfirstlane_b32 s12, v1
.LBB0_1:
	v_add_u32_e32 v2, 5, v2
	s_sub_u32 s12, s12, 1
	s_cmp_ge_i32 s12, 0
	s_cbranch_scc1 .LBB0_1
	s_barrier
	global_store_dword v3, v2, s[10:11]"""
    asm = snippet(body, gfx="gfx942", pointers=1, threads=256)
    for sched in ("lockstep", "serial"):
        out = np.zeros(256, np.uint32)
        run(asm, (2,), [out], sched=sched)
        np.testing.assert_array_equal(out, 5 * (np.arange(256) // 64 + 1))


def test_finished_waves_do_not_hold_a_barrier_up(snippet):
    body = """
	s_load_dwordx2 s[10:11], s[0:1], 0x0
	v_lshrrev_b32_e32 v1, 6, v0
	v_readfirstlane_b32 s12, v1
	s_cmp_eq_u32 s12, 0
	s_cbranch_scc1 .LBB0_2
	s_barrier
	v_lshlrev_b32_e32 v0, 2, v0
	global_store_dword v0, v1, s[10:11]
.LBB0_2:
	s_nop 0"""
    for sched in ("lockstep", "serial"):
        out = np.zeros(128, np.uint32)
        run(snippet(body, gfx="gfx942", pointers=1, threads=128), (2,), [out], sched=sched)
        assert out.tolist() == [0] * 64 + [1] * 64


def test_unknown_schedule_is_refused(snippet):
    with pytest.raises(EmulatorError, match="unknown schedule 'random'"):
        run(snippet("", gfx="gfx942", pointers=0, threads=64), (1,), [], sched="random")
