"""Advice: what the seams of a plan cost, and nothing where there are none."""

from __future__ import annotations

import torch

from capwise.report import ADVICE, Diagnostic


def _advice(program) -> list[Diagnostic]:
    return [d for d in program.report if d.code in ADVICE]


def _between(x):
    y = (x + 1) * 2
    z = torch.ops.footgun.opaque(y)
    return (z * 3).cumsum(0)


def _both(x):
    return ((x + 1).flip(0) * 2).flip(0) + 1


def _beside(x):
    """The seam hangs on the side: nothing is split by it."""
    return (x + 1) * 2, torch.ops.footgun.opaque(x)


def test_a_seam_that_splits_two_pieces_is_named_with_what_removes_it(make_case, program_of) -> None:
    import capwise.models.footguns  # noqa: F401 - registers the opaque op

    (found,) = _advice(program_of(make_case(_between)))
    assert (found.code, found.severity, found.repair) == ("CW502", "note", None)
    assert found.notes == ("2 pieces, 1 without",) and "contract" in found.help[0] and found.line
    assert found.op == "footgun.opaque.default"


def test_seams_of_one_op_are_one_note_and_a_single_launch_is_small(make_case, program_of) -> None:
    program = program_of(make_case(_both))
    found = {d.code: d for d in _advice(program)}
    assert [len(s.ops) for s in program.pieces] == [1, 1, 1]
    (small,) = [d for d in _advice(program) if d.code == "CW501"]
    assert small.op == "aten.mul.Tensor" and small.severity == "note"
    assert found["CW502"].notes == ("3 pieces, 1 without",) and "2 seams" in found["CW502"].message


def test_no_advice_without_something_to_gain(make_case, program_of) -> None:
    import capwise.models.footguns  # noqa: F401 - registers the opaque op

    assert not _advice(program_of(make_case(lambda x: (x + 1) * 2)))
    assert not _advice(program_of(make_case(_beside)))
    assert not _advice(program_of(make_case(_between), repair="split"))
