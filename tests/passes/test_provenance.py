"""Symbols by the sizes that carry them, and sizes that only the data decides."""

from __future__ import annotations

import torch

from capwise.facts import facts


def _node(program, name):
    return next(n for n in program.module.graph.nodes if name in str(n.target))


def _two(x, s):
    return x + 1, s * 2, x.sum(1)


def _steps():
    return [{"x": torch.ones(t, 4), "s": torch.ones(r)} for t, r in ((6, 3), (3, 3), (1, 1))]


def test_each_op_is_reached_by_the_symbols_of_its_sizes(program_of, make_case, replays):
    case = make_case(_two, _steps(), {"s": ("R",)})
    program = program_of(case)
    assert facts(_node(program, "aten.add")).extents == {"T"}
    assert facts(_node(program, "aten.mul")).extents == {"R"}
    assert facts(_node(program, "aten.sum")).extents == {"T"}
    replays(case)


def test_a_size_that_data_decides_is_no_symbol_of_the_user(program_of, make_case, replays):
    case = make_case(lambda x: x[x[:, 0] > 0].sum(0) + 1)
    program = program_of(case)
    index = _node(program, "aten.index")
    assert facts(index).unnamed and "T" in facts(index).extents
    assert not facts(_node(program, "aten.gt")).unnamed
    assert facts(index).eager and program.report.codes() == {"CW002", "CW301"}
    replays(case)


def test_a_stride_is_not_taken_for_a_size_that_data_decides(program_of, make_case):
    steps = [{"x": torch.ones(6, 4), "s": torch.ones(3, n)[:, 0]} for n in (4, 2)]
    program = program_of(make_case(_two, steps, {"s": ("R",)}))
    assert not any(facts(n).unnamed for n in program.module.graph.nodes)
