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


ASSUMED, REFUTED = ("assumed", "temporary"), ("refuted", "temporary")
# A statement over the state, the input and the slots; its op; and the verdict: the data says where, or the shapes do.
OVERLAPS = {
    "columns": (lambda s, x, i: s[:, 1:].copy_(s[:, :-1]), "copy_.default", REFUTED),
    "columns, assigned": (lambda s, x, i: s[:, 1:5].__setitem__(..., s[:, :4]), "copy_.default", REFUTED),
    "rows with gaps": (lambda s, x, i: s[1:, :4].copy_(s[:-1, :4]), "copy_.default", REFUTED),
    "transposed": (lambda s, x, i: s[:6, :6].copy_(s[:6, :6].t()), "copy_.default", REFUTED),
    "one row for all": (lambda s, x, i: s[:, :4].add_(s[0, :4]), "add_.Tensor", REFUTED),
    "third operand": (lambda s, x, i: s[:, 1:].addcmul_(s[:, 1:], s[:, :-1]), "addcmul_.default", REFUTED),
    "index_copy_": (lambda s, x, i: _left(s).index_copy_(0, i, _of(s, i)), "index_copy_.default", ASSUMED),
    "index_put_": (lambda s, x, i: _left(s).index_put_((i,), _of(s, i)), "index_put_.default", ASSUMED),
    "accumulated": (lambda s, x, i: _left(s).index_put_((i,), _of(s, i), True), "index_put_.default", ASSUMED),
    "index_add_": (lambda s, x, i: _left(s).index_add_(0, i, _of(s, i)), "index_add_.default", ASSUMED),
    "scatter_": (lambda s, x, i: _left(s).scatter_(0, _rows(i), _of(s, i)), "scatter_.src", ASSUMED),
    "scatter_add_": (lambda s, x, i: _left(s).scatter_add_(0, _rows(i), _of(s, i)), "scatter_add_.default", ASSUMED),
    "masked_scatter_": (lambda s, x, i: _masked(s[2:, 1:5], s[:6]), "masked_scatter_.default", ASSUMED),
    "lists": (lambda s, x, i: torch._foreach_copy_([*s.T[1:3]], [*s.T[:2]]), "_foreach_copy_.default", REFUTED),
    "one for a list": (lambda s, x, i: torch._foreach_mul_([*s.T[:2]], s[2, 0]), "_foreach_mul_.Tensor", REFUTED),
    "out= of a product": (lambda s, x, i: torch.mm(s[:8], s[4:], out=s[:8]), "mm.out", REFUTED),
    "out= of a sort": (lambda s, x, i: _sorted(_left(s), s[:, 1:5]), "sort.values", REFUTED),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_what_is_read_where_it_is_written_is_found_and_read_from_a_temporary(writes, replays, name):
    write, op, expected = OVERLAPS[name]
    report = check_case(writes(write))
    found = [d for d in report if d.code == "CW304"]
    assert {(d.verdict, d.repair) for d in found} == {expected} and {d.op for d in found} == {f"aten.{op}"}
    assert {d.severity for d in found} == {"note"}
    assert {d.file for d in found} == {__file__} and min(d.line for d in found) > 0
    result = replays(writes(write))
    assert [p.op for p in result.unordered] == [f"aten.{op}"]  # eager's own result depends on an order
    assert not capwise.verify(writes(write), unsafe=True).ok


def test_the_finding_is_at_the_line_of_the_write(writes):
    def write(s, x, i):
        s.add_(1)
        s[i, :4] = s[: i.shape[0], :4]

    (found,) = [d for d in check_case(writes(write)) if d.code == "CW304"]
    assert (found.file, found.line) == (__file__, inspect.getsourcelines(write)[1] + 2)
    assert found.message == "aten.index_put_.default reads values and writes self, which share memory"


IN_ORDER = {
    "itself": lambda s, x, i: s.copy_(s),
    "itself, elementwise": lambda s, x, i: s.add_(s).mul_(s),
    "itself by another view": lambda s, x, i: s[2:, :4].add_(s[:, :4][2:]),
    "one column as another dtype": lambda s, x, i: s[:, :4].copy_(s[:, :4].view(torch.int32).view(torch.float32)),
    "a row to all rows": lambda s, x, i: s[:, :4].copy_(s[3, :4]),
    "one element to all": lambda s, x, i: s.fill_(s[3, 1]),
    "sums in place": lambda s, x, i: torch.cumsum(s, 0, out=s),
    "rows": lambda s, x, i: s[0].copy_(s[1]),
    "even rows and odd ones": lambda s, x, i: s[::2].sub_(s[1::2]),
    "columns": lambda s, x, i: s[:, :4].copy_(s[:, 4:]),
    "columns at slots": lambda s, x, i: s[:, :4].index_put_((i,), s[: i.shape[0], 4:]),
    "rows that no request has": lambda s, x, i: s[:4].index_add_(0, i - 1, s[8 : 8 + i.shape[0]]),
    "the rows after": lambda s, x, i: s[: i.shape[0]].copy_(s[i.shape[0] : 2 * i.shape[0]]),
    "lists": lambda s, x, i: torch._foreach_add_([*s.T[:2]], [*s.T[:2]]),
    "rows at slots": lambda s, x, i: s.index_put_((i,), s[i.flip(0)]),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_is_read_at_its_own_place_or_elsewhere_is_in_order(writes, replays, name):
    write = IN_ORDER[name]
    assert _found(writes(write)) == []
    assert replays(writes(write)).unordered == []


def test_an_engine_that_only_splits_has_temporaries_too(writes, replays):
    """A seam runs the same kernel in the same order."""

    def write(s, x, i):
        s[:, :4].index_copy_(0, i, s[: i.shape[0], :4])

    report = check_case(writes(write), repair="split")
    assert [seam.op for seam in report.seams] == ["aten.index_copy_.default"]
    assert [d.repair for d in report if d.code == "CW304"] == ["temporary"]
    replays(writes(write), repair="split")


@pytest.mark.parametrize("offset", [0, 1])
def test_a_masked_write_is_a_temporary_by_itself(writes, replays, offset):
    """Rows of the state that no token owns stay, and those that are written come from the rows that were there."""

    def write(s, x, i):
        s[: i.shape[0], 1:5].copy_(s[offset : offset + i.shape[0], :4])

    found = {d.repair for d in check_case(writes(write)) if d.code in ("CW204", "CW304")}
    assert found == {"masked write", "temporary"}
    replays(writes(write))


def test_its_author_may_answer_for_it(writes):
    def write(s, x, i):
        with capwise.allow("CW304", reason="slots never lie in the first rows"):
            s[i, :4] = s[: i.shape[0], :4]

    (found,) = [d for d in check_case(writes(write)) if d.code == "CW304"]
    assert found.repair is None and found.verdict == "assumed" and "slots never lie" in found.notes[-1]


def test_a_naive_engine_is_told(writes):
    found = _found(writes(lambda s, x, i: s[:, 1:].copy_(s[:, :-1])), repair="none")
    assert found == [("refuted", None, "aten.copy_.default")]


def test_a_missed_temporary_is_a_bug_of_the_compiler(writes, monkeypatch):
    monkeypatch.setattr(Temporary, "run", lambda self, graph: False)
    report = check_case(writes(lambda s, x, i: s[:, 1:].copy_(s[:, :-1])))
    assert [d.message for d in report if d.code == "CW901"] == [
        "a repair did not remove CW304: aten.copy_.default reads src and writes self, which share memory"
    ]
