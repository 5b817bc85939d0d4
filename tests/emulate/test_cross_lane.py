"""Moves between lanes: DPP, swizzles, permutes, lane reads and writes."""

import numpy as np
import pytest

DATA = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
LANE = np.arange(64)
OLD = 0x55555555


def moved(source, valid=None):
    """DATA taken from ``source`` lanes; lanes without a source keep OLD."""
    source, valid = np.asarray(source), np.ones(len(source), bool) if valid is None else valid
    return np.where(valid, DATA[np.clip(source, 0, 63)], np.uint32(OLD))


ROW, IN_ROW = LANE & ~15, LANE & 15
DPP = [
    ("quad_perm:[3,0,1,2]", moved((LANE & ~3) | np.array([3, 0, 1, 2])[LANE & 3])),
    ("row_shl:3", moved(LANE + 3, IN_ROW + 3 < 16)),
    ("row_shr:5", moved(LANE - 5, IN_ROW >= 5)),
    ("row_ror:4", moved(ROW + (IN_ROW - 4) % 16)),
    ("row_mirror", moved(ROW + 15 - IN_ROW)),
    ("row_half_mirror", moved((LANE & ~7) + 7 - (LANE & 7))),
    ("row_newbcast:6", moved(ROW + 6)),
    ("row_bcast:15", moved(ROW - 1, LANE >= 16)),
    ("row_bcast:31", moved((LANE & ~31) - 1, LANE >= 32)),
    ("wave_shl:1", moved(LANE + 1, LANE < 63)),
    ("wave_shr:1", moved(LANE - 1, LANE > 0)),
    ("wave_rol:1", moved((LANE + 1) % 64)),
    ("wave_ror:1", moved((LANE - 1) % 64)),
]


@pytest.mark.parametrize(("control", "want"), DPP, ids=[c.split(":")[0] + c[-3:] for c, _ in DPP])
def test_dpp(execute, control, want):
    out = execute(f"v_mov_b32_dpp v2, v1 {control} row_mask:0xf bank_mask:0xf", v={1: DATA, 2: OLD}, out=["v2"])
    np.testing.assert_array_equal(out["v2"], want)


@pytest.mark.parametrize(
    ("control", "source"),
    [
        ("row_xmask:5", (LANE & ~15) | ((LANE & 15) ^ 5)),
        ("row_share:9", (LANE & ~15) + 9),
        ("dpp8:[7,6,5,4,3,2,1,0]", LANE ^ 7),
    ],
)
def test_dpp_of_wave32_targets(execute, control, source):
    out = execute(f"v_mov_b32_dpp v2, v1 {control}", gfx="gfx1201", v={1: DATA[:32], 2: OLD}, out=["v2"])
    np.testing.assert_array_equal(out["v2"], DATA[source[:32]])


def test_dpp_masks_bound_control_and_inactive_sources(execute):
    body = """
    v_mov_b32_dpp v2, v1 row_shr:1 row_mask:0x5 bank_mask:0x3
    v_mov_b32_dpp v3, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0
    s_mov_b64 exec, 0xfffffffffffffffe
    v_mov_b32_dpp v4, v1 quad_perm:[0,0,0,0] row_mask:0xf bank_mask:0xf"""
    out = execute(body, v={1: DATA, 2: OLD, 3: OLD, 4: OLD}, out=["v2", "v3", "v4"])
    enabled = np.isin(LANE >> 4, (0, 2)) & np.isin(IN_ROW >> 2, (0, 1)) & (IN_ROW >= 1)
    np.testing.assert_array_equal(out["v2"], moved(LANE - 1, enabled))
    np.testing.assert_array_equal(out["v3"], np.where(IN_ROW >= 1, DATA[LANE - 1], 0))
    np.testing.assert_array_equal(out["v4"], moved(LANE & ~3, LANE > 3))  # lane 0 is switched off


def test_dpp_feeds_arithmetic(execute):
    out = execute("v_add_u32_dpp v2, v1, v1 row_ror:8 row_mask:0xf bank_mask:0xf", v={1: DATA, 2: 0}, out=["v2"])
    np.testing.assert_array_equal(out["v2"], DATA[ROW + (IN_ROW + 8) % 16] + DATA)


SWIZZLES = [
    ("swizzle(SWAP,16)", LANE ^ 16),
    ("swizzle(REVERSE,8)", LANE ^ 7),
    ("swizzle(BROADCAST,4,2)", (LANE & ~3) | 2),
    ("swizzle(QUAD_PERM,1,0,3,2)", LANE ^ 1),
    ('swizzle(BITMASK_PERM,"0p1ip")', (LANE & ~0b10110 | 0b00100) | ((LANE ^ 2) & 2)),
    ("0x80b1", LANE ^ 1),
    ("0x041f", LANE ^ 1),
    ("0x7c1f", LANE ^ 31),
    ("0x0018", LANE & ~7),
]


@pytest.mark.parametrize(("pattern", "source"), SWIZZLES, ids=[p for p, _ in SWIZZLES])
def test_swizzle(execute, pattern, source):
    out = execute(f"ds_swizzle_b32 v2, v1 offset:{pattern}", v={1: DATA, 2: 0}, out=["v2"])
    np.testing.assert_array_equal(out["v2"], DATA[source])


def test_bpermute_pulls_and_permute_pushes(execute):
    order = np.random.default_rng(1).permutation(64).astype(np.uint32)
    body = "ds_bpermute_b32 v3, v1, v2\nds_permute_b32 v4, v1, v2\nds_bpermute_b32 v5, v1, v2 offset:8"
    out = execute(body, v={1: order * 4, 2: DATA}, out=["v3", "v4", "v5"])
    np.testing.assert_array_equal(out["v3"], DATA[order])
    np.testing.assert_array_equal(out["v4"][order], DATA)
    np.testing.assert_array_equal(out["v5"], DATA[(order + 2) % 64])


def test_inactive_source_lanes_give_zero(execute):
    body = (
        "s_mov_b64 exec, 0xffffffff00000000\nds_bpermute_b32 v3, v1, v2\nds_swizzle_b32 v4, v2 offset:swizzle(SWAP,16)"
    )
    out = execute(body, v={1: LANE.astype(np.uint32)[::-1].copy() * 4, 2: DATA, 3: OLD, 4: OLD}, out=["v3", "v4"])
    assert (out["v3"][:32] == OLD).all() and not out["v3"][32:].any()
    np.testing.assert_array_equal(out["v4"][32:], DATA[LANE[32:] ^ 16])


def test_lane_reads_and_writes(execute):
    body = """
    v_readlane_b32 s6, v1, s4
    v_writelane_b32 v2, s6, 7
    s_mov_b64 exec, 0x70
    v_readfirstlane_b32 s7, v1"""
    out = execute(body, v={1: DATA, 2: 0}, s={4: 40}, out=["s6", "s7", "v2"])
    assert (out["s6"], out["s7"]) == (DATA[40], DATA[4])
    assert out["v2"][7] == DATA[40] and np.count_nonzero(out["v2"]) == 1


def test_first_lane_without_an_active_one_is_lane_zero(execute):
    assert execute("s_mov_b64 exec, 0\nv_readfirstlane_b32 s7, v1", v={1: DATA}, out=["s7"])["s7"] == DATA[0]


def test_mask_count_numbers_the_set_lanes(execute):
    body = """
    s_mov_b32 s8, 0xf0f0f0f1
    v_mbcnt_lo_u32_b32 v2, s8, 0
    v_mbcnt_hi_u32_b32 v2, s8, v2"""
    out = execute(body, v={1: 0}, out=["v2"])
    bits = np.array([(0xF0F0F0F1F0F0F0F1 >> i) & 1 for i in range(64)])
    assert out["v2"].tolist() == (np.cumsum(bits) - bits).tolist()


def test_permlane_selects_within_a_row_and_across(execute):
    low, high = 0x01234567, 0x89ABCDEF
    select = np.array([(((high << 32) | low) >> (4 * i)) & 15 for i in range(16)])
    body = "v_permlane16_b32 v2, v1, s4, s5\nv_permlanex16_b32 v3, v1, s4, s5"
    out = execute(body, gfx="gfx1201", v={1: DATA[:32], 2: 0, 3: 0}, s={4: low, 5: high}, out=["v2", "v3"])
    row, picked = np.arange(32) & 16, np.tile(select, 2)
    np.testing.assert_array_equal(out["v2"], DATA[row + picked])
    np.testing.assert_array_equal(out["v3"], DATA[(row ^ 16) + picked])


def test_permlane_swap_exchanges_halves(execute):
    other = DATA[::-1].copy()
    out = execute("v_permlane32_swap_b32 v1, v2", gfx="gfx950", v={1: DATA, 2: other}, out=["v1", "v2"])
    np.testing.assert_array_equal(out["v1"], np.concatenate([DATA[:32], other[:32]]))
    np.testing.assert_array_equal(out["v2"], np.concatenate([DATA[32:], other[32:]]))
