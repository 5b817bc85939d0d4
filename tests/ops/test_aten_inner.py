"""Rows of the ATen table with a sample a leading row, run: a tail of anything stays in its rows, and every inner
dimension that a row calls mixed does mix."""

from __future__ import annotations

import math

import pytest
import torch

from capwise.ops import aten

A = torch.ops.aten
LIVE, PADDED = 3, 5


def _samples(rows, *shape):
    """Samples [rows, *shape], all values different."""
    return (torch.arange(1.0, rows * math.prod(shape) + 1) * 0.37 % 5).view(rows, *shape)


def _systems(x):
    """Well-conditioned symmetric matrices."""
    return x @ x.transpose(1, 2) + torch.eye(x.shape[-1]) * 9


# The shape of a sample, and the call.
INNER = {
    "avg_pool1d": ((2, 6), lambda x: A.avg_pool1d(x, [2])),
    "adaptive_avg_pool1d": ((2, 6), lambda x: A.adaptive_avg_pool1d(x, [4])),
    "max_pool1d_with_indices": ((2, 6), lambda x: A.max_pool1d_with_indices(x, [2])),
    "upsample_nearest1d": ((2, 4), lambda x: A.upsample_nearest1d(x, [7])),
    "upsample_linear1d": ((2, 4), lambda x: A.upsample_linear1d(x, [7], False)),
    "reflection_pad1d": ((2, 4), lambda x: A.reflection_pad1d(x, [1, 2])),
    "replication_pad1d": ((2, 4), lambda x: A.replication_pad1d(x, [1, 2])),
    "avg_pool2d": ((2, 4, 4), lambda x: A.avg_pool2d(x, [2, 2])),
    "_adaptive_avg_pool2d": ((2, 4, 4), lambda x: A._adaptive_avg_pool2d(x, [3, 2])),
    "max_pool2d_with_indices": ((2, 4, 4), lambda x: A.max_pool2d_with_indices(x, [2, 2])),
    "adaptive_max_pool2d": ((2, 4, 4), lambda x: A.adaptive_max_pool2d(x, [3, 2])),
    "upsample_nearest2d": ((2, 4, 4), lambda x: A.upsample_nearest2d(x, [5, 6])),
    "_upsample_nearest_exact2d": ((2, 4, 4), lambda x: A._upsample_nearest_exact2d(x, [5, 6])),
    "upsample_bilinear2d": ((2, 4, 4), lambda x: A.upsample_bilinear2d(x, [5, 6], False)),
    "upsample_bicubic2d": ((2, 4, 4), lambda x: A.upsample_bicubic2d(x, [5, 6], False)),
    "_upsample_bilinear2d_aa": ((2, 4, 4), lambda x: A._upsample_bilinear2d_aa(x, [3, 3], False)),
    "_upsample_bicubic2d_aa": ((2, 4, 4), lambda x: A._upsample_bicubic2d_aa(x, [3, 3], False)),
    "reflection_pad2d": ((2, 4, 4), lambda x: A.reflection_pad2d(x, [1, 2, 0, 1])),
    "replication_pad2d": ((2, 4, 4), lambda x: A.replication_pad2d(x, [1, 2, 0, 1])),
    "linalg_inv_ex": ((3, 3), lambda x: A.linalg_inv_ex(_systems(x))[0]),
    "linalg_cholesky_ex": ((3, 3), lambda x: A.linalg_cholesky_ex(_systems(x))[0]),
    "_linalg_solve_ex": ((3, 3), lambda x: A._linalg_solve_ex(_systems(x), x)[0]),
    "linalg_lu_factor_ex": ((3, 3), lambda x: A.linalg_lu_factor_ex(_systems(x))[0]),
    "linalg_qr": ((3, 3), lambda x: A.linalg_qr(_systems(x))),
    "_linalg_det": ((3, 3), lambda x: A._linalg_det(_systems(x))[0]),
    "_linalg_eigh": ((3, 3), lambda x: A._linalg_eigh(_systems(x).nan_to_num(0, 0, 0))[0]),
    "_linalg_svd": ((3, 3), lambda x: A._linalg_svd(_systems(x).nan_to_num(0, 0, 0))[1]),
    "avg_pool3d": ((2, 2, 4, 4), lambda x: A.avg_pool3d(x, [2, 2, 2])),
    "_adaptive_avg_pool3d": ((2, 2, 4, 4), lambda x: A._adaptive_avg_pool3d(x, [1, 3, 2])),
    "max_pool3d_with_indices": ((2, 2, 4, 4), lambda x: A.max_pool3d_with_indices(x, [2, 2, 2])),
    "upsample_nearest3d": ((2, 2, 3, 3), lambda x: A.upsample_nearest3d(x, [3, 4, 5])),
    "upsample_trilinear3d": ((2, 2, 3, 3), lambda x: A.upsample_trilinear3d(x, [3, 4, 5], False)),
    "reflection_pad3d": ((2, 3, 3, 3), lambda x: A.reflection_pad3d(x, [1, 1, 0, 1, 2, 0])),
    "replication_pad3d": ((2, 3, 3, 3), lambda x: A.replication_pad3d(x, [1, 1, 0, 1, 2, 0])),
    "pixel_shuffle": ((4, 2, 2), lambda x: A.pixel_shuffle(x, 2)),
    "pixel_unshuffle": ((1, 4, 4), lambda x: A.pixel_unshuffle(x, 2)),
    "channel_shuffle": ((4, 2, 2), lambda x: A.channel_shuffle(x, 2)),
    "grid_sampler_2d": ((2, 4, 4), lambda x: A.grid_sampler_2d(x, x.view(-1, 4, 4, 2).tanh(), 0, 0, False)),
    "grid_sampler_3d": ((3, 2, 2, 2), lambda x: A.grid_sampler_3d(x, x.view(-1, 2, 2, 2, 3).tanh(), 0, 0, False)),
    "im2col": ((2, 4, 4), lambda x: A.im2col(x, [2, 2], [1, 1], [0, 0], [1, 1])),
    "col2im": ((8, 4), lambda x: A.col2im(x, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2])),
    "_fft_r2c": ((6,), lambda x: A._fft_r2c(x, [1], 0, True).abs()),
    "_fft_c2c": ((6,), lambda x: A._fft_c2c(x.to(torch.complex64), [1], 0, True).abs()),
    "_fft_c2r": ((6,), lambda x: A._fft_c2r(x.to(torch.complex64), [1], 0, 10)),
    "linalg_cross": ((3,), lambda x: A.linalg_cross(x, x + 1, dim=1)),
    "native_group_norm": ((4, 3), lambda x: A.native_group_norm(x, None, None, len(x), 4, 3, 2, 1e-5)[0]),
}


def _parts(result):
    return [p for p in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(p, torch.Tensor)]


def _same_rows(got, want):
    pairs = list(zip(_parts(got), _parts(want), strict=True))
    return all(torch.allclose(g[: len(w)].double(), w.double(), equal_nan=True) for g, w in pairs)


def test_every_row_of_the_family_is_run():
    assert set(INNER) == {n for n, row in aten.TABLE.items() if row.family == "inner"}


@pytest.mark.parametrize("name", INNER)
def test_samples_do_not_see_each_other(name):
    shape, fn = INNER[name]
    x = _samples(LIVE, *shape)
    for value in (math.nan, 1e6, -3.0):
        padded = torch.cat([x, torch.full((PADDED - LIVE, *shape), value)])
        assert _same_rows(fn(padded), fn(x)), value


@pytest.mark.parametrize("name", INNER)
def test_what_a_row_calls_mixed_does_mix(name):
    """One inner element changed: some result changes at another place of the same sample, and none of another."""
    shape, fn = INNER[name]
    x = _samples(LIVE, *shape)
    changed = x.clone()
    changed[1].view(-1)[0] += 9.0
    moved = [(g.double() - w.double()).abs().flatten(1) if g.dim() > 1 else (g - w).abs().view(-1, 1)
             for g, w in zip(_parts(fn(changed)), _parts(fn(x)))]  # fmt: skip
    assert not any(bool((m[[0, 2]] > 0).any()) for m in moved)
    assert any(bool((m[1] > 0).any()) for m in moved)


def test_a_batch_norm_that_trains_mixes_samples_and_one_that_does_not_does_not():
    x, garbage = _samples(LIVE, 2, 3), torch.full((2, 2, 3), 7.0)
    stats = (torch.ones(2), torch.ones(2))

    def norm(x, training):
        return A.native_batch_norm(x, None, None, *(s.clone() for s in stats), training, 0.1, 1e-5)[0]

    assert _same_rows(norm(torch.cat([x, garbage]), False), norm(x, False))
    assert not _same_rows(norm(torch.cat([x, garbage]), True), norm(x, True))
    legit = A._native_batch_norm_legit_no_training(x, None, None, *stats, 0.1, 1e-5)[0]
    assert _same_rows(legit, norm(x, False))


def test_the_last_row_again_leaves_the_extremes():
    x = _samples(LIVE, 4)
    assert aten.TABLE["aminmax"].neutral == "last"
    for value, same in ((x[-1:], True), (torch.full((1, 4), 99.0), False)):
        got, want = (A.aminmax(y, dim=0) for y in (torch.cat([x, value.expand(2, 4)]), x))
        assert all(torch.equal(a, b) for a, b in zip(got, want)) is same


def test_what_lies_above_the_bins_is_counted_nowhere():
    x = _samples(LIVE, 4)
    for value, same in ((5.0 + 5.0, True), (5.0, False), (0.0, False)):
        padded = torch.cat([x, torch.full((2, 4), value)])
        assert torch.equal(A.histc(padded, 4, 0, 5), A.histc(x, 4, 0, 5)) is same
    assert not torch.equal(A.histc(torch.cat([x, torch.full((2, 4), 10.0)]), 4), A.histc(x, 4))


def test_a_triangular_system_keeps_a_tail_of_columns_but_not_one_of_unknowns():
    a, b = _systems(_samples(2, 4, 4)), _samples(2, 4, 3)

    def solve(a, b, upper):
        return A.linalg_solve_triangular(a, b, upper=upper)

    columns = torch.cat([b, torch.full((2, 4, 2), math.nan)], 2)
    assert torch.equal(solve(a, columns, True)[..., :3], solve(a, b, True))
    assert not torch.allclose(solve(a, b, True)[:, :2], solve(a[:, :2, :2], b[:, :2], True))


def test_runs_of_rows_by_a_matrix_each_leave_the_rest_unwritten():
    x, weight = _samples(6, 16).bfloat16(), _samples(2, 16, 8).bfloat16()
    ends = torch.tensor([2, 4], dtype=torch.int32)
    y = A._grouped_mm(x, weight, ends)
    for rows, matrix in ((slice(0, 2), 0), (slice(2, 4), 1)):
        torch.testing.assert_close(y[rows], x[rows] @ weight[matrix])
    noisy = torch.cat([x[:4], torch.full((2, 16), math.nan).bfloat16()])
    assert torch.equal(A._grouped_mm(noisy, weight, ends)[:4], y[:4])


def test_a_masked_scatter_takes_elements_in_flat_order():
    x, source = torch.zeros(4, 2), torch.arange(1.0, 7.0).view(3, 2)
    mask = torch.tensor([True, False, True, False])[:, None].expand(4, 2)
    want = torch.tensor([[1.0, 2], [0, 0], [3, 4], [0, 0]])
    assert torch.equal(A.masked_scatter(x, mask, source), want)
    padded = torch.cat([mask, torch.zeros(2, 2, dtype=torch.bool)])
    assert torch.equal(A.masked_scatter(torch.zeros(6, 2), padded, source)[:4], want)
    wrong = torch.cat([torch.ones(1, 2, dtype=torch.bool), mask])
    assert not torch.equal(A.masked_scatter(torch.zeros(5, 2), wrong, source)[1:], want)


def test_patches_change_the_places_they_name():
    x = _samples(4, 3)
    assert torch.equal(A.slice_scatter(x, x[1:] * 2, 0, 1)[1:], x[1:] * 2)
    assert torch.equal(A.select_scatter(x, torch.ones(3), 0, 2)[2], torch.ones(3))
    assert torch.equal(A.diagonal_scatter(x, torch.ones(3)).diagonal(), torch.ones(3))
    assert torch.equal(A.as_strided_scatter(x, torch.ones(2), [2], [3])[:2, 0], torch.ones(2))
    assert {n for n, row in aten.TABLE.items() if row.family == "patch"} == {
        "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", "masked_scatter",
    }  # fmt: skip


def test_distances_of_pairs_see_only_their_two_rows():
    x, y = _samples(LIVE, 4), _samples(2, 4) + 0.5
    padded = torch.cat([x, torch.full((2, 4), math.nan)])
    assert torch.allclose(A._cdist_forward(padded, y, 2.0, None)[:LIVE], torch.cdist(x, y))


@pytest.mark.parametrize("reduce", ["amax", "amin", "prod", "sum", "mean"])
def test_only_extremes_may_be_written_twice(reduce):
    """What a scatter writes again counts again, but for the greatest and the least."""
    x, index = _samples(LIVE, 2), torch.tensor([[0, 1], [1, 1], [2, 0]])
    again = [torch.cat([t, t[-1:]]) for t in (index, x)]
    target = torch.full((3, 2), 1.5)
    got, want = (A.scatter_reduce(target, 0, i, s, reduce) for i, s in (again, (index, x)))
    assert torch.equal(got, want) is (reduce in ("amax", "amin"))
