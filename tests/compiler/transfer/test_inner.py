"""Ops with a sample a leading row, products with weights, copies with some places replaced, and what is counted: shown
by a run.

Each row: a model, the seams it needs, the repairs that are said. Every row is replayed against eager under poison.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

A = torch.ops.aten
NONE: dict[str, str] = {}


def _codes(report):
    return {d.code: d.repair for d in report if d.code not in ("CW101", "CW301", "CW203")}


def _images(x):
    """Four features of a row as two channels of 4 by 4."""
    return (x[:, :, None] * torch.arange(1.0, 9.0)).view(-1, 2, 4, 4)


def _sequence(x):
    """Rows as positions: [1, 4, T]."""
    return x.t()[None]


def _square(x):
    return torch.eye(4) * 4 + x[:, :, None] * x[:, None, :] / 64


def _zeros_at(x):
    """Row 0 for every row."""
    return torch.zeros(x.shape[0], dtype=torch.int64)


SAMPLES = {
    "avg_pool2d": lambda x: F.avg_pool2d(_images(x), 2),
    "max_pool2d": lambda x: F.max_pool2d(_images(x), 2, return_indices=True),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(_images(x), 3),
    "nearest": lambda x: F.interpolate(_images(x), scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(_images(x), size=(3, 5), mode="bilinear"),
    "reflection pad": lambda x: F.pad(_images(x), (1, 1, 2, 1), mode="reflect"),
    "replication pad": lambda x: F.pad(_images(x), (1, 1, 2, 1), mode="replicate"),
    "grid sample": lambda x: F.grid_sample(_images(x), _images(x).tanh().view(-1, 4, 4, 2), align_corners=False),
    "im2col and back": lambda x: F.fold(F.unfold(_images(x), 2), (4, 4), 2),
    "pixel shuffle": lambda x: F.pixel_shuffle(_images(x).view(-1, 4, 4, 2), 2),
    "real transform": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=4, dim=1),
    "group norm": lambda x: F.group_norm(_images(x), 2, torch.ones(2), torch.zeros(2)),
    "batch norm with running statistics": lambda x: F.batch_norm(x, torch.ones(4), torch.ones(4) * 2),
    "inverse": lambda x: torch.linalg.inv_ex(_square(x)).inverse,
    "triangular system": lambda x: torch.linalg.solve_triangular(_square(x), x[:, :, None], upper=False),
    "one system for all rows": lambda x: torch.linalg.solve_triangular(torch.ones(4, 4), x.t(), upper=False),
    "cross product": lambda x: torch.linalg.cross(x[:, :3], x[:, 1:]),
    "distances": lambda x: torch.cdist(x, torch.eye(4)),
    "distances of all pairs": lambda x: torch.cdist(x, x),
    "dropout that drops nothing": lambda x: A.native_dropout(x, 0.5, False)[0] + 1,
    "mantissa and exponent": lambda x: torch.frexp(x),
    "windows that end at a row": lambda x: F.pad(x, (0, 0, 2, 0)).unfold(0, 3, 1) + 1,
    "windows of rows": lambda x: x.unfold(0, 2, 1).sum(-1),
    "edge before the first row": lambda x: F.pad(_sequence(x), (2, 0), mode="replicate")[..., :-2] + 1,
    "a feature replaced": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
    "some features replaced": lambda x: torch.slice_scatter(x, x[:, :2], 1, 1, 3),
    "the first row replaced": lambda x: torch.select_scatter(x, torch.ones(4), 0, 0),
    "all but the first row replaced": lambda x: torch.slice_scatter(x, x[1:] * 2, 0, 1),
    "pairs of features as complex numbers": lambda x: A.view_as_real(A.view_as_complex(x.view(-1, 2, 2)) * 2),
    "product and a vector": lambda x: A.addmm(torch.ones(4), x, torch.eye(4)),
    "products by row": lambda x: A.bmm(x.view(-1, 1, 4), x.view(-1, 4, 1)),
    "products by row and a number": lambda x: A.baddbmm(torch.ones(1), x.view(-1, 1, 4), x.view(-1, 4, 1)),
    "product with a vector": lambda x: A.addmv(torch.ones(1), x, torch.ones(4)),
    "linear": lambda x: A.linear(x, torch.eye(4), torch.ones(4)),
    "product of bytes": lambda x: A._int_mm(x.nan_to_num().clamp(-9, 9).char(), torch.ones(4, 8).char()),
    "new zeros": lambda x: A.new_zeros(x, [x.shape[0], 1]) + x,
    "new memory": lambda x: A.new_empty(x, [x.shape[0], 1]).fill_(2) + x,
    "new memory with strides": lambda x: A.new_empty_strided(x, [x.shape[0], 4], [4, 1]).copy_(x),
    "new numbers": lambda x: A.new_full(x, [x.shape[0], 1], 2.0) + x,
    "memory with strides": lambda x: A.empty_strided([x.shape[0], 4], [4, 1]).copy_(x),
    "memory in an order": lambda x: A.empty_permuted([x.shape[0], 4], [1, 0]).copy_(x),
}


@pytest.mark.parametrize("part", range(3))
def test_samples_stay_apart(part, make_case, replays):
    """Many results of one model: no seam, no repair, nothing said."""
    models = [fn for i, fn in enumerate(SAMPLES.values()) if i % 3 == part]
    report = replays(make_case(lambda x: [fn(x) for fn in models])).report
    assert not report.seams and not _codes(report), str(report)


MIXED = {
    "pool over rows": (lambda x: F.avg_pool1d(_sequence(x), 3, 1, 1), 1, "seam"),
    "transform over rows": (lambda x: torch.fft.fft(x, dim=0).real, 1, "seam"),
    "edge behind the last row": (lambda x: F.pad(_sequence(x), (0, 2), mode="replicate"), 0, "fill last"),
    "reflection over rows": (lambda x: F.pad(_sequence(x), (1, 1), mode="reflect"), 1, "seam"),
    "batch norm that trains": (lambda x: F.batch_norm(x, None, None, training=True), 1, "seam"),
    "windows at a stride": (lambda x: x.unfold(0, 2, 2).sum(-1), 1, "seam"),
    "the last row replaced": (lambda x: torch.select_scatter(x, torch.ones(4), 0, -1), 1, "seam"),
    "all but the last row replaced": (lambda x: torch.slice_scatter(x, x[1:] * 2, 0, 0, -1), 1, "seam"),
    "places of the first row replaced": (lambda x: A.as_strided_scatter(x, torch.ones(2), [2], [1]), 1, "seam"),
    "rows of a buffer replaced": (lambda x: torch.slice_scatter(torch.zeros(16, 4), x, 0, 0, x.shape[0]), 1, "seam"),
    "least and greatest": (lambda x: x.aminmax(dim=0), 0, "fill last"),
    "bins with bounds": (lambda x: torch.histc(x, 4, -6, 6), 0, "fill 18"),
    "bins without bounds": (lambda x: torch.histc(x, 4), 1, "seam"),
    "unknowns are rows": (lambda x: torch.linalg.solve_triangular((x @ x.t()).tril() + 1, x, upper=False), 1, "seam"),
    "dot of two features": (lambda x: A.dot(x[:, 0], x[:, 1]) + x, 0, "fill 0"),
    "norm of a feature": (lambda x: A.renorm(x, 2, 1, 1.0), 1, "seam"),
    "sums into one": (lambda x: torch.zeros(2, 4).index_add(0, _zeros_at(x), x), 0, "fill 0"),
    "sums into one by place": (
        lambda x: torch.zeros(2, 4).scatter_add(0, _zeros_at(x)[:, None].expand(-1, 4), x), 0, "fill 0",
    ),
    "gradient of a mean": (lambda x: A._adaptive_avg_pool2d_backward(torch.ones(1, 1, 1, 1), x[None, None]), 1, "seam"),
    "rows copied": (lambda x: torch.zeros(16, 4).index_copy(0, torch.arange(x.shape[0]), x), 0, "fill last"),
    "rows put by place": (
        lambda x: torch.zeros(16, 4).scatter(0, torch.arange(x.shape[0])[:, None].expand(-1, 4), x), 0, "fill last",
    ),
    "rows put": (lambda x: A._unsafe_index_put(torch.zeros(16, 4), [torch.arange(x.shape[0])], x), 0, "fill last"),
    "greatest into one by index": (
        lambda x: torch.zeros(2, 4).index_reduce(0, _zeros_at(x), x, "amax"), 0, "fill last",
    ),
    "distance over rows": (lambda x: torch.cdist(x.t(), x.t()), 1, "seam"),
    "products of rows into one": (
        lambda x: torch.zeros(2, 4).scatter(0, torch.zeros(x.shape, dtype=torch.int64), x, reduce="add"), 1, "seam",
    ),
    "greatest into one": (
        lambda x: torch.zeros(2, 4).scatter_reduce(0, torch.zeros(x.shape, dtype=torch.int64), x, "amax"), 0,
        "fill last",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_mix_are_filled_or_seams(name, make_case, replays):
    model, seams, repair = MIXED[name]
    report = replays(make_case(model)).report
    repairs = {d.repair for d in report if d.code not in ("CW102", "CW301")}
    assert bool(report.seams) is bool(seams) and repairs == {repair}, str(report)
    assert not [d for d in report if d.code == "CW001"], str(report)


def test_without_the_repair_each_of_them_is_wrong(make_case, differs):
    # Without bounds histc itself refuses what is no number; rows at a stride could not even be returned; a finite tail
    # stands behind the live rows of a lower system.
    left_out = ("bins without bounds", "windows at a stride", "unknowns are rows")
    names = [n for n in MIXED if not n.endswith("row replaced") and n not in left_out]
    result = differs(make_case(lambda x: [MIXED[n][0](x) for n in names]))
    wrong = {m.what for m in result.mismatches}
    outputs = torch.utils._pytree.tree_leaves([MIXED[n][0](torch.ones(3, 4)) for n in names])
    assert wrong >= {f"output {i}" for i in range(len(outputs))}, str(result)


@pytest.mark.parametrize("code", ["CW002", "CW104"])
def test_what_only_the_data_decides_is_said_once(code, make_case, replays):
    """A size, and what is drawn."""
    models = {
        "CW002": lambda x: A.nonzero(x > 1).sum() + x,
        "CW104": lambda x: A.multinomial(x.abs() + 1, 1) + x,
    }
    report = replays(make_case(models[code])).report
    assert {d.code: d.repair for d in report if d.code not in ("CW301", "CW502")} == {code: "seam"}, str(report)


def test_rows_of_a_group_stay_apart(make_case, replays):
    """Each row by its group's matrix; rows of 16 bytes, as the product asks for."""

    def model(x, ends):
        groups = torch.ones(2, 8, 8, dtype=torch.bfloat16)
        return A._grouped_mm(x.repeat(1, 2).bfloat16(), groups, offs=ends)

    steps = [{"x": torch.ones(t, 4), "ends": torch.tensor([1, t], dtype=torch.int32)} for t in (6, 5, 3)]
    report = replays(make_case(model, steps, {"ends": (2,)})).report
    assert not report.seams and not _codes(report), str(report)


def test_masked_scatter_takes_in_order_and_its_tail_takes_nothing(make_case, replays, differs):
    """Image features into the rows that hold images; a true tail of the mask would run past their end."""

    def model(x, image, features):
        return x.masked_scatter(image[:, None].expand(-1, 4), features)

    steps = []
    for tokens, images in ((6, 2), (5, 3), (3, 1)):
        image = torch.arange(tokens) < images
        steps.append({"x": torch.ones(tokens, 4), "image": image, "features": torch.arange(images * 4.0).view(-1, 4)})
    case = make_case(model, steps, {"image": ("T",), "features": ("M", 4)})
    report = replays(case).report
    assert not report.seams and _codes(report) == {"CW206": "fill False"}, str(report)


def test_rows_made_by_a_number_of_the_host_are_made_eagerly(make_case, replays):
    """With one request, its length is repeated to as many rows as the host says: recorded, that is the bucket."""

    def model(x, starts):
        lengths = starts[1:] - starts[:-1]
        if lengths.shape[0] == 1:
            return x * torch.arange(1).repeat_interleave(lengths, output_size=x.shape[0])[:, None] + x
        return x * 2

    steps = [{"x": torch.ones(t, 4) * t, "starts": torch.tensor([0, t])} for t in (6, 5, 3)]
    report = replays(make_case(model, steps, {"starts": ("R+1",)})).report
    assert [s.op for s in report.seams] == ["aten.repeat_interleave.Tensor"]


def test_groups_of_rows_each_by_a_matrix(make_case, replays):
    """Experts: rows sorted by expert, one product a group, put back; live rows come first once padded keys are last."""

    weight = torch.arange(128).view(2, 8, 8).bfloat16() / 16

    def model(x, expert):
        order = expert.argsort(stable=True)
        ends = torch.histc(expert.float(), 2, 0, 1).cumsum(0).to(torch.int32)
        y = torch._grouped_mm(torch.cat([x, x], 1).bfloat16()[order], weight, offs=ends)
        return torch.empty_like(y).index_copy(0, order, y)

    steps = [{"x": torch.arange(t * 4.0).view(t, 4) - t, "expert": torch.arange(t) * 5 % 2} for t in (6, 5, 3)]
    report = replays(make_case(model, steps, {"expert": ("T",)})).report
    assert not report.seams, str(report)


def test_experts_over_a_flattened_choice(make_case, replays, differs):
    """Top-k routing: keys are [T * k], sorted as one list and put back by the inverse order."""

    def model(x):
        weight, expert = torch.softmax(x, -1).topk(2)
        order = expert.view(-1).argsort(stable=True)
        y = x[order // 2] * (expert.view(-1)[order] + 1)[:, None]
        back = y[order.argsort()]
        return (back.view(-1, 2, 4) * weight[:, :, None]).sum(1)

    report = replays(make_case(model)).report
    assert not report.seams, str(report)
