"""Random programs, replayed over random histories, equal eager; row-local and cumulative ones are one piece.

`python benchmarks/random_programs.py` runs as many as one likes.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import capwise

SPEC = importlib.util.spec_from_file_location("random_programs", Path(__file__).with_name("random_programs.py"))
made = sys.modules.setdefault("random_programs", importlib.util.module_from_spec(SPEC))
SPEC.loader.exec_module(made)

# No explanations: they run a failing program a hundred times more.
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
slow = settings(phases=PHASES, suppress_health_check=list(HealthCheck))
choices = st.randoms(use_true_random=False)


@settings(slow, max_examples=70)
@given(choices, st.sampled_from(["auto", "auto", "split"]))
def test_replay_equals_eager(rng, mode):
    program = made.program(rng, is_local=False, size=5)
    assume(made.is_valid(program))
    why = made.failure(program, (mode,))
    assert why is None, f"{why}\n{program}"


@settings(slow, max_examples=30)
@given(choices)
def test_row_local_and_cumulative_programs_have_no_seam(rng):
    program = made.program(rng, is_local=True, size=6)
    assume(made.is_valid(program))
    why = made.failure(program, ("auto",))
    assert why is None, f"{why}\n{program}"


# ---------------------------------------------------------------------------------------------------------- the harness
def _program(text, kind="T8", is_local=False):
    """One row by itself, over a large batch and a small one."""
    maker = made._Maker(random.Random(0), made.ROWS["local"])
    statement = maker.apply(made.Row(kind, text))
    returned = (statement.out.name,) if statement.out is not None else ("x",)
    return made.Program(tuple(maker.statements), returned, False, ((13, 5, 0), (5, 2, 1)), is_local)


def test_every_row_of_the_table_runs_eagerly():
    """A row that eager refuses tests nothing."""
    for group in made.ROWS.values():
        for row in group:
            assert any(made.is_valid(p) for seed in range(8) if (p := _alone(row, seed)) is not None), row.text


def _alone(row, seed):
    rng = random.Random(seed)
    maker = made._Maker(rng, [r for rows in made.ROWS.values() for r in rows])
    for mark, kind, _ in made._OPERAND.findall(row.text):
        if mark == "~":
            maker.apply(rng.choice([r for r in maker.table if r.kind == kind and not r.is_view]))
    if maker.apply(row) is None:
        return None
    return made.Program(tuple(maker.statements), ("x",), False, ((13, 5, 0), (5, 2, 1)), False)


def test_a_seam_in_a_row_local_program_is_a_failure():
    assert "has seams" in made.failure(_program("{T8}.flip(0)", is_local=True), ("auto",))
    assert made.failure(_program("{T8}.flip(0)"), ("auto",)) is None


def test_a_wrong_replay_is_a_failure(monkeypatch):
    """A table that says that a sum mixes nothing along its dimension."""
    from capwise.ops import aten

    program = _program("{T8} + {T8}.exp().sum(0)")
    assert made.failure(program, ("auto",)) is None
    monkeypatch.setitem(aten.TABLE, "sum", aten.Row("reduce", "dtype", 0))
    monkeypatch.setattr("capwise.transfer.mixing._dims", lambda node, row: [])
    assert "replay differs" in made.failure(program, ("auto",))


def test_a_program_that_reads_what_it_writes_is_compared_with_reads_before_writes():
    """Eager takes the rows in an order, and rows that were written before are read again."""
    program = _program("self.state[slots, :4] = self.state[:R][:, :4]", "!")
    assert capwise.verify(made.case(program)).unordered
    assert made.failure(program) is None


def test_a_crash_is_a_failure(monkeypatch):
    monkeypatch.setattr("capwise.transfer.inputs.drive", None)
    assert "crash: " in made.failure(_program("{T8} + 1"), ("auto",))


def test_shrinking_keeps_the_failure_and_little_else():
    program = made.program(random.Random(3), is_local=False, size=12)

    def fails(candidate):
        return any(s.row.text.startswith("{T8}") for s in candidate.statements)

    assert fails(program)
    small = made.shrink(program, fails)
    assert fails(small) and len(small.statements) < len(program.statements)
    assert len(small.history) == 1 and len(small.returned) == 1


@pytest.mark.parametrize("extents", [(1, 1, 0), (4, 4, 1), (9, 4, 2), (1, 3, 3), (5, 1, 4)], ids=str)
def test_batches_are_admissible(extents):
    tokens, requests, _ = extents
    batch = made.batch(*extents)
    boundaries = batch["query_start_loc"]
    assert boundaries[0] == 0 and boundaries[-1] == tokens and bool((boundaries.diff() >= 0).all())
    assert len(boundaries) == requests + 1 and len(set(batch["slots"].tolist())) == requests
    assert int(batch["slots"].min()) > 0 and torch.equal(batch["x"], (batch["x"] * 4).round() / 4)
