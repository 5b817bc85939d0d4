"""What is right where eager's own result depends on the order of elements: all reads before all writes."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from capwise.verify.reads_first import ReadsFirst


def _state():
    return torch.arange(48.0).view(6, 8)


def shift(state):
    state[:, 1:].copy_(state[:, :-1])


def test_inside_an_op_reads_before_it_writes():
    mine, theirs = _state(), _state()
    with ReadsFirst() as mode:
        shift(mine)
    shift(theirs)
    assert torch.equal(mine, torch.cat([_state()[:, :1], _state()[:, :-1]], 1)) and not torch.equal(mine, theirs)
    (place,) = mode.found
    assert place.op == "aten.copy_.default" and (place.span.file, place.span.line) == (__file__, _line(shift))


def _line(function):
    return function.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.add_(s),
        lambda s: s[:, :4].copy_(s[:, 4:]),
        lambda s: s[:4, :4].index_copy_(0, torch.tensor([1, 2]), s[1:3, :4]),  # each row is its own source
        lambda s: s.copy_(s[:, :1].clone()),
        lambda s: torch.cumsum(s, 0, out=s),
    ],
)
def test_where_the_order_does_not_matter_nothing_is_found(step):
    mine, theirs = _state(), _state()
    with ReadsFirst() as mode:
        step(mine)
    step(theirs)
    assert torch.equal(mine, theirs) and mode.found == []


def test_random_numbers_are_drawn_once():
    mine, right = _state() / 48, _state() / 48
    torch.manual_seed(0)
    with ReadsFirst():
        mine[:, 1:].bernoulli_(mine[:, :-1])
    torch.manual_seed(0)
    right[:, 1:].bernoulli_(right[:, :-1].clone())
    assert torch.equal(mine, right)


def test_the_same_line_is_named_once():
    with ReadsFirst() as mode:
        state = _state()
        for _ in range(3):
            shift(state)
    assert len(mode.found) == 1


def test_what_pytorch_refuses_is_refused():
    state = _state()
    with ReadsFirst(), pytest.raises(RuntimeError, match="refer to a single memory location"):
        state[1:].copy_(state[:-1])


def test_results_and_lists_are_those_of_the_op():
    state = _state()
    with ReadsFirst() as mode:
        columns = [*state.T]
        torch._foreach_copy_(columns[1:3], columns[:2])
        out = state[:, 1:].mul_(state[:, :-1])
    right = _state()
    right[:, 1:3] = _state()[:, :2]
    right[:, 1:] *= right[:, :-1].clone()
    assert torch.equal(state, right) and out.data_ptr() == state[:, 1:].data_ptr()
    assert [p.op for p in mode.found] == ["aten._foreach_copy_.default", "aten.mul_.Tensor"]


def test_branches_and_compiled_parts_of_a_model_run():
    """A higher-order op, as it is called eagerly, compiles itself."""
    state = _state()
    with torch.no_grad(), ReadsFirst() as mode:
        shifted = torch.cond(state.sum() > 0, lambda s: s + 1, lambda s: s - 1, (state,))
        torch.compile(shift, backend="eager", fullgraph=True)(state)
    right = _state()
    right[:, 1:] = right[:, :-1].clone()
    assert torch.equal(shifted, _state() + 1) and torch.equal(state, right) and len(mode.found) == 1


indices = st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True)


@given(indices, st.integers(0, 4), st.integers(0, 4), st.sampled_from(["index_copy_", "index_add_", "index_put_"]))
def test_random_writes_are_those_from_a_copy(to, target, source, op):
    """From any columns to any others, rows at any index."""
    at, rows = torch.tensor(to), len(to)
    mine, right = _state(), _state()
    before = right[:rows, source : source + 4].clone()
    args = ((at,),) if op == "index_put_" else (0, at)
    getattr(right[:, target : target + 4], op)(*args, before)
    with ReadsFirst():
        getattr(mine[:, target : target + 4], op)(*args, mine[:rows, source : source + 4])
    assert torch.equal(mine, right)


# ---------------------------------------------------------------------------------------------------- in verification
class Shifts(nn.Module):
    def __init__(self, temporary: bool = False) -> None:
        super().__init__()
        self.temporary = temporary
        self.register_buffer("state", _state())

    def forward(self, x):
        if self.temporary:
            self.state[:, 1:] = self.state[:, :-1].clone()
        else:
            shift(self.state)
        return x + 1


def test_a_repaired_replay_is_right_and_the_result_says_what_eager_depends_on(make_case, replays):
    result = replays(make_case(Shifts()))
    where = f"eager (aten.copy_.default) at {__file__}:{_line(shift)}"
    assert f"order of elements decides what this gives, compared with reads before writes: {where}" in str(result)
    shown = json.loads(json.dumps(result.to_dict()))
    assert shown["unordered"] == [{"op": "aten.copy_.default", "file": __file__, "line": _line(shift)}]


def test_a_naive_replay_is_wrong(make_case, differs):
    result = differs(make_case(Shifts()))
    assert {m.what for m in result.mismatches} == {"state state"} and result.unordered


def test_it_is_what_a_model_with_a_temporary_gives(make_case, replays):
    case = make_case(Shifts())
    case.reference = Shifts(temporary=True)
    assert replays(case).unordered == []
    assert replays(make_case(Shifts(temporary=True))).unordered == []


def test_nothing_is_said_of_other_models(make_case, replays):
    assert "unordered" not in replays(make_case(lambda x: x + 1)).to_dict()
