"""Table rows of every token: the kernels against the references; tables of 8-bit floats."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.table_gather import (
    FP8,
    fp8_dtype,
    ple_table_gather,
    ple_table_gather_fp8,
    quantise_table,
    to_fnuz,
)


@settings(max_examples=20, deadline=None, database=None)
@given(tokens=st.integers(0, 9), heads=st.integers(1, 5), width=st.integers(1, 9), seed=st.integers(0, 999))
def test_kernel_equals_reference(tokens, heads, width, seed, strided):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(11, width, generator=generator).to((torch.float32, torch.float16)[seed % 2])
    ids = torch.randint(-2, 13, (tokens, heads), generator=generator)
    args = strided(ids, seed), strided(table, seed + 1)
    reference = ple_table_gather(*args)
    with compat.interpreted():
        kernel = ple_table_gather(*args)
    assert torch.equal(reference, kernel) and reference.shape == (tokens, heads * width)


def test_rows_stand_side_by_side_and_ids_outside_the_table_read_as_zeros():
    table = torch.arange(6.0).view(3, 2)
    ids = torch.tensor([[2, 0], [3, -1], [1, 2**62]])
    assert ple_table_gather(ids, table).tolist() == [[4, 5, 0, 1], [0, 0, 0, 0], [2, 3, 0, 0]]


# ------------------------------------------------------------------------------------------------------------- 8 bits
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_bit_pattern_means_what_the_format_says(dtype, strided):
    """All 256 bytes, NaN and both zeros among them, and a scale, in a table that is a strided view."""
    table = strided(torch.arange(256, dtype=torch.uint8).view(32, 8), 3).view(dtype)
    ids, scale = torch.cat([torch.arange(32), torch.tensor([-1, 32])]).view(17, 2), torch.tensor(0.3)
    for out in (torch.float32, torch.float16):
        want = torch.cat([table.float() * scale, torch.zeros(2, 8)]).to(out).view(17, 16)
        for context in (compat.interpreted(), torch.no_grad()):
            with context:
                got = ple_table_gather_fp8(ids, table, scale, out)
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_the_same_table_in_the_other_format():
    """Values as they were, NaN as NaN, -0 as 0."""
    bits = torch.arange(256, dtype=torch.uint8).view(32, 8)
    ocp, scale = bits.view(FP8[0]), torch.tensor(0.3)
    fnuz, other = to_fnuz(ocp, scale)
    torch.testing.assert_close(fnuz.float() * other, ocp.float() * scale, rtol=0, atol=0, equal_nan=True)


def test_a_table_is_quantised_with_one_scale():
    table = torch.randn(50, 16) * 7
    for dtype in FP8:
        steps, scale = quantise_table(table, dtype)
        assert steps.float().abs().max() == torch.finfo(dtype).max and scale.shape == ()
        assert ((steps.float() * scale - table).abs() <= table.abs() / 16 + 1e-3).all()
    assert fp8_dtype("gfx942:sramecc+:xnack-") == FP8[1]
    assert {fp8_dtype(arch) for arch in ("", "gfx950", "gfx1201", "sm_90")} == {FP8[0]}


def test_what_is_no_table_of_one_scale_is_refused(raises):
    ids, table = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(2, 2).to(FP8[0])
    with raises("ple_table_gather_fp8: table: expected one of"):
        ple_table_gather_fp8(ids, table.float(), torch.ones(()), torch.float32)
    with raises("ple_table_gather_fp8: scale: expected one number; got (2,)"):
        ple_table_gather_fp8(ids, table, torch.ones(2), torch.float32)
    with raises("quantise_table: dtype"):
        quantise_table(table.float(), torch.float16)
    with raises("to_fnuz: table"):
        to_fnuz(table.float(), torch.ones(()))
