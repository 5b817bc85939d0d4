"""Loads and stores of global memory, buffers and scratch."""

import numpy as np
import pytest

from capwise.emulate import Fault

LANE = np.arange(64)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [("ubyte", np.uint8), ("sbyte", np.int8), ("ushort", np.uint16), ("sshort", np.int16), ("dword", np.uint32)],
)
def test_global_load_extends_what_it_loads(launch, suffix, dtype):
    x = np.random.default_rng(0).integers(0, 256, 64 * 4, dtype=np.uint8).view(dtype)[:64].copy()
    out = np.zeros(64, np.uint32)
    shift = np.dtype(dtype).itemsize.bit_length() - 1
    body = f"""
    v_lshlrev_b32_e32 v1, {shift}, v0
    v_lshlrev_b32_e32 v0, 2, v0
    global_load_{suffix} v2, v1, s[4:5]
    global_store_dword v0, v2, s[6:7]"""
    launch(body, [x, out])
    np.testing.assert_array_equal(out.view(np.int32), x.astype(np.int64).astype(np.uint32).view(np.int32))


def test_half_register_loads_keep_the_other_half(launch):
    x, out = np.array([0x1111, 0x2222], np.uint16), np.zeros(1, np.uint32)
    body = """
    v_mov_b32_e32 v0, 0
    v_mov_b32_e32 v2, 0
    s_mov_b64 exec, 1
    global_load_short_d16 v2, v0, s[4:5]
    global_load_short_d16_hi v2, v0, s[4:5] offset:2
    global_store_dword v0, v2, s[6:7]
    global_store_short_d16_hi v0, v2, s[4:5]"""
    launch(body, [x, out])
    assert out[0] == 0x22221111 and x.tolist() == [0x2222, 0x2222]


@pytest.mark.parametrize("words", [2, 3, 4])
def test_wide_accesses_with_vector_addresses(launch, words):
    x = np.random.default_rng(0).integers(0, 2**32, (64, words), dtype=np.uint32)
    out = np.zeros_like(x)
    load = f"v[4:{3 + words}]"
    body = f"""
    v_mul_u32_u24_e32 v1, {4 * words}, v0
    v_add_co_u32_e32 v2, vcc, s4, v1
    v_mov_b32_e32 v3, s5
    v_addc_co_u32_e32 v3, vcc, 0, v3, vcc
    global_load_dwordx{words} {load}, v[2:3], off
    global_store_dwordx{words} v1, {load}, s[6:7]"""
    launch(body, [x, out])
    np.testing.assert_array_equal(out, x)


def test_negative_instruction_offset(launch):
    x, out = np.arange(4, dtype=np.uint32), np.zeros(64, np.uint32)
    body = """
    v_mov_b32_e32 v1, 12
    global_load_dword v2, v1, s[4:5] offset:-8
    v_lshlrev_b32_e32 v0, 2, v0
    global_store_dword v0, v2, s[6:7]"""
    launch(body, [x, out])
    assert (out == 1).all()


def test_scalar_loads(launch):
    x, out = np.arange(16, dtype=np.uint32) * 0x01010101, np.zeros(64, np.uint32)
    body = """
    s_mov_b32 s20, 8
    s_load_dwordx2 s[12:13], s[4:5], 0x10
    s_load_dword s14, s[4:5], s20 offset:0x4
    s_add_u32 s14, s14, s13
    v_mov_b32_e32 v2, s14
    v_lshlrev_b32_e32 v0, 2, v0
    global_store_dword v0, v2, s[6:7]"""
    launch(body, [x, out])
    assert (out == (3 + 5) * 0x01010101).all()


def test_buffer_loads_beyond_the_resource_give_zero_and_stores_do_nothing(launch):
    x, out = np.arange(1, 65, dtype=np.uint32), np.full(64, 9, np.uint32)
    body = """
    s_mov_b32 s6, 80
    s_mov_b32 s10, 160
    s_mov_b64 s[12:13], s[6:7]
    v_lshlrev_b32_e32 v1, 2, v0
    buffer_load_dword v2, v1, s[4:7], 0 offen offset:4
    buffer_store_dword v2, v1, s[8:11], 0 offen"""
    # the second pointer is in s[6:7]: make room for two resources of four words
    body = body.replace("s_mov_b32 s6, 80", "s_mov_b64 s[8:9], s[6:7]\ns_mov_b32 s6, 80", 1)
    launch(body, [x, out])
    want = np.full(64, 9)
    want[:40] = np.where(LANE[:40] < 19, LANE[:40] + 2, 0)
    np.testing.assert_array_equal(out, want)


def test_scratch_is_private_to_a_lane(execute):
    body = """
    s_mov_b32 s5, 4
    scratch_store_dword off, v1, off offset:8
    scratch_store_dword off, v2, s5
    scratch_load_dwordx2 v[3:4], off, s5"""
    a, b = LANE.astype(np.uint32), LANE.astype(np.uint32) + 1000
    out = execute(body, v={1: a, 2: b}, out=["v3", "v4"], scratch=16)
    np.testing.assert_array_equal([out["v3"], out["v4"]], [b, a])


def test_scratch_beyond_its_size_faults(execute):
    with pytest.raises(Fault, match="scratch access of 4 bytes out of bounds"):
        execute("scratch_load_dword v1, off, off offset:16", out=["v1"], scratch=16)
