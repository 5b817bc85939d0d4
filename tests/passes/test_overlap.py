"""What an ATen op reads where it writes: found by place, not by name, and read from a temporary."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import capwise
from capwise.backend import check_case
from capwise.passes.temporary import Temporary


class Model(nn.Module):
    """Writes to a state of [12, 8] by one statement."""

    def __init__(self, write) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("state", torch.arange(96.0).view(12, 8) / 8)
        self.register_buffer("numbers", torch.tensor([3, 0, 2, 1, 5, 4, 6, 7]))

    def forward(self, x, slots):
        self.write(self.state, x, slots)
        return x + self.numbers.sum()


@pytest.fixture
def writes(make_case, rows):
    """The case of one statement: four, then two slots; few enough that none is spare."""

    def of(write, **options):
        slots = [torch.tensor(s) for s in ([3, 1, 2, 4], [2, 1], [4, 3, 1])]
        batches = [{"x": rows(t), "slots": s} for t, s in zip((6, 5, 3), slots)]
        return make_case(Model(write), batches, {"slots": ("R",)}, **options)

    return of


def _found(case, **options):
    report = check_case(case, **options)
    return [(d.verdict, d.repair, d.op) for d in report if d.code == "CW304"]


def _left(state):
    return state[:, :4]


def _of(state, slots):
    """As many rows as there are slots, in other places than the slots say."""
    return state[: slots.shape[0], :4]


def _rows(slots):
    return slots[:, None].expand(-1, 4)


def _masked(target, source):
    target.masked_scatter_(target > 3, source)


def _sorted(source, target):
    torch.sort(source, 1, True, out=(target, target.long()))


# Statements over the state, the input and the slots, each with its op: by shapes alone, places are known; by data, not.
OVERLAPS = {
    "refuted": {
        "copy_.default": lambda s, x, i: s[:, 1:].copy_(s[:, :-1]),
        "copy_.default, assigned": lambda s, x, i: s[:, 1:5].__setitem__(..., s[:, :4]),
        "copy_.default, rows with gaps": lambda s, x, i: s[1:, :4].copy_(s[:-1, :4]),
        "copy_.default, transposed": lambda s, x, i: s[:6, :6].copy_(s[:6, :6].t()),
        "add_.Tensor": lambda s, x, i: s[:, :4].add_(s[0, :4]),
        "addcmul_.default": lambda s, x, i: s[:, 1:].addcmul_(s[:, 1:], s[:, :-1]),
        "_foreach_copy_.default": lambda s, x, i: torch._foreach_copy_([*s.T[1:3]], [*s.T[:2]]),
        "_foreach_mul_.Tensor": lambda s, x, i: torch._foreach_mul_([*s.T[:2]], s[2, 0]),
        "mm.out": lambda s, x, i: torch.mm(s[:8], s[4:].sigmoid(), out=s[:8]),
        "sort.values": lambda s, x, i: _sorted(_left(s), s[:, 1:5]),
    },
    "assumed": {
        "index_copy_.default": lambda s, x, i: _left(s).index_copy_(0, i, _of(s, i)),
        "index_put_.default": lambda s, x, i: _left(s).index_put_((i,), _of(s, i)),
        "index_put_.default, accumulated": lambda s, x, i: _left(s).index_put_((i,), _of(s, i), True),
        "index_add_.default": lambda s, x, i: _left(s).index_add_(0, i, _of(s, i)),
        "scatter_.src": lambda s, x, i: _left(s).scatter_(0, _rows(i), _of(s, i)),
        "scatter_add_.default": lambda s, x, i: _left(s).scatter_add_(0, _rows(i), _of(s, i)),
        "masked_scatter_.default": lambda s, x, i: _masked(s[2:, 1:5], s[:6]),
    },
}


@pytest.mark.parametrize("verdict", OVERLAPS)
def test_what_is_read_where_it_is_written_is_found_and_read_from_a_temporary(writes, replays, verdict):
    """Each by itself in a state as it was, so that eager's own result shows the order of every one."""
    statements = OVERLAPS[verdict]

    def write(s, x, i):
        before = s.clone()
        for one in statements.values():
            s.copy_(before)
            one(s, x, i)

    result = replays(writes(write))
    found = [d for d in result.report if d.code == "CW304"]
    ops = [f"aten.{name.partition(',')[0]}" for name in statements]
    assert sorted(d.op for d in found) == sorted(ops)
    assert {(d.verdict, d.repair, d.severity) for d in found} == {(verdict, "temporary", "note")}
    assert {d.file for d in found} == {__file__} and len({d.line for d in found}) == len(ops)
    # Whether a product into one of its factors shows an order is for the BLAS to say.
    assert [p.op for p in result.unordered if p.op != "aten.mm.out"] == [op for op in ops if op != "aten.mm.out"]


@pytest.mark.parametrize(("verdict", "op"), [("refuted", "copy_.default"), ("assumed", "index_put_.default")])
def test_a_naive_engine_takes_them_in_the_order_of_a_kernel(writes, verdict, op):
    write = OVERLAPS[verdict][op]
    assert not capwise.verify(writes(write), unsafe=True, poison=False).ok
    assert _found(writes(write), repair="none") == [(verdict, None, f"aten.{op}")]


def test_the_finding_is_at_the_line_of_the_write(writes):
    def write(s, x, i):
        s.add_(1)
        s[i, :4] = s[: i.shape[0], :4]

    (found,) = [d for d in check_case(writes(write)) if d.code == "CW304"]
    assert (found.file, found.line) == (__file__, inspect.getsourcelines(write)[1] + 2)
    assert found.message == "aten.index_put_.default reads values and writes self, which share memory"


IN_ORDER = [
    lambda s, x, i: s.copy_(s),
    lambda s, x, i: s.add_(s).mul_(s),
    lambda s, x, i: s[2:, :4].add_(s[:, :4][2:]),  # the same places by another view
    lambda s, x, i: s[:, :4].copy_(s[:, :4].view(torch.int32).view(torch.float32)),
    lambda s, x, i: s[:, :4].copy_(s[3, :4]),  # row 3 stays what it is
    lambda s, x, i: s.fill_(s[3, 1]),
    lambda s, x, i: torch.cumsum(s, 0, out=s),  # as in place
    lambda s, x, i: s[0].copy_(s[1]),
    lambda s, x, i: s[::2].sub_(s[1::2]),
    lambda s, x, i: s[:, :4].copy_(s[:, 4:]),
    lambda s, x, i: s[:, :4].index_put_((i,), s[: i.shape[0], 4:]),
    lambda s, x, i: s[:4].index_add_(0, i - 1, s[8 : 8 + i.shape[0]]),
    lambda s, x, i: s[: i.shape[0]].copy_(s[i.shape[0] : 2 * i.shape[0]]),
    lambda s, x, i: torch._foreach_add_([*s.T[:2]], [*s.T[:2]]),
    lambda s, x, i: s.index_put_((i,), s[i.flip(0)]),  # what is gathered is another tensor
]


def test_what_is_read_at_its_own_place_or_elsewhere_is_in_order(writes, replays):
    def write(s, x, i):
        for one in IN_ORDER:
            one(s, x, i)

    result = replays(writes(write))
    assert [str(d) for d in result.report if d.code == "CW304"] == [] and result.unordered == []


def test_an_engine_that_only_splits_has_temporaries_too(writes, replays):
    """A seam runs the same kernel in the same order."""

    def write(s, x, i):
        s[:, :4].index_copy_(0, i, s[: i.shape[0], :4])

    report = replays(writes(write), repair="split").report
    assert [seam.op for seam in report.seams] == ["aten.index_copy_.default"]
    assert [d.repair for d in report if d.code == "CW304"] == ["temporary"]


@pytest.mark.parametrize("offset", [0, 1])
def test_a_masked_write_is_a_temporary_by_itself(writes, replays, offset):
    """Rows of the state that no token owns stay, and those that are written come from the rows that were there."""

    def write(s, x, i):
        s[: i.shape[0], 1:5].copy_(s[offset : offset + i.shape[0], :4])

    report = replays(writes(write)).report
    assert {d.repair for d in report if d.code in ("CW204", "CW304")} == {"masked write", "temporary"}


def test_its_author_may_answer_for_it(writes):
    def write(s, x, i):
        with capwise.allow("CW304", reason="slots never lie in the first rows"):
            s[i, :4] = s[: i.shape[0], :4]

    (found,) = [d for d in check_case(writes(write)) if d.code == "CW304"]
    assert found.repair is None and found.verdict == "assumed" and "slots never lie" in found.notes[-1]


def test_a_missed_temporary_is_a_bug_of_the_compiler(writes, monkeypatch):
    monkeypatch.setattr(Temporary, "run", lambda self, graph: False)
    report = check_case(writes(lambda s, x, i: s[:, 1:].copy_(s[:, :-1])))
    assert [d.message for d in report if d.code == "CW901"] == [
        "a repair did not remove CW304: aten.copy_.default reads src and writes self, which share memory"
    ]
