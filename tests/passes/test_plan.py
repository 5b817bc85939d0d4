"""Levels: independent seams together, as few pieces as the seams allow, in an order that every mutation respects."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from capwise.facts import facts
from capwise.passes.plan import Plan, ordering


def _shape(program):
    return [(s.kind, len(s.ops)) for s in program.steps]


def _independent(x):
    return (x + 1).flip(0) * 2, (x * 3).flip(0) - 1


def _chained(x):
    return ((x + 1).flip(0) * 2).flip(0) + 1, x * 5


def test_a_program_without_seams_is_one_piece(make_case, program_of, replays):
    case = make_case(lambda x: ((x + 1) * 2, x.cumsum(0)))
    assert _shape(program_of(case)) == [("piece", 3)]
    replays(case)


def test_independent_seams_share_a_level(make_case, program_of, replays, differs):
    case = make_case(_independent)
    assert _shape(program_of(case)) == [("piece", 2), ("seam", 2), ("piece", 2)]
    replays(case)
    differs(case)


def test_dependent_seams_do_not(make_case, program_of, replays):
    case = make_case(_chained)
    program = program_of(case)
    assert _shape(program) == [("piece", 2), ("seam", 1), ("piece", 1), ("seam", 1), ("piece", 1)]
    assert "aten.mul.Tensor" in program.pieces[0].ops
    replays(case)


def test_the_graph_stays_as_it_is(make_case, around):
    before, after = around(make_case(_independent), "plan")
    assert before == after


class WritesBetween(nn.Module):
    """Reads, writes and reads one buffer round a seam."""

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(4))

    def forward(self, x):
        self.h.add_(1)
        y = x + self.h
        front = y.flip(0)
        self.h.copy_(front[0])
        z = x * self.h
        self.h.mul_(2)
        return z + self.h


def test_the_order_respects_mutation_edges(make_case, program_of, replays, differs):
    case = make_case(WritesBetween())
    program = program_of(case)
    level = {n.name: at for at, s in enumerate(program.steps) for n in s.module.graph.nodes if n.op == "call_function"}
    assert level["add"] < level["flip"] < level["copy_"] <= level["mul"]
    names = [n.name for n in program.pieces[-1].module.graph.nodes]
    assert names.index("copy_") < names.index("mul") < names.index("mul_") < names.index("add_1")
    replays(case)
    differs(case)


class ReadThenWrite(nn.Module):
    """An op behind a seam reads state that a later op, independent by data, overwrites."""

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.ones(4))

    def forward(self, x):
        old = (x + 1).flip(0) * self.h
        self.h.add_(1)
        return old + 1, self.h + 0


def test_a_write_waits_for_the_reads_before_it(make_case, replays):
    replays(make_case(ReadThenWrite()))


class WritesThroughView(nn.Module):
    def forward(self, x):
        y = x * 2
        view = y[:, :2]
        late = y.flip(0)
        view.add_(1)
        return y + 0, late + 0


def test_a_write_through_a_view_is_a_write_to_all_of_it(make_case, replays):
    replays(make_case(WritesThroughView()))


# ---------------------------------------------------------------------------------------------------------- least
def _chain_length(dag, eager):
    """Pieces on the longest alternating path, by trying every path."""
    best = 0
    order = list(nx.topological_sort(dag))
    for start in order:
        stack = [(start, 0 if eager[start] else 1)]
        while stack:
            node, pieces = stack.pop()
            best = max(best, pieces)
            for after in dag.successors(node):
                stack.append((after, pieces + (eager[node] and not eager[after])))
    return best


def _random_model(choices):
    def model(x):
        values = [x, x + 1]
        for kind, at in choices:
            source = values[at % len(values)]
            values.append(source.flip(0) if kind else source * 2)
        return tuple(values[2:])

    return model


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=2, max_size=7))
@settings(max_examples=5)
def test_the_number_of_pieces_is_minimal(make_case, program_of, choices):
    """No schedule of these seams has fewer pieces than the longest alternating chain, which is what there are."""
    torch._dynamo.reset()
    program = program_of(make_case(_random_model(choices)))
    nodes = program.module.graph
    dag = ordering(nodes)
    eager = {n: facts(n).eager for n in dag}
    assert len(program.pieces) == _chain_length(dag, eager)
    assert sum(len(s.ops) for s in program.steps) == len(dag)


def test_without_the_write_edges_the_result_would_be_wrong(make_case, monkeypatch):
    """The test above can fail: an ordering by data alone moves the write before the read."""
    import capwise
    from capwise.passes import plan

    monkeypatch.setattr(plan, "_storage", lambda node: None)
    assert not capwise.verify(make_case(ReadThenWrite())).ok


@pytest.mark.parametrize("name", ["needs", "gives"])
def test_the_pass_says_what_it_needs_and_gives(name):
    assert getattr(Plan, name)
