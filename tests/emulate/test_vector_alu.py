"""Vector instructions against Python integers and numpy floats, lane by lane."""

import math
from fractions import Fraction

import numpy as np
import pytest

M32 = 2**32 - 1
EDGES = [0, 1, 2, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF, 0x10000, 0x00FFFFFF, 0x12345678]


def lanes(seed, count=64):
    values = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    values[: len(EDGES)] = np.roll(EDGES, seed)
    return values


def signed(x, bits=32):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def clamp(x, low, high):
    return max(low, min(high, x))


def saturate_16(a):
    return clamp(signed(a), -32768, 32767) & 0xFFFF


def octets(a):
    return [signed(a >> shift, 8) for shift in (0, 8, 16, 24)]


def leading_signs(a):
    same = f"{a:032b}"
    return -1 if a in (0, M32) else len(same) - len(same.lstrip(same[0]))


def permute(high, low, selector):
    source = (high << 32 | low).to_bytes(8, "little")
    result = []
    for pick in selector.to_bytes(4, "little"):
        if pick < 8:
            result.append(source[pick])
        elif pick < 12:
            result.append(255 * (source[2 * (pick - 8) + 1] >> 7))
        else:
            result.append(0 if pick == 12 else 255)
    return int.from_bytes(bytes(result), "little")


PAD = "dst_sel:DWORD dst_unused:UNUSED_PAD"
INTEGER = [
    ("v_add_u32_e32 v4, v1, v2", lambda a, b, c: a + b),
    ("v_sub_u32_e32 v4, v1, v2", lambda a, b, c: a - b),
    ("v_subrev_u32_e32 v4, v1, v2", lambda a, b, c: b - a),
    ("v_add3_u32 v4, v1, v2, v3", lambda a, b, c: a + b + c),
    ("v_add_u32_e64 v4, v1, v2 clamp", lambda a, b, c: min(a + b, M32)),
    ("v_sub_u32_e64 v4, v1, v2 clamp", lambda a, b, c: max(a - b, 0)),
    ("v_add_i32 v4, v1, v2 clamp", lambda a, b, c: clamp(signed(a) + signed(b), -(2**31), 2**31 - 1)),
    ("v_add_u16_e32 v4, v1, v2", lambda a, b, c: (a + b) & 0xFFFF),
    ("v_sub_u16_e64 v4, v1, v2 clamp", lambda a, b, c: max((a & 0xFFFF) - (b & 0xFFFF), 0)),
    ("v_mul_lo_u32 v4, v1, v2", lambda a, b, c: a * b),
    ("v_mul_hi_u32 v4, v1, v2", lambda a, b, c: a * b >> 32),
    ("v_mul_hi_i32 v4, v1, v2", lambda a, b, c: signed(a) * signed(b) >> 32),
    ("v_mul_u32_u24_e32 v4, v1, v2", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    ("v_mul_i32_i24_e32 v4, v1, v2", lambda a, b, c: signed(a, 24) * signed(b, 24)),
    ("v_mad_u32_u24 v4, v1, v2, v3", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    ("v_mad_i32_i24 v4, v1, v2, v3", lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
    ("v_lshlrev_b32_e32 v4, v1, v2", lambda a, b, c: b << (a & 31)),
    ("v_lshrrev_b32_e32 v4, v1, v2", lambda a, b, c: b >> (a & 31)),
    ("v_ashrrev_i32_e32 v4, v1, v2", lambda a, b, c: signed(b) >> (a & 31)),
    ("v_ashrrev_i16 v4, v1, v2", lambda a, b, c: signed(b, 16) >> (a & 15) & 0xFFFF),
    ("v_lshl_add_u32 v4, v1, v2, v3", lambda a, b, c: (a << (b & 31)) + c),
    ("v_add_lshl_u32 v4, v1, v2, v3", lambda a, b, c: ((a + b) & M32) << (c & 31)),
    ("v_lshl_or_b32 v4, v1, v2, v3", lambda a, b, c: (a << (b & 31)) | c),
    ("v_and_or_b32 v4, v1, v2, v3", lambda a, b, c: a & b | c),
    ("v_or3_b32 v4, v1, v2, v3", lambda a, b, c: a | b | c),
    ("v_xad_u32 v4, v1, v2, v3", lambda a, b, c: (a ^ b) + c),
    ("v_xnor_b32_e32 v4, v1, v2", lambda a, b, c: ~(a ^ b)),
    ("v_not_b32_e32 v4, v1", lambda a, b, c: ~a),
    ("v_bfi_b32 v4, v1, v2, v3", lambda a, b, c: a & b | ~a & c),
    ("v_bfe_u32 v4, v1, v2, v3", lambda a, b, c: a >> (b & 31) & (1 << (c & 31)) - 1),
    ("v_bfe_i32 v4, v1, v2, v3", lambda a, b, c: signed(a >> (b & 31), c & 31) if c & 31 else 0),
    ("v_bfm_b32 v4, v1, v2", lambda a, b, c: ((1 << (a & 31)) - 1) << (b & 31)),
    ("v_bfrev_b32_e32 v4, v1", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    ("v_perm_b32 v4, v1, v2, v3", permute),
    ("v_alignbit_b32 v4, v1, v2, v3", lambda a, b, c: (a << 32 | b) >> (c & 31)),
    ("v_alignbyte_b32 v4, v1, v2, v3", lambda a, b, c: (a << 32 | b) >> 8 * (c & 3)),
    ("v_bcnt_u32_b32 v4, v1, v2", lambda a, b, c: a.bit_count() + b),
    ("v_ffbl_b32_e32 v4, v1", lambda a, b, c: (a & -a).bit_length() - 1),
    ("v_ffbh_u32_e32 v4, v1", lambda a, b, c: 32 - a.bit_length() if a else -1),
    ("v_ffbh_i32_e32 v4, v1", lambda a, b, c: leading_signs(a)),
    ("v_min_i32_e32 v4, v1, v2", lambda a, b, c: min(signed(a), signed(b))),
    ("v_max_u32_e32 v4, v1, v2", lambda a, b, c: max(a, b)),
    ("v_med3_i32 v4, v1, v2, v3", lambda a, b, c: sorted((signed(a), signed(b), signed(c)))[1]),
    ("v_max3_u32 v4, v1, v2, v3", lambda a, b, c: max(a, b, c)),
    ("v_sad_u32 v4, v1, v2, v3", lambda a, b, c: abs(a - b) + c),
    ("v_mad_u32_u16 v4, v1, v2, v3", lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c),
    ("v_mad_i32_i16 v4, v1, v2, v3", lambda a, b, c: signed(a, 16) * signed(b, 16) + c),
    ("v_cvt_pk_i16_i32 v4, v1, v2", lambda a, b, c: saturate_16(a) | saturate_16(b) << 16),
    ("v_cvt_pk_u16_u32 v4, v1, v2", lambda a, b, c: min(a, 65535) | min(b, 65535) << 16),
    ("v_pack_b32_f16 v4, v1, v2", lambda a, b, c: a & 0xFFFF | (b & 0xFFFF) << 16),
    ("v_bitop3_b32 v4, v1, v2, v3 bitop3:0xca", lambda a, b, c: a & b | ~a & c),
    ("v_dot4_i32_i8 v4, v1, v2, v3", lambda a, b, c: sum(x * y for x, y in zip(octets(a), octets(b))) + c),
    (f"v_add_u32_sdwa v4, v1, v2 {PAD} src0_sel:BYTE_1 src1_sel:WORD_1", lambda a, b, c: (a >> 8 & 255) + (b >> 16)),
    (f"v_add_u32_sdwa v4, sext(v1), v2 {PAD} src0_sel:BYTE_3 src1_sel:DWORD", lambda a, b, c: signed(a >> 24, 8) + b),
    (
        "v_mov_b32_e32 v4, v3\nv_mov_b32_sdwa v4, v1 dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0",
        lambda a, b, c: c & 0xFF00FFFF | (a & 255) << 16,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "function"), INTEGER, ids=[f"{i}-{t.split()[0]}" for i, (t, _) in enumerate(INTEGER)])
def test_integer(execute, text, function):
    a, b, c = (lanes(seed) for seed in (1, 2, 3))
    got = execute(text, v={1: a, 2: b, 3: c}, out=["v4"])["v4"]
    want = [function(*operands) & M32 for operands in zip(a.tolist(), b.tolist(), c.tolist())]
    assert got.tolist() == want


PAIRS = [
    ("v_lshlrev_b64 v[6:7], v5, v[1:2]", lambda x, y, n: x << (n & 63)),
    ("v_lshrrev_b64 v[6:7], v5, v[1:2]", lambda x, y, n: x >> (n & 63)),
    ("v_ashrrev_i64 v[6:7], v5, v[1:2]", lambda x, y, n: signed(x, 64) >> (n & 63)),
    ("v_lshl_add_u64 v[6:7], v[1:2], v5, v[3:4]", lambda x, y, n: (x << (n & 63)) + y),
    ("v_mad_u64_u32 v[6:7], s[8:9], v1, v5, v[3:4]", lambda x, y, n: (x & M32) * n + y),
    ("v_mad_i64_i32 v[6:7], s[8:9], v1, v5, v[3:4]", lambda x, y, n: signed(x) * signed(n) + y),
    ("v_add_co_u32_e32 v6, vcc, v1, v3\nv_addc_co_u32_e32 v7, vcc, v2, v4, vcc", lambda x, y, n: x + y),
    ("v_sub_co_u32_e32 v6, vcc, v1, v3\nv_subb_co_u32_e32 v7, vcc, v2, v4, vcc", lambda x, y, n: x - y),
    ("v_subrev_co_u32_e32 v6, vcc, v1, v3\nv_subbrev_co_u32_e32 v7, vcc, v2, v4, vcc", lambda x, y, n: y - x),
    ("v_mov_b64_e32 v[6:7], v[3:4]", lambda x, y, n: y),
]


@pytest.mark.parametrize(("text", "function"), PAIRS, ids=[t.split()[0] for t, _ in PAIRS])
def test_register_pairs(execute, text, function):
    x0, x1, y0, y1, n = (lanes(seed) for seed in range(5))
    out = execute(text, v={1: x0, 2: x1, 3: y0, 4: y1, 5: n}, out=["v6", "v7"])
    got = [low | high << 32 for low, high in zip(out["v6"].tolist(), out["v7"].tolist())]
    operands = zip((x1.astype(np.uint64) << 32 | x0).tolist(), (y1.astype(np.uint64) << 32 | y0).tolist(), n.tolist())
    assert got == [function(*o) & (2**64 - 1) for o in operands]


def test_carry_out_is_a_lane_mask(execute):
    a, b = lanes(1), lanes(2)
    carry = execute("v_add_co_u32_e32 v6, vcc, v1, v2", v={1: a, 2: b}, out=["vcc"])["vcc"]
    np.testing.assert_array_equal(carry, a.astype(np.uint64) + b > M32)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("lt_i32", lambda a, b: a.view(np.int32) < b.view(np.int32)),
        ("lt_u32", np.less),
        ("eq_u32", np.equal),
        ("ge_i16", lambda a, b: a.astype(np.int16) >= b.astype(np.int16)),
        ("ne_u16", lambda a, b: a.astype(np.uint16) != b.astype(np.uint16)),
    ],
)
def test_integer_comparison(execute, name, function):
    a, b = lanes(1), lanes(2)
    a[40:50] = b[40:50]
    np.testing.assert_array_equal(
        execute(f"v_cmp_{name}_e32 vcc, v1, v2", v={1: a, 2: b}, out=["vcc"])["vcc"], function(a, b)
    )


def test_comparison_reads_only_active_lanes_and_cmpx_narrows_exec(execute):
    body = "s_mov_b64 exec, 0xff\nv_cmpx_lt_u32_e32 vcc, v1, v2\nv_mov_b32_e32 v3, 1"
    out = execute(body, v={1: np.arange(64, dtype=np.uint32), 2: 5, 3: 0}, out=["v3", "vcc"])
    assert out["v3"].tolist() == [1] * 5 + [0] * 59 and out["vcc"].tolist() == [True] * 5 + [False] * 59


def test_conditional_mask_takes_the_second_source_where_set(execute):
    body = "v_cmp_gt_u32_e32 vcc, 3, v1\nv_cndmask_b32_e32 v2, 7, v1, vcc\nv_cndmask_b32_e64 v3, v1, -v1, vcc"
    out = execute(body, v={1: np.arange(64, dtype=np.uint32)}, out=["v2", "v3"])
    assert out["v2"][:5].tolist() == [0, 1, 2, 7, 7] and out["v3"][2] == 0x80000002 and out["v3"][3] == 3


def test_inactive_lanes_keep_their_value(execute):
    out = execute("s_mov_b64 exec, 6\nv_mov_b32_e32 v1, 9", v={1: 4}, out=["v1"])["v1"]
    assert out.tolist() == [4, 9, 9] + [4] * 61


def test_dual_issue_reads_both_halves_before_writing(execute):
    out = execute("v_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v2, v1", gfx="gfx1201", v={1: 5, 2: 6}, out=["v1", "v2"])
    assert (out["v1"][0], out["v2"][0]) == (6, 5)


def test_swap_exchanges_registers(execute):
    out = execute("v_swap_b32 v1, v2", v={1: 5, 2: 6}, out=["v1", "v2"])
    assert (out["v1"][0], out["v2"][0]) == (6, 5)


def test_accumulator_registers_hold_what_is_written(execute):
    out = execute(
        "v_accvgpr_write_b32 a3, v1\nv_accvgpr_mov_b32 a4, a3\nv_accvgpr_read_b32 v2, a4", v={1: 5, 2: 0}, out=["v2"]
    )
    assert out["v2"][0] == 5


# -- floating point
def floats(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(64) * np.exp2(rng.integers(-8, 8, 64))).astype(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5, 1e-40], dtype)
    values[: len(special)] = np.roll(special, seed)
    return values


FLOAT = [
    ("v_add_f32_e32 v4, v1, v2", lambda a, b, c: a + b),
    ("v_sub_f32_e64 v4, |v1|, -v2", lambda a, b, c: np.abs(a) - -b),
    ("v_mul_f32_e64 v4, v1, v2 mul:2", lambda a, b, c: a * b * 2),
    ("v_mul_f32_e64 v4, v1, v2 div:2", lambda a, b, c: a * b / 2),
    ("v_add_f32_e64 v4, v1, v2 clamp", lambda a, b, c: np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1))),
    ("v_min_f32_e32 v4, v1, v2", lambda a, b, c: np.fmin(a, b)),
    ("v_max_f32_e32 v4, v1, v2", lambda a, b, c: np.fmax(a, b)),
    ("v_max3_f32 v4, v1, v2, v3", lambda a, b, c: np.fmax(np.fmax(a, b), c)),
    ("v_med3_f32 v4, v1, 0, 1.0", lambda a, b, c: np.where(np.isnan(a), 0, np.clip(a, 0, 1))),
    ("v_maximum_f32 v4, v1, v2", lambda a, b, c: np.maximum(a, b)),
    ("v_rcp_f32_e32 v4, v1", lambda a, b, c: (1 / a.astype(float)).astype(np.float32)),
    ("v_exp_f32_e32 v4, v1", lambda a, b, c: np.exp2(a.astype(float)).astype(np.float32)),
    ("v_log_f32_e32 v4, v1", lambda a, b, c: np.log2(a.astype(float)).astype(np.float32)),
    ("v_sqrt_f32_e32 v4, v1", lambda a, b, c: np.sqrt(a)),
    ("v_floor_f32_e32 v4, v1", lambda a, b, c: np.floor(a)),
    ("v_rndne_f32_e32 v4, v1", lambda a, b, c: np.rint(a)),
    ("v_fract_f32_e32 v4, v1", lambda a, b, c: a - np.floor(a)),
    ("v_ldexp_f32 v4, v1, 3", lambda a, b, c: a * 8),
    ("v_mul_legacy_f32 v4, v1, v2", lambda a, b, c: np.where((a == 0) | (b == 0), 0, a * b)),
    ("v_mov_b32_e64 v4, -v1", lambda a, b, c: -a),
    ("v_cvt_f32_f16_e32 v4, v5", lambda a, b, c: a.astype(np.float16).astype(np.float32)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("text", "function"), FLOAT, ids=[f"{i}-{t.split()[0]}" for i, (t, _) in enumerate(FLOAT)])
def test_float(execute, text, function):
    a, b, c = (floats(seed) for seed in (1, 2, 3))
    half = a.astype(np.float16).view(np.uint16).astype(np.uint32)
    got = execute(text, v={1: a, 2: b, 3: c, 5: half}, out=["v4"])["v4"].view(np.float32)
    np.testing.assert_array_equal(got, function(a, b, c).astype(np.float32))


def test_minimum_orders_the_zeros_by_sign(execute):
    out = execute(
        "v_min_f32_e32 v3, v1, v2\nv_max_f32_e32 v4, v1, v2",
        v={1: np.float32(0.0), 2: np.float32(-0.0)},
        out=["v3", "v4"],
    )
    assert (out["v3"][0], out["v4"][0]) == (0x80000000, 0)


def round_to_f32(x):
    """A Fraction rounded to the nearest float32, ties to even."""
    if x == 0:
        return np.float32(0)
    exponent = max(math.frexp(abs(x.numerator) / x.denominator)[1] - 24, -149)
    scaled = x / Fraction(2) ** exponent
    return np.float32(float(round(scaled)) * 2.0**exponent)


def test_fma_rounds_once(execute):
    """Chosen so that the float64 sum lies on a tie of float32: rounding it twice gives the wrong neighbour."""
    one, tiny = np.float32(1 + 2**-12), np.float32(2**-60)
    a = np.array([one, one, -one, 3.7], np.float32)
    c = np.array([tiny, -tiny, tiny, 1e-20], np.float32)
    v = {1: np.resize(a, 64), 2: np.resize(np.abs(a), 64), 3: np.resize(c, 64)}
    got = execute("v_fma_f32 v4, v1, v2, v3\nv_fmac_f32_e32 v3, v1, v2", v=v, out=["v3", "v4"])
    want = [round_to_f32(Fraction(float(x)) * Fraction(abs(float(x))) + Fraction(float(z))) for x, z in zip(a, c)]
    assert got["v4"][:4].view(np.float32).tolist() == [float(w) for w in want]
    np.testing.assert_array_equal(got["v3"], got["v4"])
    naive = (a.astype(float) * np.abs(a) + c).astype(np.float32)
    assert (naive != want).any()


DIVIDE = """
v_div_scale_f32 v3, s[8:9], v2, v2, v1
v_div_scale_f32 v4, vcc, v1, v2, v1
v_rcp_f32_e32 v5, v3
v_fma_f32 v6, -v3, v5, 1.0
v_fmac_f32_e32 v5, v6, v5
v_mul_f32_e32 v6, v4, v5
v_fma_f32 v7, -v3, v6, v4
v_fmac_f32_e32 v6, v7, v5
v_fma_f32 v3, -v3, v6, v4
v_div_fmas_f32 v3, v3, v5, v6
v_div_fixup_f32 v3, v3, v2, v1
"""


@pytest.mark.filterwarnings("ignore")
def test_division_sequence_is_correctly_rounded_for_any_bits(execute):
    rng = np.random.default_rng(0)
    for largest in (2**32, 2**32, 2**32, 2**32, 2**29, 2**28, 2**28, 2**28):  # the last ones near the denormals
        a, b = (rng.integers(0, largest, 64, dtype=np.uint32).view(np.float32) for _ in range(2))
        a[:8], b[:8] = floats(1)[:8], floats(3)[:8]
        got = execute(DIVIDE, v={1: a, 2: b}, out=["v3"])["v3"].view(np.float32)
        np.testing.assert_array_equal(got, a / b)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_float_to_integer_truncates_and_saturates(execute, dtype):
    a = np.array([1.9, -1.9, 3e9, -3e9, 1e20, -1e20, np.nan, np.inf, -np.inf, 0.5], np.float32)
    letter = np.dtype(dtype).kind
    got = execute(f"v_cvt_{letter}32_f32_e32 v2, v1", v={1: np.resize(a, 64)}, out=["v2"])["v2"].view(dtype)
    limits = np.iinfo(dtype)
    want = [0 if math.isnan(x) else int(clamp(x, limits.min, limits.max)) for x in a.tolist()]
    assert got[: len(a)].tolist() == want


def test_integer_to_float(execute):
    a = lanes(4)
    out = execute(
        "v_cvt_f32_u32_e32 v2, v1\nv_cvt_f32_i32_e32 v3, v1\nv_cvt_f32_ubyte2_e32 v4, v1",
        v={1: a},
        out=["v2", "v3", "v4"],
    )
    np.testing.assert_array_equal(out["v2"].view(np.float32), a.astype(np.float32))
    np.testing.assert_array_equal(out["v3"].view(np.float32), a.view(np.int32).astype(np.float32))
    np.testing.assert_array_equal(out["v4"].view(np.float32), (a >> 16 & 255).astype(np.float32))


def test_double_precision(execute):
    x, y = np.random.default_rng(1).standard_normal((2, 64))
    pairs = {1: x.view(np.uint64), 3: y.view(np.uint64)}
    v = {r + i: (bits >> np.uint64(32 * i)).astype(np.uint32) for r, bits in pairs.items() for i in range(2)}
    body = "v_fma_f64 v[6:7], v[1:2], -v[3:4], 1.0\nv_add_f64 v[8:9], v[1:2], v[3:4]\nv_cvt_f32_f64_e32 v10, v[1:2]"
    out = execute(body, v=v, out=["v6", "v7", "v8", "v9", "v10"])
    join = lambda low, high: (out[high].astype(np.uint64) << np.uint64(32) | out[low]).view(np.float64)
    np.testing.assert_array_equal(join("v8", "v9"), x + y)
    np.testing.assert_allclose(join("v6", "v7"), 1 - x * y, rtol=1e-13)
    np.testing.assert_array_equal(out["v10"].view(np.float32), x.astype(np.float32))


def test_class_of_a_float(execute):
    values = np.array([np.nan, -np.inf, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, np.inf], np.float32)
    for bit, index in ((1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (8, 7), (9, 8)):
        body = f"v_mov_b32_e32 v2, {1 << bit:#x}\nv_cmp_class_f32_e32 vcc, v1, v2"
        mask = execute(body, v={1: np.resize(values, 64)}, out=["vcc"])["vcc"][:9]
        assert np.nonzero(mask)[0].tolist() == [index]


@pytest.mark.parametrize(("gfx", "kept"), [("gfx942", 0), ("gfx1201", 0xABCD)])
def test_upper_half_of_a_16_bit_result_depends_on_the_target(execute, gfx, kept):
    out = execute(
        "v_add_u16_e32 v3, v1, v2" if gfx == "gfx942" else "v_add_nc_u16 v3, v1, v2",
        gfx=gfx,
        v={1: 2, 2: 3, 3: 0xABCD1234},
        out=["v3"],
    )
    assert out["v3"][0] == kept << 16 | 5


def test_operand_select_reads_and_writes_upper_halves(execute):
    body = "v_add_nc_u16 v3, v1, v2 op_sel:[1,0,1]"
    out = execute(body, gfx="gfx1201", v={1: 0x00070001, 2: 0x00010002, 3: 0x11112222}, out=["v3"])
    assert out["v3"][0] == 0x00092222


def test_half_registers_by_name(execute):
    out = execute(
        "v_add_nc_u16 v3.h, v1.h, v2.l", gfx="gfx1201", v={1: 0x00070001, 2: 0x00010002, 3: 0x11112222}, out=["v3"]
    )
    assert out["v3"][0] == 0x00092222


def test_fma_mix_of_half_and_single(execute):
    half = np.float16(1.5).view(np.uint16).astype(np.uint32) << np.uint32(16)
    v = {1: half, 2: np.float32(2.0), 3: np.float32(0.25), 4: 0x5555AAAA}
    select = "op_sel:[1,0,0] op_sel_hi:[1,0,0]"
    body = f"v_fma_mix_f32 v5, v1, v2, v3 {select}\nv_fma_mixhi_f16 v4, v1, v2, v3 {select}"
    out = execute(body, v=v, out=["v4", "v5"])
    assert out["v5"].view(np.float32)[0] == 3.25
    assert out["v4"][0] == int(np.float16(3.25).view(np.uint16)) << 16 | 0xAAAA


def test_scalar_transcendental_of_gfx12(execute):
    assert execute("v_s_rcp_f32 s6, s4", gfx="gfx1201", s={4: 0x40800000}, out=["s6"])["s6"] == 0x3E800000
