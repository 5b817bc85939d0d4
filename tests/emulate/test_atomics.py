"""Atomics of global memory and LDS."""

import numpy as np
import pytest

ATOMIC = [
    ("add", lambda m, v: m + v), ("sub", lambda m, v: m - v), ("and", lambda m, v: m & v), ("or", lambda m, v: m | v),
    ("xor", lambda m, v: m ^ v), ("umin", min), ("umax", max), ("swap", lambda m, v: v),
    ("smax", lambda m, v: max(m, v, key=lambda x: x - 2**32 if x >> 31 else x)),
    ("smin", lambda m, v: min(m, v, key=lambda x: x - 2**32 if x >> 31 else x)),
    ("inc", lambda m, v: 0 if m >= v else m + 1), ("dec", lambda m, v: v if m == 0 or m > v else m - 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function"), ATOMIC, ids=[n for n, _ in ATOMIC])
def test_global_atomic_runs_lane_by_lane_and_returns_the_old_value(launch, name, function):
    values = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    values[32:] %= 4  # memory and operand are equal now and then
    memory, old = np.array([0x80000010], np.uint32), np.zeros(64, np.uint32)
    body = f"""
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v3, 0
    global_load_dword v2, v1, s[4:5]
    global_atomic_{name} v4, v3, v2, s[6:7] sc0
    global_store_dword v1, v4, s[8:9]"""
    launch(body, [values, memory, old, np.zeros(1, np.uint32)])
    state = 0x80000010
    for lane, value in enumerate(values.tolist()):
        assert old[lane] == state
        state = function(state, value) & 0xFFFFFFFF
    assert memory[0] == state


def test_64_bit_and_float_atomics(launch):
    total, single = np.array([2**40], np.uint64), np.array([0.5], np.float32)
    body = """
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, -1
    v_mov_b32_e32 v3, 1
    global_atomic_add_x2 v1, v[2:3], s[4:5]
    v_cvt_f32_u32_e32 v4, v0
    global_atomic_add_f32 v1, v4, s[6:7]"""
    launch(body, [total, single])
    assert total[0] == 2**40 + 64 * (2**33 - 1) and single[0] == 0.5 + 63 * 32


def test_compare_and_swap_lets_one_lane_win(launch):
    memory, old = np.array([7], np.uint32), np.zeros(64, np.uint32)
    body = """
    v_mov_b32_e32 v1, 0
    v_add_u32_e32 v2, 100, v0
    v_mov_b32_e32 v3, 7
    global_atomic_cmpswap v4, v1, v[2:3], s[4:5] sc0
    v_lshlrev_b32_e32 v1, 2, v0
    global_store_dword v1, v4, s[6:7]"""
    launch(body, [memory, old])
    assert memory[0] == 100 and old.tolist() == [7] + [100] * 63


def test_gfx12_atomic_names_and_return_modifier(launch):
    memory, old = np.array([5], np.uint32), np.zeros(32, np.uint32)
    body = """
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, 1
    global_atomic_add_u32 v4, v1, v2, s[4:5] th:TH_ATOMIC_RETURN scope:SCOPE_DEV
    v_lshlrev_b32_e32 v1, 2, v0
    global_store_b32 v1, v4, s[6:7]"""
    launch(body.replace("s_load_dwordx4", "s_load_b128"), [memory, old], gfx="gfx1201")
    assert memory[0] == 37 and old.tolist() == list(range(5, 37))


def test_lds_atomics(execute):
    body = """
    v_mov_b32_e32 v9, 0
    v_mov_b32_e32 v8, 100
    ds_write_b32 v9, v8
    ds_add_rtn_u32 v2, v9, v1
    ds_max_rtn_i32 v3, v9, v8
    ds_wrxchg_rtn_b32 v4, v9, v0
    ds_cmpst_rtn_b32 v5, v9, v0, v8"""
    out = execute(body, v={1: 1}, out=["v2", "v3", "v4", "v5"])
    assert out["v2"].tolist() == list(range(100, 164))
    assert (out["v3"] == 164).all() and out["v4"].tolist() == [164, *range(63)]
    assert out["v5"].tolist() == [63] * 64
