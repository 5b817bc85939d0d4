"""Conditions of blocks over a control-flow graph."""

import pytest

from capwise.kernel_access.cfg import Conditions, flow
from capwise.kernel_access.parse import Block, Op
from capwise.kernel_access.space import Space


def block(label, *successors):
    last = Op("cf.cond_br" if successors else "tt.return", (), (), "", "", 0, tuple((s, ()) for s in successors))
    return Block(label, (), [last])


def conditions(space, blocks, tests):
    """Conditions of all blocks; `tests` names the truth value that a block with two successors branches on."""
    graph = flow(blocks)
    found = Conditions(space, graph)
    out = {}
    for label in graph.order:
        out[label] = found.enter(label)
        targets = [t for t, _ in graph.blocks[label].ops[-1].successors]
        if len(targets) == 1:
            found.edge(label, targets[0], space.true)
        for target, node in zip(targets, (tests.get(label), tests.get(label) and space.negate(tests[label]))):
            if len(targets) == 2:
                found.edge(label, target, node)
    return out, graph


@pytest.fixture
def space():
    return Space()


def test_diamond_rejoins_unconditionally(space):
    a = space.eq(space.leaf("sym", "a"))
    blocks = [block("e", "l", "r"), block("l", "j"), block("r", "j"), block("j")]
    found, graph = conditions(space, blocks, {"e": a})
    assert (found["l"], found["r"], found["j"]) == (a, space.negate(a), space.true)
    assert graph.dominator["j"] == "e"


def test_returns_leave_their_negations(space):
    a, b = space.eq(space.leaf("sym", "a")), space.eq(space.leaf("sym", "b"))
    blocks = [block("e", "r1", "m"), block("r1"), block("m", "r2", "x"), block("r2"), block("x")]
    found, _ = conditions(space, blocks, {"e": a, "m": b})
    assert found["x"] is space.both([space.negate(a), space.negate(b)])


def test_return_on_one_side_of_a_fork_stays_in_the_join(space):
    a, b = space.eq(space.leaf("sym", "a")), space.eq(space.leaf("sym", "b"))
    blocks = [block("e", "l", "j"), block("l", "r", "k"), block("r"), block("k", "j"), block("j")]
    found, graph = conditions(space, blocks, {"e": a, "l": b})
    assert found["j"] is space.either([space.negate(a), space.negate(b)])
    assert graph.dominator["j"] == "e"


def test_two_edges_to_one_block_are_no_condition(space):
    a = space.eq(space.leaf("sym", "a"))
    found, _ = conditions(space, [block("e", "j", "j"), block("j")], {"e": a})
    assert found["j"] is space.true


def test_a_branch_back_is_seen(space):
    assert flow([block("e", "h"), block("h", "h", "x"), block("x")]).cyclic


def test_blocks_that_nothing_reaches_are_left_out(space):
    assert flow([block("e", "x"), block("dead", "x"), block("x")]).order == ("e", "x")
