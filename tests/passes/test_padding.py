"""Live, filled and padded rows: what stays in its row, what must be filled, what no fill helps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from capwise import Buffer, Input, Live
from capwise.facts import facts


def _requests():
    """Mixed; as many tokens as requests; one request; one token."""
    steps = []
    for starts in ([0, 2, 3, 6], [0, 1, 2, 3], [0, 5], [0, 1]):
        scale = torch.arange(1, len(starts), dtype=torch.float32)
        x = torch.arange(1, starts[-1] * 4 + 1, dtype=torch.float32).view(-1, 4)
        steps.append({"x": x, "starts": torch.tensor(starts, dtype=torch.int32), "scale": scale})
    return steps


def _codes(program):
    return {d.code: d.repair for d in program.report if d.code not in ("CW101", "CW301")}


# ---------------------------------------------------------------------------------------------------------- harmless
@pytest.mark.parametrize(
    "model",
    [
        lambda x: F.gelu(x * 2 + 1),
        lambda x: x @ torch.eye(4),
        lambda x: torch.softmax(x, -1),
        lambda x: F.layer_norm(x, (4,)),
        lambda x: x.cumsum(0),
        lambda x: x - F.pad(x, (0, 0, 1, 0))[:-1],
        lambda x: x.sort(1).values,
        lambda x: x.view(x.shape[0] * 2, 2) + 1,
        lambda x: x.flip(1),
    ],
    ids="gelu project softmax norm prefix-sum previous-row sort-in-row regroup flip-in-row".split(),
)
def test_what_stays_in_its_row_is_left_alone(model, make_case, replays):
    """Row-local ops, and a prefix sum: the tail comes last, so it stays in the tail. Never seams, no fills."""
    report = replays(make_case(model)).report
    assert report.pieces == 1 and not report.seams and not report.diagnostics and report.fills == 0
    assert "fill" not in report.programs[0]


def test_prefix_sum_is_never_a_seam_while_flip_is(make_case, program_of, replays, differs):
    scan, flip = make_case(lambda x: x.cumsum(0) + 1), make_case(lambda x: x.flip(0) + 1)
    assert len(program_of(scan).seams) == 0 and replays(scan)
    program = program_of(flip)
    assert [s.ops for s in program.seams] == [("aten.flip.default",)]
    assert _codes(program) == {"CW202": "seam"}
    replays(flip)
    differs(flip)


def test_a_suffix_sum_is_not_a_prefix_sum(make_case, program_of, replays, differs):
    case = make_case(lambda x: x.flip(0).cumsum(0).flip(0))
    assert len(program_of(case).seams) >= 1
    replays(case)
    differs(case)


# ---------------------------------------------------------------------------------------------------------- fills
@pytest.mark.parametrize(
    "model, fill",
    [
        (lambda x: x - x.sum(0), 0),
        (lambda x: x - x.amax(0), float("-inf")),
        (lambda x: x - x.amin(0), float("inf")),
        (lambda x: x * x.prod(0), 1),
        (lambda x: x + x[-1], "last"),
        (lambda x: x - x.logsumexp(0), float("-inf")),
    ],
    ids="sum amax amin prod last-row logsumexp".split(),
)
def test_the_arena_fills_with_what_is_neutral(model, fill, make_case, replays, differs):
    case = make_case(model)
    report = replays(case).report
    assert f"  input x fill {fill}" in report.programs[0].splitlines() and report.pieces == 1 and not report.seams
    assert [d.severity for d in report] == ["note"]
    differs(case)


def test_zero_fill_is_refused_under_mean(make_case, program_of, replays, differs):
    """A zero row counts in the divisor: no fill value is neutral, so a mean over tokens runs at live extents."""
    case = make_case(lambda x: x - x.mean(0))
    program = program_of(case)
    assert program.staged_fills == {}
    assert [s.ops for s in program.seams] == [("aten.mean.dim",)]
    (found,) = [d for d in program.report if d.code == "CW202"]
    assert found.repair == "seam" and any("no fill value is neutral for `mean`" in n for n in found.notes)
    replays(case)
    differs(case)


@pytest.mark.parametrize("model", [lambda x: x - x.var(0), lambda x: x - x.median(0).values], ids=["var", "median"])
def test_other_reductions_with_no_neutral_value_are_seams(model, make_case, program_of, replays):
    case = make_case(model)
    assert len(program_of(case).seams) == 1 and program_of(case).staged_fills == {}
    replays(case)


def test_two_consumers_of_one_buffer_each_get_their_fill(make_case, program_of, replays):
    case = make_case(lambda x: (x.sum(0), x.amax(0), x.prod(0)))
    program = program_of(case)
    assert len(program.pieces) == 1 and not program.seams and program.report.fills == 3
    replays(case)


def test_a_mask_made_from_the_live_extent_needs_no_fill(make_case, program_of, replays):
    def masked(x, n):
        return x.masked_fill((torch.arange(x.shape[0]) >= n)[:, None], 0.0).sum(0)

    steps = [{"x": torch.ones(t, 4) * t, "n": torch.tensor(t)} for t in (6, 5, 3)]
    case = make_case(masked, steps, {"n": Live("T")})
    program = program_of(case)
    assert program.staged_fills == {} and not program.seams and not program.report.diagnostics
    replays(case)


def test_zero_times_a_tail_of_anything_is_not_zero(make_case, program_of, replays):
    """A mask by multiplication does not stop NaN: the other factor must be finite too."""

    def masked(x, n):
        return (x * (torch.arange(x.shape[0]) < n)[:, None]).sum(0)

    steps = [{"x": torch.ones(t, 4) * t, "n": torch.tensor(t)} for t in (6, 5, 3)]
    case = make_case(masked, steps, {"n": Live("T")})
    assert program_of(case).report.fills >= 1
    replays(case)


# ---------------------------------------------------------------------------------------------------------- axes
def test_equal_extents_never_join_axes(make_case, program_of, replays):
    """One compilation serves T == R, R == 1 and T == 1: the batch with T == R comes first."""
    steps = [_requests()[i] for i in (1, 0, 2, 3)]
    case = make_case(lambda x, starts, scale: (x.sum(1), scale * 2), steps, {"starts": ("R+1",), "scale": ("R",)})
    program = program_of(case)
    lines = program.text("padding").splitlines()
    assert lines[1:3] == [
        "%0 = aten.sum.dim_IntList(x, [1])  [T:padded]",
        "%1 = aten.mul.Tensor(scale, 2)  [R:padded]",
    ]
    replays(case)


def test_two_axes_of_equal_size_but_different_meaning_do_not_meet(make_case, program_of, replays, differs):
    """[2T] token-major plus [2T] head-major: live rows of one stand beside tail rows of the other."""

    def model(x):
        heads = x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2)
        return x.view(-1, 2) + heads

    case = make_case(model)
    program = program_of(case)
    assert len(program.seams) >= 1 and "CW202" in _codes(program)
    replays(case)
    differs(case)


def test_a_head_major_axis_has_its_tail_inside(make_case, program_of, replays):
    case = make_case(lambda x: x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2) + 1)
    program = program_of(case)
    assert "[2*T:padded, 2]" in program.text("padding") and not program.seams
    replays(case)


def test_a_head_major_axis_behind_others_still_has_its_tail_inside(make_case, replays):
    """A concatenation ends in an axis whose live rows are not one block."""

    def model(x):
        heads = x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2)
        return torch.cat([torch.zeros(3, 2), heads])

    replays(make_case(model))


def test_boundaries_give_lengths_of_their_requests(make_case, program_of, replays):
    case = make_case(
        lambda x, starts, scale: scale * (starts[1:] - starts[:-1]), _requests(), {"starts": ("R+1",), "scale": ("R",)}
    )
    assert not program_of(case).seams
    replays(case)


def test_a_square_of_tokens_has_two_tails(make_case, program_of, replays, differs):
    case = make_case(lambda x: torch.softmax(x @ x.t(), -1) @ x)
    program = program_of(case)
    assert "[T:padded, T:padded]" in program.text("padding") and not program.seams
    replays(case)
    differs(case)


# ---------------------------------------------------------------------------------------------------------- indices
def test_negative_rows_count_from_the_live_end(make_case, program_of, replays, differs):
    steps = [{"x": s["x"], "at": torch.tensor(a)} for s, a in zip(_requests(), ([-1, 0], [-2, 2, 1], [-5], [0]))]
    case = make_case(lambda x, at: x[at], steps, {"at": ("R",)})
    assert _codes(program_of(case))["CW206"] == "clamp"
    replays(case)
    differs(case)


def test_a_search_does_not_see_older_boundaries(make_case, program_of, replays, differs):
    def rows_of(x, starts):
        token = torch.arange(x.shape[0], dtype=starts.dtype)
        return x * (torch.searchsorted(starts, token, right=True) - 1)[:, None]

    steps = [{k: v for k, v in s.items() if k != "scale"} for s in _requests()]
    case = make_case(rows_of, steps, {"starts": ("R+1",)})
    program = program_of(case)
    assert "CW201" in _codes(program) and program.staged_fills["starts"] == 2**31 - 1
    replays(case)
    differs(case)


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(16, 4))

    def forward(self, x, slots):
        self.cache[slots] = x
        return x + 1


def _slot_steps():
    return [{"x": torch.ones(t, 4) * t, "slots": torch.arange(t) * 2 + 1} for t in (6, 5, 3)]


def test_padded_rows_write_to_the_null_row(make_case, program_of, replays, differs):
    case = make_case(Cache(), _slot_steps(), {"slots": Input("T", null=0)})
    program = program_of(case)
    assert program.staged_fills == {"slots": 0} and program.scratch == [("cache", 0, 0)]
    assert _codes(program) == {"CW204": "null slot fill"}
    replays(case)
    case.batches = [
        {"x": s["x"] * i, "slots": (s["slots"].flip(0) + 2 * i) % 15 + 1} for i, s in enumerate(_slot_steps())
    ]
    differs(case)


def test_what_the_user_says_of_a_fill_wins(make_case, program_of):
    case = make_case(lambda x: x - x.sum(0), inputs={"x": Input("T", 4, fill=7.0)})
    program = program_of(case)
    assert program.staged_fills == {"x": 7.0}
    assert "aten.where.ScalarOther" in program.text("fill")


# ---------------------------------------------------------------------------------------------------------- modes
def test_split_repairs_by_seams_only(make_case, program_of, replays):
    case = make_case(lambda x: x - x.sum(0))
    program = program_of(case, repair="split")
    assert program.staged_fills == {} and program.report.fills == 0 and len(program.seams) == 1
    replays(case, repair="split")


def test_none_repairs_nothing(make_case, program_of):
    case = make_case(lambda x: (x - x.sum(0)).flip(0))
    program = program_of(case, repair="none")
    assert len(program.pieces) == 1 and not program.seams and program.staged_fills == {}
    assert {d.severity for d in program.report} == {"error"}
    assert not any(facts(n).eager for n in program.module.graph.nodes)


def test_an_engines_own_buffer_is_filled_in_place(make_case, program_of, replays):
    whole = torch.full((17,), 99, dtype=torch.int64)
    steps = []
    for t in (6, 5, 3):
        whole[:t] = torch.arange(1, t + 1)
        steps.append({"x": torch.ones(t, 4), "n": whole[:t].clone().resize_(17)[:t]})
    case = make_case(lambda x, n: x + n.sum(), steps, {"n": Buffer("T")})
    assert program_of(case).staged_fills["n"] == 0
    replays(case)
