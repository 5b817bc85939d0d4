"""One op family after another: what its padded rows do is what a run shows.

Each row: a model, the seams it needs, the repairs that are said. Every row is replayed against eager under poison.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import capwise.ops  # noqa: F401  registers the ops
from capwise import Live

NONE: dict[str, str] = {}


def _codes(report):
    return {d.code: d.repair for d in report if d.code not in ("CW101", "CW301", "CW203", "CW502")}


def _heads(x):
    return x.view(-1, 2, 2).transpose(0, 1)


def _marks_last(x):
    """A tail that repeats the last row is right for who reads it, and not for who writes it."""
    marked = x.clone()
    marked[-1] = 0.25
    return marked, x[x.shape[0] - 1] + 0


ELEMENTWISE = {
    "broadcast against a row": (lambda x: x + x[0], 0, NONE),
    "where on rows": (lambda x: torch.where(x > 0, x, torch.zeros(())), 0, NONE),
    "type conversions": (lambda x: x.to(torch.int32).float().half().float(), 0, NONE),
    "maximum of two": (lambda x: torch.maximum(x, x * 2), 0, NONE),
    "in place on a temporary": (lambda x: (x * 2).add_(1).clamp_(-1, 1), 0, NONE),
    "out argument": (lambda x: torch.mul(x, 2, out=torch.empty_like(x)), 0, NONE),
    "masked_fill by values": (lambda x: x.masked_fill(x > 1, 0.0), 0, NONE),
    "outer product of rows": (lambda x: x[:, None, 0] * x[None, :, 0], 0, NONE),
    "zero times the tail": (lambda x: (x * 0).sum(0) + x, 0, {"CW202": "fill 0"}),
    "cosine of a filled tail": (lambda x: torch.cos(x).sum(0) + x, 0, {"CW202": "fill 0"}),
}
VIEWS = {
    "transposed": (lambda x: x.t() + 1, 0, NONE),
    "split of features": (lambda x: torch.cat(x.split(2, 1)[::-1], 1), 0, NONE),
    "expand": (lambda x: x[:, None].expand(-1, 3, -1) * 2, 0, NONE),
    "unbind features": (lambda x: x.unbind(1)[2] + 1, 0, NONE),
    "stack": (lambda x: torch.stack([x, x * 2], 1), 0, NONE),
    "repeat of features": (lambda x: x.repeat(1, 2) + 1, 0, NONE),
    "previous row": (lambda x: F.pad(x, (0, 0, 1, 0))[:-1] + x, 0, NONE),
    "all but the first row": (lambda x: F.pad(x, (0, 0, 2, 0))[2:] * 2, 0, NONE),
    "last row": (lambda x: x * x[-1], 0, {"CW201": "fill last"}),
    "last row of a computed value": (lambda x: x * x.exp()[x.shape[0] - 1], 0, {"CW202": "fill last"}),
    "last row written, and read from the input": (_marks_last, 1, {"CW201": "fill last", "CW202": "seam"}),
    "every second row": (lambda x: x[::2] + 1, 1, {"CW202": "seam"}),
    "a row from the end": (lambda x: x + x[-2:].sum(), 1, {"CW202": "seam"}),
    "next row": (lambda x: torch.cat([x[1:], x[:1]]) + 1, 0, NONE),
    "triangle of rows": (lambda x: (x @ x.t()).tril() + 1, 0, NONE),
    "as_strided": (lambda x: (x * 2).as_strided((x.shape[0], 2), (4, 2)) + 1, 1, {"CW202": "seam"}),
}
MIXING = {
    "mean of squares": (lambda x: (x * x).mean(0) + x, 1, {"CW202": "seam"}),
    "sum of squares": (lambda x: (x * x).sum(0) + x, 0, {"CW202": "fill 0"}),
    "norm": (lambda x: x / torch.linalg.vector_norm(x, dim=0), 0, {"CW202": "fill 0"}),
    "max with its place": (lambda x: x + x.max(0).indices, 0, {"CW202": "fill -inf"}),
    "any": (lambda x: x + (x > 1).any(0), 0, {"CW202": "fill 0"}),
    "softmax over rows": (lambda x: torch.softmax(x, 0), 0, {"CW202": "fill -inf"}),
    "log_softmax over rows": (lambda x: torch.log_softmax(x, 0), 0, {"CW202": "fill -inf"}),
    "sort rows": (lambda x: x.sort(0).values + 1, 0, {"CW202": "fill inf"}),
    "sort rows down": (lambda x: x.sort(0, descending=True).indices + 1, 0, {"CW202": "fill -inf"}),
    "topk of features": (lambda x: x.topk(2, 1).values, 0, NONE),
    "gram matrix": (lambda x: x.t() @ x, 0, {"CW202": "fill 0"}),
    "scores": (lambda x: x @ x.t(), 0, NONE),
    "roll": (lambda x: x.roll(1, 0) + 1, 1, {"CW202": "seam"}),
    "norm over all": (lambda x: F.layer_norm(x.t(), (x.shape[0],)), 1, None),
    "causal convolution": (lambda x: F.conv1d(F.pad(x.t()[None], (2, 0)), torch.ones(4, 4, 3)), 0, NONE),
    "centred convolution": (lambda x: F.conv1d(x.t()[None], torch.ones(4, 4, 3), padding=1), 0, {"CW202": "fill 0"}),
    "strided convolution": (lambda x: F.conv1d(x.t()[None], torch.ones(4, 4, 1), stride=2), 1, {"CW202": "seam"}),
    "causal attention": (
        lambda x: F.scaled_dot_product_attention(*[_heads(x)[None]] * 3, is_causal=True), 0, {"CW202": "fill 0"},
    ),
    "full attention": (lambda x: F.scaled_dot_product_attention(*[_heads(x)[None]] * 3), 1, {"CW202": "seam"}),
}  # fmt: skip
SOURCES = {
    "row numbers": (lambda x: x + torch.arange(x.shape[0])[:, None], 0, NONE),
    "row numbers from the end": (lambda x: x + torch.arange(x.shape[0] - 1, -1, -1)[:, None], 1, {"CW102": "seam"}),
    "zeros and ones": (lambda x: torch.zeros_like(x) + x.new_ones(x.shape[0], 1) * x, 0, NONE),
    "a sum of ones counts captured rows": (lambda x: x * torch.ones(x.shape[0]).sum(), 0, {"CW202": "fill 0"}),
    "linspace": (lambda x: x + torch.linspace(0, 1, x.shape[0])[:, None], 0, {"CW102": "key"}),
}
FAMILIES = {**ELEMENTWISE, **VIEWS, **MIXING, **SOURCES}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name, make_case, replays):
    model, seams, codes = FAMILIES[name]
    report = replays(make_case(model)).report
    assert len(report.seams) >= seams and bool(report.seams) is bool(seams), report.programs
    if codes is not None:
        assert _codes(report) == codes


# ---------------------------------------------------------------------------------------------------------- requests
def _steps():
    steps = []
    for starts in ([0, 1, 2, 3], [0, 2, 3, 6], [0, 5], [0, 1]):
        length = torch.tensor(starts).diff()
        row = torch.arange(len(starts) - 1).repeat_interleave(length)
        x = torch.arange(1, starts[-1] * 4 + 1, dtype=torch.float32).view(-1, 4)
        scale = torch.arange(1, len(starts), dtype=torch.float32)
        steps.append({"x": x, "starts": torch.tensor(starts), "row": row, "scale": scale})
    return steps


INPUTS = {"starts": ("R+1",), "row": ("T",), "scale": ("R",)}


class KeepsByAnotherView(torch.nn.Module):
    """Masked with what another view of the same rows holds: nothing is written past the live ones."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.register_buffer("kept", torch.zeros(16, 4))

    def forward(self, x, n):
        live = (torch.arange(x.shape[0]) < n)[:, None]
        self.kept[: x.shape[0]].copy_(torch.where(live, x, self.kept[: x.shape[0]] if self.rows else x * 0))
        return x + 1


def _counted():
    return [{"x": torch.ones(t, 4) * t, "n": torch.tensor(t)} for t in (6, 5, 3)]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_write_that_keeps_the_same_rows_is_no_hazard(keeps, make_case, replays):
    report = replays(make_case(KeepsByAnotherView(keeps), _counted(), {"n": Live("T")})).report
    assert _codes(report) == ({} if keeps else {"CW204": "masked write"})


LIVE_MODELS = {
    "all but the last row number": (
        lambda x, n: x[1:].masked_fill((torch.arange(x.shape[0])[:-1] >= n - 1)[:, None], 0).sum(0), NONE,
    ),
    "zero is below what is not negative": (
        lambda x, n: torch.where((torch.arange(x.shape[0]) < n)[:, None], x, 0.0).abs().amax(0), NONE,
    ),
    "zero is not below what may be": (
        lambda x, n: torch.where((torch.arange(x.shape[0]) < n)[:, None], x - 9, 0.0).amax(0), {"CW202": "fill -inf"},
    ),
    "its place sees the tail": (
        lambda x, n: torch.where((torch.arange(x.shape[0]) < n)[:, None], x * 0, 0.0).abs().max(0),
        {"CW202": "fill -inf"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVE_MODELS)
def test_masks_made_from_the_live_extent(name, make_case, replays):
    model, codes = LIVE_MODELS[name]
    assert _codes(replays(make_case(model, _counted(), {"n": Live("T")})).report) == codes


def test_an_integer_made_of_no_number_is_not_in_range(make_case, replays):
    """clamp keeps NaN, and a cast makes the lowest integer of it."""
    table = torch.arange(8.0)
    report = replays(make_case(lambda x: table[x[:, 0].clamp(0, 7).long()])).report
    assert "CW206" in _codes(report)


def _sums(x, starts, row, scale):
    return torch.zeros(scale.shape[0], 4).index_add(0, row, x)


def _counts(x, starts, row, scale):
    return torch.zeros_like(scale).scatter_add(0, row, torch.ones_like(row, dtype=torch.float32))


BY_INDEX = {
    "a request's value for its tokens": (lambda x, starts, row, scale: x * scale[row][:, None], 0),
    "by index_select": (lambda x, starts, row, scale: x * scale.index_select(0, row)[:, None], 0),
    "by gather": (lambda x, starts, row, scale: x.gather(1, (row % 4)[:, None]), 0),
    "last token of each request": (lambda x, starts, row, scale: x[starts[1:] - 1], 0),
    "first token of each request": (lambda x, starts, row, scale: x[starts[:-1]], 0),
    "first token of each request marked": (lambda x, starts, row, scale: x.index_fill(0, starts[:-1].long(), 0.5), 0),
    "sums over tokens of a request": (_sums, 0),
    "counts of tokens of a request": (_counts, 0),
    "lengths": (lambda x, starts, row, scale: (starts[1:] - starts[:-1]) * scale, 0),
    "mean over requests": (lambda x, starts, row, scale: scale - scale.mean(), 1),
    "request of a token": (
        lambda x, starts, row, scale: torch.bucketize(torch.arange(x.shape[0]), starts, right=True) - 1, 0,
    ),
    "a mask of tokens by requests": (
        lambda x, starts, row, scale: (row[:, None] == torch.arange(scale.shape[0])).float() @ scale, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_INDEX)
def test_tokens_and_requests_meet_by_index(name, make_case, replays):
    model, seams = BY_INDEX[name]
    report = replays(make_case(model, _steps(), INPUTS)).report
    assert bool(report.seams) is bool(seams), report.programs


@pytest.mark.parametrize("name", ["last token of each request", "sums over tokens of a request", "mean over requests"])
def test_by_seams_alone_it_is_right_too(name, make_case, replays):
    replays(make_case(BY_INDEX[name][0], _steps(), INPUTS), repair="split")


# ---------------------------------------------------------------------------------------------------------- joined rows
def _joined(x):
    """The next row of each, and the first of the last: at its place behind the tail of the others."""
    return torch.cat([x[1:], x[:1]])


def _last(starts):
    return (starts[1:] - 1).clamp(min=0)


def _rows_of(index):
    return index[:, None].expand(-1, 4)


JOINED = {
    "index": lambda x, starts, scale: _joined(x)[_last(starts)],
    "two lists": lambda x, starts, scale: _joined(x)[_last(starts), _last(starts) * 0 + 1],
    "gather": lambda x, starts, scale: _joined(x).gather(0, _rows_of(_last(starts))),
    "embedding": lambda x, starts, scale: F.embedding(_last(starts), _joined(x)),
    "index of two halves": lambda x, starts, scale: torch.cat([x, x * 2])[_last(starts) + 1],
    "put": lambda x, starts, scale: _joined(x).index_put((_last(starts),), scale[:, None].expand(-1, 4)),
    "added": lambda x, starts, scale: _joined(x).index_add(0, _last(starts), scale[:, None].expand(-1, 4)),
    "filled": lambda x, starts, scale: _joined(x).index_fill(0, _last(starts), 0.5),
    "scattered": lambda x, starts, scale: _joined(x).scatter(0, _rows_of(_last(starts)), _rows_of(scale)),
    "by segments": lambda x, starts, scale: torch.ops.capwise.logits_rows(
        _joined(x), starts.int(), torch.zeros_like(scale, dtype=torch.bool), 1
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_rows_behind_a_tail_are_not_found_by_number(name, make_case, replays):
    """Behind the tail of what they are joined to, live rows have other numbers than without one."""
    model = JOINED[name]
    report = replays(make_case(lambda x, starts, row, scale: model(x, starts, scale), _steps(), INPUTS)).report
    assert len(report.seams) == 1 and "CW202" in {d.code for d in report if d.repair == "seam"}, report.programs


def test_an_op_whose_rows_are_alone_takes_them_wherever_they_stand(make_case, replays):
    table = torch.arange(27.0).view(9, 3)
    report = replays(make_case(lambda x: torch.ops.capwise.ple_table_gather(_joined(x).abs().long() % 4, table))).report
    assert not report.seams, report.programs
