"""What the user reads: code, place, path, repair and candidates."""

from __future__ import annotations

import inspect

import torch

from capwise.models.footguns import FOOTGUNS


def _mean(x):
    y = x * 2
    return y - y.mean(0)


def _line(function, words):
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if words in line)


def test_a_diagnostic_points_at_the_user_s_line_and_expression(make_case, program_of):
    (found,) = [d for d in program_of(make_case(_mean)).report if d.code == "CW202"]
    assert found.file == __file__ and found.line == _line(_mean, "y.mean")
    source = inspect.getsource(_mean).splitlines()[2]
    assert source[found.column - 1 : found.span.end_column - 1] == "y.mean(0)"


def test_a_diagnostic_carries_path_candidates_and_evidence(make_case, program_of):
    (found,) = [d for d in program_of(make_case(_mean)).report if d.code == "CW202"]
    assert [step.what.split(":")[0] for step in found.path] == ["x", "mul"]
    assert found.path[1].span.line == _line(_mean, "x * 2")
    assert found.candidates == (("seam", 2.0),) and found.repair == "seam"
    assert dict(found.evidence) == {"symbol": "T"} and found.op == "aten.mean.dim" and found.help


def test_a_repaired_hazard_stays_in_the_list(make_case, program_of):
    (found,) = program_of(make_case(lambda x: x - x.sum(0))).report
    assert (found.code, found.repair, found.severity, found.verdict) == ("CW202", "fill 0", "note", "refuted")
    (found,) = program_of(make_case(lambda x: x - x.sum(0)), repair="none").report
    assert (found.repair, found.severity) == (None, "error")


def test_a_clean_program_has_no_diagnostics(make_case, program_of):
    assert list(program_of(make_case(lambda x: torch.relu(x) + 1)).report) == []


def test_one_line_says_a_thing_once(make_case, program_of):
    """Many launches of one line depend on R: one CW101."""
    steps = [{"x": torch.ones(t, 4), "s": torch.ones(r)} for t, r in ((6, 3), (3, 2))]
    case = make_case(lambda x, s: (x + 1, (s * 2 + 1).exp() - s), steps, {"s": ("R",)})
    assert [d.code for d in program_of(case).report] == ["CW101"]


def test_conflicting_fills_of_one_buffer_are_said(make_case, program_of, replays):
    case = make_case(lambda x: x + x.sum(0) + x.prod(0))
    (found,) = [d for d in program_of(case).report if d.code == "CW203"]
    assert found.repair == "second staged copy" and "fill" in found.label
    replays(case)


def test_an_eager_result_that_a_piece_reads_is_staged(program_of):
    codes = {d.code: d.repair for d in program_of(FOOTGUNS["opaque op"].case()).report}
    assert codes == {"CW001": "seam", "CW301": "stage into a static buffer"}


def test_an_eager_result_that_no_piece_reads_needs_no_stable_address(make_case, program_of, replays):
    """The caller gets it, or a view of it: nothing was recorded over its address."""
    for model in (lambda x: x.flip(0), lambda x: x.flip(0).t()):
        case = make_case(model)
        assert program_of(case).report.codes() == {"CW202"}
        replays(case)
        torch._dynamo.reset()


def test_an_unknown_op_says_which_symbols_reach_it(program_of):
    (found,) = [d for d in program_of(FOOTGUNS["opaque op"].case()).report if d.code == "CW001"]
    assert found.verdict == "assumed" and found.severity == "warning"
    assert any("symbol T reaches it through x" in note for note in found.notes)


def test_the_graph_stays_as_it_is(make_case, around):
    before, after = around(make_case(_mean), "hazards")
    assert before == after
