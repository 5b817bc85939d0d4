"""What is compiled is read off a launch: types, compiled-in values, what is known of arguments. Grids are formulas."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from capwise.lower.grids import GridError, fit_grid
from capwise.lower.launches import spec_of
from capwise.lower.recorded import Recorded, catalogue, launches_of
from capwise.ops.launch import jit
from capwise.ops.samples import SMALL


@jit
def _axpy(x_ptr, y_ptr, tokens, stride, wide, scale, flag, absent, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at * stride, mask=at < tokens) * scale, mask=at < tokens)


@triton.jit
def _any_grid(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, n)


def bound(**changes) -> dict:
    x = torch.zeros(64, dtype=torch.float16)
    usual = {"x_ptr": x, "y_ptr": torch.zeros(64), "tokens": 16, "stride": 1, "wide": 2**40, "scale": 2.0}
    return {**usual, "flag": True, "absent": None, "BLOCK": 32, "num_warps": 8, "num_stages": 1, **changes}


def test_types_constants_and_what_is_known():
    spec = spec_of(_axpy, bound())
    assert spec.signature == {
        "x_ptr": "*fp16", "y_ptr": "*fp32", "tokens": "i32", "wide": "i64", "scale": "fp32", "flag": "i1",
    }  # fmt: skip
    assert spec.constexprs == {"stride": 1, "absent": None, "BLOCK": 32}
    aligned, small = ("tt.divisibility", 16), ("tt.pointer_range", 32)
    assert spec.attrs == {"x_ptr": [aligned, small], "y_ptr": [aligned, small], "wide": [aligned]}
    assert (spec.num_warps, spec.num_stages) == (8, 1)


def test_an_address_that_is_not_aligned_and_a_number_that_is():
    spec = spec_of(_axpy, bound(x_ptr=torch.zeros(64)[1:], stride=48))
    assert spec.attrs["x_ptr"] == [("tt.pointer_range", 32)] and spec.attrs["stride"] == [("tt.divisibility", 16)]


def test_a_count_is_never_compiled_in():
    spec = spec_of(_axpy, bound(tokens=1))
    assert spec.signature["tokens"] == "i32" and "tokens" not in spec.attrs


def test_plain_knows_nothing():
    spec = spec_of(_axpy, bound(), specialise=False)
    assert not spec.attrs and spec.constexprs == {"absent": None, "BLOCK": 32} and spec.signature["stride"] == "i32"


def test_an_argument_without_a_type_is_refused():
    with pytest.raises(ValueError, match="scale: expected a tensor, a number or None; got str"):
        spec_of(_axpy, bound(scale="2"))


def test_what_is_known_of_an_integer_holds_at_every_extent():
    one, other = bound(stride=32), bound(stride=33)
    assert spec_of(_axpy, one).attrs["stride"] == [("tt.divisibility", 16)]
    assert "stride" not in spec_of(_axpy, one, others=[other]).attrs
    assert spec_of(_axpy, bound()).constexprs["stride"] == 1
    assert spec_of(_axpy, bound(), others=[other]).signature["stride"] == "i32"


# ------------------------------------------------------------------------------------------------ grids
def launches(grid, *extents, **constants) -> list[Recorded]:
    """Launches of a kernel whose grid is a function of T, R and a tile size that depends on T."""
    seen = []
    for tokens, requests in extents:
        tile = min(16, tokens)
        found = {"x_ptr": torch.zeros(1), "n": 40, "BLOCK": tile, **constants}
        seen.append(Recorded(_any_grid, grid(tokens, requests, tile), found, {"T": tokens, "R": requests}))
    return seen


MANY = ((96, 5), (8, 3), (61, 11))


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        (lambda t, r, b: (-(-t // b), 7), ("cdiv(T, BLOCK)", "7")),
        (lambda t, r, b: (t, r, 1), ("T", "R", "1")),
        (lambda t, r, b: (-(-40 * t // b),), ("cdiv(40 * T, BLOCK)",)),
        (lambda t, r, b: (-(-40 // b), 40 * r), ("cdiv(40, BLOCK)", "40 * R")),
        (lambda t, r, b: (t // b + r,), ("T // BLOCK + R",)),
        (lambda t, r, b: (min(r, t // b),), ("min(R, T // BLOCK)",)),
        (lambda t, r, b: (t // b + min(r, t // b),), ("T // BLOCK + min(R, T // BLOCK)",)),
        (lambda t, r, b: (min(40 * t // b + 70, 40 * t),), ("40 * T // BLOCK + 70",)),
        (lambda t, r, b: (min(40 * t // b + 350, 40 * t),), ("min(40 * T // BLOCK + 350, 40 * T)",)),
    ],
)
def test_a_grid_is_found_as_a_formula(grid, expected):
    assert fit_grid(launches(grid, *MANY)) == expected


def test_a_grid_that_no_formula_gives_is_said():
    with pytest.raises(GridError, match=r"grid of _any_grid: no expression in T, R gives dimension 0 .*\{'T': 8, 'R'"):
        fit_grid(launches(lambda t, r, b: (t * t,), *MANY))


def test_launches_at_one_extent_tell_nothing():
    with pytest.raises(GridError, match="grid of _any_grid: R took one value only"):
        fit_grid(launches(lambda t, r, b: (t,), (8, 3), (9, 3)))


def test_the_grids_of_the_shipped_kernels():
    found = {name: fit_grid(seen) for name, seen in catalogue(SMALL, ((96, 6), (50, 3), (23, 6), (2, 1))).items()}
    assert found == {
        "_ngram_ids_kernel": ("cdiv(T, BLOCK)",),
        "_predecessors_kernel": ("1",),
        "_ngram_hash_kernel": ("cdiv(T, BLOCK)",),
        "_table_gather_kernel": ("cdiv(4 * T, BLOCK_N)",),
        "_ple_gate_kernel": ("2", "cdiv(T, TOKENS)"),
        "_short_conv_kernel": ("cdiv(T, BLOCK_T)", "1"),
        "_short_conv_state_kernel": ("R", "1"),
        "_short_conv_kernel#2": ("cdiv(T, BLOCK_T)", "1"),
        "_short_conv_state_kernel#2": ("R", "1"),
        "_table_gather_fp8_kernel": ("cdiv(4 * T, BLOCK_N)",),
        "_gdn_step_kernel": ("R", "2", "1"),
        "_gdn_solve_kernel": ("T // CHUNK + min(R, T // LEAST)", "2"),
        "_gdn_chunk_kernel": ("min(R, T // LEAST)", "2", "1"),
        "_hc_norm_kernel": ("cdiv(T, BLOCK_T)", "2"),
        "_hc_mix_kernel": ("cdiv(T, BLOCK_T)", "1"),
        "_hc_write_kernel": ("cdiv(T, BLOCK_T)", "1"),
        "_moe_route_kernel": ("cdiv(T, BLOCK_T)",),
        "_moe_count_kernel": ("6",),
        "_moe_place_kernel": ("6",),
        "_moe_gate_up_kernel": ("min(2 * T // TILE + 6, 2 * T)", "1"),
        "_moe_down_kernel": ("min(2 * T // TILE + 6, 2 * T)", "1"),
        "_moe_sum_kernel": ("cdiv(T, K)", "1"),
        "_w8a8_quantise_kernel": ("cdiv(T, BLOCK_T)",),
        "_w8a8_product_kernel": ("cdiv(T, BLOCK_T)", "1"),
        "_align_shift_kernel": ("cdiv(48, BLOCK_C)",),
        "_align_copy_kernel": ("1",),
        "_token_requests_kernel": ("1",),
        "_slot_mapping_kernel": ("1",),
        "_mrope_kernel": ("cdiv(T, BLOCK_T)", "1"),
        "_mrope_kv_write_kernel": ("cdiv(T, BLOCK_T)", "2"),
        "_qsa_compress_kernel": ("cdiv(T, BLOCK_T)",),
        "_qsa_commit_kernel": ("cdiv(T, BLOCK_T)",),
        "_qsa_scores_kernel": ("cdiv(T, STEP)", "1"),
        "_top_blocks_kernel": ("T",),
        "_seen_slots_kernel": ("T",),
        "_sparse_attention_kernel": ("T", "2", "1"),
        "_logits_rows_kernel": ("4 * R", "1"),
    }


def test_recording_runs_nothing():
    x = torch.zeros(4)
    (seen,) = launches_of(lambda: _any_grid[lambda meta: (meta["n"] - 1,)](x, 3, BLOCK=4), {"T": 3})
    assert (seen.name, seen.grid, seen.extents) == ("_any_grid", (2,), {"T": 3}) and not x.any()
