"""Whole Triton kernels against numpy: both targets, both compile modes, both schedules."""

import numpy as np
import pytest

from capwise.emulate import EmulatorError, run

GFX = ("gfx942", "gfx1201")
NAMES = ("gather", "reduce", "softmax", "dot", "sort_scan", "atomics", "divide")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("specialised", (False, True), ids=("plain", "specialised"))
@pytest.mark.parametrize("gfx", GFX)
def test_kernel_agrees_with_numpy(kernels, compiled, name, gfx, specialised):
    case, binary = kernels.CASES[name], compiled(name, gfx, specialised)
    for sched in ("lockstep", "serial"):
        args, expected = case.data(np.random.default_rng(1))
        report = run(binary.asm["amdgcn"], case.grid, args, shared=binary.metadata.shared, sched=sched)
        assert case.mismatch(args, expected) == "", sched
        assert report.gfx == gfx and not report.unsupported


def test_compile_modes_take_different_paths(compiled):
    plain, specialised = (compiled("gather", "gfx942", mode).asm["amdgcn"] for mode in (False, True))
    assert "buffer_load" in specialised and "buffer_load" not in plain


def test_serial_counts_the_same_wave_instructions(kernels, compiled):
    case, binary = kernels.CASES["softmax"], compiled("softmax", "gfx942", False)
    reports = [
        run(binary.asm["amdgcn"], case.grid, case.data(np.random.default_rng(0))[0], shared=1024, sched=sched)
        for sched in ("lockstep", "serial")
    ]
    assert reports[0].wave_instructions == reports[1].wave_instructions
    assert reports[0].steps < reports[1].steps


def test_preloaded_arguments_give_the_same_result_as_loaded_ones(kernels, compiled):
    case, binary = kernels.CASES["gather"], compiled("gather", "gfx942", True)
    assert "user_sgpr_kernarg_preload_length" in binary.asm["amdgcn"]
    for preload in (True, False):
        args, expected = case.data(np.random.default_rng(2))
        run(binary.asm["amdgcn"], case.grid, args, shared=binary.metadata.shared, preload=preload)
        assert case.mismatch(args, expected) == ""


def test_grid_of_three_axes_gives_every_workgroup_its_own_id(snippet):
    body = """
	s_load_dwordx2 s[10:11], s[0:1], 0x0
	v_mov_b32_e32 v1, 1
	s_lshl_b32 s12, s2, 2
	v_mov_b32_e32 v0, s12
	global_store_dword v0, v1, s[10:11]"""
    out = np.zeros(130, np.uint32)  # more than one batch of workgroups
    run(snippet(body, gfx="gfx942", pointers=1, threads=64), (130,), [out])
    assert out.all()


def test_partial_last_wave_leaves_its_idle_lanes_alone(snippet):
    body = """
	s_load_dwordx2 s[10:11], s[0:1], 0x0
	v_mov_b32_e32 v1, 7
	v_lshlrev_b32_e32 v0, 2, v0
	global_store_dword v0, v1, s[10:11]"""
    out = np.zeros(100, np.uint32)  # 100 threads in two waves of 64: lane 36 of the second would be out of bounds
    run(snippet(body, gfx="gfx942", pointers=1, threads=100), (1,), [out])
    assert (out == 7).all()


def test_unknown_target_is_refused(snippet):
    with pytest.raises(EmulatorError, match="gfx1250 is not modelled"):
        run(snippet("", gfx="gfx1250", pointers=0, threads=32), (1,), [])


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,)])
def test_impossible_grid_is_refused(snippet, grid):
    asm = snippet("", gfx="gfx942", pointers=0, threads=64)
    if grid == ():
        run(asm, grid, [])  # one workgroup
        return
    with pytest.raises(EmulatorError, match="grid"):
        run(asm, grid, [])


def test_endless_loop_ends_at_the_step_limit(snippet):
    body = ".LBB0_1:\n\ts_branch .LBB0_1"
    with pytest.raises(EmulatorError, match="1000 steps without an end"):
        run(snippet(body, gfx="gfx942", pointers=0, threads=64), (1,), [], max_steps=1000)
