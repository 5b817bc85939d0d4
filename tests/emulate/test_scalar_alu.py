"""Scalar instructions against Python integers: result and SCC."""

import pytest

M32, M64 = 2**32 - 1, 2**64 - 1
A, B = 0xDEADBEEF, 0x00000013  # a negative and a small positive number; B doubles as a shift amount


def signed(x, bits=32):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def field(x, offset, width):
    return (x >> offset) & ((1 << width) - 1)


ONE_REGISTER = [
    # instruction of (a, b) -> result, SCC (None: not touched)
    ("s_add_u32 s6, s4, s5", lambda a, b: (a + b, a + b > M32)),
    ("s_sub_u32 s6, s4, s5", lambda a, b: (a - b, a < b)),
    ("s_add_i32 s6, s4, s5", lambda a, b: (a + b, not -(2**31) <= signed(a) + signed(b) < 2**31)),
    ("s_sub_i32 s6, s4, s5", lambda a, b: (a - b, not -(2**31) <= signed(a) - signed(b) < 2**31)),
    ("s_mul_i32 s6, s4, s5", lambda a, b: (a * b, None)),
    ("s_mul_hi_u32 s6, s4, s5", lambda a, b: (a * b >> 32, None)),
    ("s_mul_hi_i32 s6, s4, s5", lambda a, b: (signed(a) * signed(b) >> 32, None)),
    ("s_and_b32 s6, s4, s5", lambda a, b: (a & b, a & b != 0)),
    ("s_or_b32 s6, s4, s5", lambda a, b: (a | b, a | b != 0)),
    ("s_xor_b32 s6, s4, s5", lambda a, b: (a ^ b, a ^ b != 0)),
    ("s_andn2_b32 s6, s4, s5", lambda a, b: (a & ~b, a & ~b != 0)),
    ("s_nor_b32 s6, s4, s5", lambda a, b: (~(a | b), ~(a | b) & M32 != 0)),
    ("s_not_b32 s6, s4", lambda a, b: (~a, a != M32)),
    ("s_lshl_b32 s6, s4, s5", lambda a, b: (a << (b & 31), (a << (b & 31)) & M32 != 0)),
    ("s_lshr_b32 s6, s4, s5", lambda a, b: (a >> (b & 31), a >> (b & 31) != 0)),
    ("s_ashr_i32 s6, s4, s5", lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0)),
    ("s_lshl2_add_u32 s6, s4, s5", lambda a, b: ((a << 2) + b, (a << 2) + b > M32)),
    ("s_min_i32 s6, s4, s5", lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b))),
    ("s_max_u32 s6, s4, s5", lambda a, b: (max(a, b), a > b)),
    ("s_abs_i32 s6, s4", lambda a, b: (abs(signed(a)), a != 0)),
    ("s_bfe_u32 s6, s4, 0x90003", lambda a, b: (field(a, 3, 9), field(a, 3, 9) != 0)),
    ("s_bfe_i32 s6, s4, 0x90003", lambda a, b: (signed(field(a, 3, 9), 9), field(a, 3, 9) != 0)),
    ("s_bfe_u32 s6, s4, 0x400003", lambda a, b: (a >> 3, a >> 3 != 0)),
    ("s_bfe_u32 s6, s4, 3", lambda a, b: (0, False)),
    ("s_bfm_b32 s6, s5, 3", lambda a, b: (((1 << (b & 31)) - 1) << 3, None)),
    ("s_brev_b32 s6, s4", lambda a, b: (int(f"{a:032b}"[::-1], 2), None)),
    ("s_ff1_i32_b32 s6, s4", lambda a, b: ((a & -a).bit_length() - 1, None)),
    ("s_flbit_i32_b32 s6, s4", lambda a, b: (32 - a.bit_length() if a else -1, None)),
    ("s_bcnt1_i32_b32 s6, s4", lambda a, b: (a.bit_count(), a != 0)),
    ("s_sext_i32_i8 s6, s4", lambda a, b: (signed(a, 8), None)),
    ("s_sext_i32_i16 s6, s4", lambda a, b: (signed(a, 16), None)),
    ("s_pack_ll_b32_b16 s6, s4, s5", lambda a, b: (a & 0xFFFF | b << 16, None)),
    ("s_pack_hh_b32_b16 s6, s4, s5", lambda a, b: (a >> 16 | b & 0xFFFF0000, None)),
    ("s_pack_lh_b32_b16 s6, s4, s5", lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, None)),
    ("s_cmp_lt_i32 s4, s5\ns_mov_b32 s6, 0", lambda a, b: (0, signed(a) < signed(b))),
    ("s_cmp_lt_u32 s4, s5\ns_mov_b32 s6, 0", lambda a, b: (0, a < b)),
    ("s_cmpk_eq_i32 s5, 0x13\ns_mov_b32 s6, 0", lambda a, b: (0, b == 0x13)),
    ("s_bitcmp1_b32 s4, 5\ns_mov_b32 s6, 0", lambda a, b: (0, a >> 5 & 1 == 1)),
    ("s_mov_b32 s6, s4\ns_bitset0_b32 s6, 1", lambda a, b: (a & ~2, None)),
    ("s_mov_b32 s6, s4\ns_bitset1_b32 s6, 4", lambda a, b: (a | 16, None)),
    ("s_movk_i32 s6, 0xfffe", lambda a, b: (-2, None)),
    ("s_mov_b32 s6, s4\ns_mulk_i32 s6, 0x7", lambda a, b: (a * 7, None)),
    ("s_mov_b32 s6, s4\ns_addk_i32 s6, 0xffff", lambda a, b: (a - 1, signed(a) == -(2**31))),
    ("s_cmp_eq_u32 s4, s4\ns_cselect_b32 s6, s4, s5", lambda a, b: (a, True)),
    ("s_cmp_lg_u32 s4, s4\ns_cselect_b32 s6, s4, s5", lambda a, b: (b, False)),
    ("s_mov_b32 s6, s5\ns_cmp_lg_u32 s4, s4\ns_cmov_b32 s6, s4", lambda a, b: (b, False)),
    ("s_cmp_eq_u32 0, 0\ns_addc_u32 s6, s4, s5", lambda a, b: (a + b + 1, a + b + 1 > M32)),
    ("s_cmp_eq_u32 0, 0\ns_subb_u32 s6, s4, s5", lambda a, b: (a - b - 1, a - b - 1 < 0)),
]


@pytest.mark.parametrize(
    ("text", "expected"), ONE_REGISTER, ids=[text.split()[0] + str(i) for i, (text, _) in enumerate(ONE_REGISTER)]
)
def test_result_and_scc(execute, text, expected):
    for a, b in ((A, B), (B, A), (0x7FFFFFFF, 1), (0x80000000, 0xFFFFFFFF), (0, 0), (M32, M32)):
        out = execute(f"s_cmp_lg_u32 0, 0\n{text}", s={4: a, 5: b}, out=["s6", "scc"])
        result, scc = expected(a, b)
        assert out["s6"] == result & M32, (hex(a), hex(b))
        if scc is not None:
            assert out["scc"] == scc, (hex(a), hex(b))


X, Y = 0x8123456789ABCDEF, 0x00FF00FF00FF0007
PAIRS = [
    ("s_and_b64 s[8:9], s[4:5], s[6:7]", lambda x, y: x & y),
    ("s_xnor_b64 s[8:9], s[4:5], s[6:7]", lambda x, y: ~(x ^ y)),
    ("s_not_b64 s[8:9], s[4:5]", lambda x, y: ~x),
    ("s_mov_b64 s[8:9], s[6:7]", lambda x, y: y),
    ("s_mov_b64 s[8:9], -5", lambda x, y: -5),
    ("s_lshl_b64 s[8:9], s[4:5], s6", lambda x, y: x << (y & 63)),
    ("s_lshr_b64 s[8:9], s[4:5], s6", lambda x, y: x >> (y & 63)),
    ("s_ashr_i64 s[8:9], s[4:5], s6", lambda x, y: signed(x, 64) >> (y & 63)),
    ("s_bfe_u64 s[8:9], s[4:5], 0x210005", lambda x, y: field(x, 5, 33)),
    ("s_bfe_i64 s[8:9], s[4:5], 0x210005", lambda x, y: signed(field(x, 5, 33), 33)),
    ("s_mul_u64 s[8:9], s[4:5], s[6:7]", lambda x, y: x * y),
    ("s_add_nc_u64 s[8:9], s[4:5], s[6:7]", lambda x, y: x + y),
    ("s_add_u32 s8, s4, s6\ns_addc_u32 s9, s5, s7", lambda x, y: x + y),
    ("s_sub_u32 s8, s4, s6\ns_subb_u32 s9, s5, s7", lambda x, y: x - y),
    ("s_flbit_i32_b64 s8, s[6:7]\ns_mov_b32 s9, 0", lambda x, y: 64 - y.bit_length()),
    ("s_ff1_i32_b64 s8, s[6:7]\ns_mov_b32 s9, 0", lambda x, y: (y & -y).bit_length() - 1),
    ("s_bcnt1_i32_b64 s8, s[4:5]\ns_mov_b32 s9, 0", lambda x, y: x.bit_count()),
    ("s_cmp_eq_u32 0, 0\ns_cselect_b64 s[8:9], s[4:5], s[6:7]", lambda x, y: x),
]


@pytest.mark.parametrize(
    ("text", "expected"), PAIRS, ids=[text.split()[0] + str(i) for i, (text, _) in enumerate(PAIRS)]
)
def test_pairs(execute, text, expected):
    for x, y in ((X, Y), (Y, X)):
        out = execute(text, s={4: x, 5: x >> 32, 6: y, 7: y >> 32}, out=["s8", "s9"])
        assert out["s8"] | out["s9"] << 32 == expected(x, y) & M64


def test_scc_of_a_minimum_is_taken_before_the_target_is_written(execute):
    out = execute("s_min_u32 s5, s4, s5", s={4: 3, 5: 7}, out=["s5", "scc"])
    assert out == {"s5": 3, "scc": 1}


def test_saveexec_keeps_the_old_mask_and_narrows_the_new(execute):
    body = "s_and_saveexec_b64 s[8:9], s[4:5]\nv_mov_b32_e32 v1, 1"
    out = execute(body, v={1: 0}, s={4: 0b1010, 5: 0}, out=["v1", "s8", "s9", "scc"])
    assert out["v1"].tolist() == [0, 1, 0, 1] + [0] * 60
    assert (out["s8"], out["s9"], out["scc"]) == (M32, M32, 1)


def test_saveexec_of_one_word_on_wave32(execute):
    out = execute(
        "s_and_saveexec_b32 s8, s4\nv_mov_b32_e32 v1, 1", gfx="gfx1201", v={1: 0}, s={4: 0}, out=["v1", "s8", "scc"]
    )
    assert not out["v1"].any() and (out["s8"], out["scc"]) == (M32, 0)


def test_wrexec_gives_back_the_new_mask(execute):
    out = execute("s_andn2_wrexec_b64 s[8:9], s[4:5]", s={4: 0b1110, 5: 0}, out=["s8", "s9"])
    assert (out["s8"], out["s9"]) == (0, 0)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("s_add_f32 s6, s4, s5", 0x40600000),
        ("s_fmac_f32 s6, s4, s5", 0x40A00000),
        ("s_fmamk_f32 s6, s4, 0x40000000, s5", 0x40A00000),
        ("s_cvt_i32_f32 s6, s4", 1),
        ("s_max_num_f32 s6, s4, s5", 0x40000000),
    ],
)
def test_scalar_floating_point(execute, text, bits):
    """s4 is 1.5, s5 is 2.0, s6 is 2.0 before."""
    out = execute(text, gfx="gfx1201", s={4: 0x3FC00000, 5: 0x40000000, 6: 0x40000000}, out=["s6"])
    assert out["s6"] == bits


def test_branches_follow_their_condition(execute):
    for condition, setup, taken in (
        ("scc1", "s_cmp_eq_u32 0, 0", True),
        ("scc0", "s_cmp_eq_u32 0, 0", False),
        ("vccz", "s_mov_b64 vcc, 0", True),
        ("vccnz", "s_mov_b64 vcc, 1", True),
        ("execz", "s_nop 0", False),
        ("execnz", "s_nop 0", True),
    ):
        body = f"s_mov_b32 s6, 1\n{setup}\ns_cbranch_{condition} .LBB0_1\ns_mov_b32 s6, 2\n.LBB0_1:"
        assert execute(body, out=["s6"])["s6"] == (1 if taken else 2), condition
