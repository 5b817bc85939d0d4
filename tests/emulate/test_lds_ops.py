"""Loads and stores of LDS."""

import numpy as np
import pytest

from capwise.emulate import Fault


def test_lds_round_trip_of_every_width(execute):
    a, b = np.random.default_rng(0).integers(0, 2**32, (2, 64), dtype=np.uint32)
    body = """
    v_lshlrev_b32_e32 v9, 3, v0
    ds_write_b64 v9, v[1:2] offset:16
    ds_read_b64 v[3:4], v9 offset:16
    ds_read_u16 v5, v9 offset:18
    ds_read_i8 v6, v9 offset:17
    ds_read_u8_d16_hi v7, v9 offset:16"""
    names = ["v3", "v4", "v5", "v6", "v7"]
    out = execute(body, v={1: a, 2: b, 7: 0x1234}, out=names)
    np.testing.assert_array_equal([out["v3"], out["v4"]], [a, b])
    np.testing.assert_array_equal(out["v5"], a >> 16)
    np.testing.assert_array_equal(out["v6"].view(np.int32), (a >> 8).astype(np.int8))
    np.testing.assert_array_equal(out["v7"], 0x1234 | (a & 255) << 16)


def test_lds_two_address_forms_scale_their_offsets(execute):
    a, b = np.random.default_rng(0).integers(0, 2**32, (2, 64), dtype=np.uint32)
    body = """
    v_lshlrev_b32_e32 v9, 2, v0
    ds_write2st64_b32 v9, v1, v2 offset0:1 offset1:3
    ds_read2st64_b32 v[3:4], v9 offset0:3 offset1:1
    ds_read_b32 v5, v9 offset:256
    s_mov_b64 exec, 0xffffffff
    ds_read2_b32 v[6:7], v9 offset0:64 offset1:65"""
    out = execute(body, v={1: a, 2: b, 6: 0, 7: 0}, out=["v3", "v4", "v5", "v6", "v7"])
    np.testing.assert_array_equal([out["v3"], out["v4"], out["v5"]], [b, a, a])
    np.testing.assert_array_equal([out["v6"][:32], out["v7"][:32]], [a[:32], a[1:33]])
    assert not out["v6"][32:].any()


def test_lds_beyond_the_allocation_faults(execute):
    with pytest.raises(Fault, match=r"ds_read_b64.*LDS access of 8 bytes at 1020, beyond the 1024 bytes"):
        execute("v_mov_b32_e32 v1, 0x3fc\nds_read_b64 v[2:3], v1", out=["v2"])


def test_unwritten_lds_is_poison(execute):
    assert (execute("v_mov_b32_e32 v1, 0\nds_read_b32 v2, v1", out=["v2"])["v2"] == 0x7F7F7F7F).all()


def test_transposing_lds_load_of_gfx950(execute):
    """In each group of 16 lanes, lane i gets element i % 4 of lanes i // 4, i // 4 + 4, ..."""
    data = np.random.default_rng(0).integers(0, 2**16, (64, 4), dtype=np.uint16)
    words = data.view(np.uint32)
    body = "v_lshlrev_b32_e32 v9, 3, v0\nds_write_b64 v9, v[1:2]\nds_read_b64_tr_b16 v[3:4], v9"
    out = execute(body, gfx="gfx950", v={1: words[:, 0].copy(), 2: words[:, 1].copy()}, out=["v3", "v4"])
    got = np.stack([out["v3"], out["v4"]], 1).view(np.uint16)
    want = [[data[(lane & ~15) + 4 * j + (lane & 15) // 4, lane % 4] for j in range(4)] for lane in range(64)]
    np.testing.assert_array_equal(got, want)


def test_global_load_to_lds_starts_at_m0(launch):
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    body = """
    v_lshlrev_b32_e32 v1, 2, v0
    s_mov_b32 m0, 0x100
    global_load_lds_dword v1, s[4:5]
    ds_read_b32 v2, v1 offset:256
    global_store_dword v1, v2, s[6:7]"""
    launch(body, [x, out])
    np.testing.assert_array_equal(out, x)
