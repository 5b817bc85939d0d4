"""Packed instructions: both halves of a register, both registers of a pair."""

import numpy as np
import pytest
import torch


def halves(seed, dtype):
    rng = np.random.default_rng(seed)
    if dtype == np.float16:
        return (rng.standard_normal((64, 2)) * 4).astype(np.float16)
    return rng.integers(0, 2**16, (64, 2)).astype(dtype)


def words(pairs):
    return np.ascontiguousarray(pairs).view(np.uint32)[:, 0]


@pytest.mark.parametrize(
    ("name", "dtype", "function"),
    [
        ("add_f16", np.float16, lambda a, b: a + b),
        ("mul_f16", np.float16, lambda a, b: a * b),
        ("max_f16", np.float16, np.maximum),
        ("add_u16", np.uint16, lambda a, b: a + b),
        ("sub_i16", np.int16, lambda a, b: a - b),
        ("mul_lo_u16", np.uint16, lambda a, b: a * b),
        ("min_i16", np.int16, np.minimum),
        ("max_u16", np.uint16, np.maximum),
        ("lshlrev_b16", np.uint16, lambda a, b: b << (a & 15)),
        ("ashrrev_i16", np.int16, lambda a, b: b >> (a & 15)),
    ],
)
def test_halves(execute, name, dtype, function):
    a, b = halves(1, dtype), halves(2, dtype)
    got = execute(f"v_pk_{name} v3, v1, v2", v={1: words(a), 2: words(b)}, out=["v3"])["v3"]
    np.testing.assert_array_equal(got, words(function(a, b).astype(dtype)))


def test_operand_select_crosses_halves_and_neg_flips_them(execute):
    a, b = halves(1, np.float16), halves(2, np.float16)
    body = "v_pk_add_f16 v3, v1, v2 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[0,1] neg_hi:[1,0]"
    got = execute(body, v={1: words(a), 2: words(b)}, out=["v3"])["v3"]
    np.testing.assert_array_equal(got, words(np.stack([a[:, 1] - b[:, 0], -a[:, 0] + b[:, 1]], 1)))


def test_inline_constant_has_an_empty_upper_half(execute):
    a = halves(1, np.float16)
    out = execute(
        "v_pk_add_f16 v3, v1, 1.0\nv_pk_add_f16 v4, v1, 1.0 op_sel_hi:[1,0]", v={1: words(a)}, out=["v3", "v4"]
    )
    np.testing.assert_array_equal(out["v3"], words(np.stack([a[:, 0] + np.float16(1), a[:, 1]], 1)))
    np.testing.assert_array_equal(out["v4"], words(a + np.float16(1)))


def test_pairs_of_singles(execute):
    a0, a1, b0, b1 = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    body = """v_pk_mul_f32 v[6:7], v[1:2], v[3:4] op_sel_hi:[1,0]
    v_pk_fma_f32 v[1:2], v[1:2], v[3:4], v[1:2] neg_lo:[0,1,0]"""
    out = execute(body, v={1: a0, 2: a1, 3: b0, 4: b1}, out=["v1", "v2", "v6", "v7"])
    np.testing.assert_array_equal(out["v6"].view(np.float32), a0 * b0)
    np.testing.assert_array_equal(out["v7"].view(np.float32), a1 * b0)
    exact = lambda x, y, z: (x.astype(float) * y + z).astype(np.float32)
    np.testing.assert_array_equal(out["v1"].view(np.float32), exact(a0, -b0, a0))
    np.testing.assert_array_equal(out["v2"].view(np.float32), exact(a1, b1, a1))


def test_packed_move_reads_both_sources_first(execute):
    body = "v_pk_mov_b32 v[1:2], v[1:2], v[1:2] op_sel:[1,0]"
    out = execute(body, v={1: 5, 2: 6}, out=["v1", "v2"])
    assert (out["v1"][0], out["v2"][0]) == (6, 5)


@pytest.mark.parametrize(("element", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_dot2_sums_both_products(execute, element, dtype):
    torch.manual_seed(0)
    a, b = (torch.randn(64, 2).to(dtype) for _ in range(2))
    c = torch.randn(64)
    bits = [t.view(torch.int16).numpy().view(np.uint16) for t in (a, b)]
    got = execute(
        f"v_dot2_f32_{element} v4, v1, v2, v3",
        gfx="gfx942",
        v={1: words(bits[0]), 2: words(bits[1]), 3: c.numpy()},
        out=["v4"],
    )
    want = ((a.double() * b.double()).sum(1) + c.double()).float().numpy()
    np.testing.assert_array_equal(got["v4"].view(np.float32), want)


def test_dot2_of_bfloats_rounds_to_a_bfloat_half(execute):
    torch.manual_seed(1)
    a, b = (torch.randn(32, 2).to(torch.bfloat16) for _ in range(2))
    bits = [t.view(torch.int16).numpy().view(np.uint16) for t in (a, b)]
    got = execute(
        "v_dot2_bf16_bf16 v3, v1, v2, 0",
        gfx="gfx1201",
        v={1: words(bits[0]), 2: words(bits[1]), 3: 0xABCD0000},
        out=["v3"],
    )
    want = (a.double() * b.double()).sum(1).float().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(got["v3"], want.astype(np.uint32) | np.uint32(0xABCD0000))
