"""Writes to copies that nobody reads again."""

from __future__ import annotations

import torch
from torch import nn

from capwise.ops.contract import Axes, Contract, contract

WIDTH = 4


@torch.library.custom_op("mutation_tests::add_one_", mutates_args={"x"})
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


@add_one_.register_fake
def _(x):
    return None


@contract("mutation_tests::add_one_")
def _() -> Contract:
    return Contract(rows={"x": Axes((None,), write=True)}, locality="row")


def _dense(x):
    return x.contiguous()


def _own(x):
    return x.clone()


class Column(nn.Module):
    """Adds to a column of a table through `how` of it."""

    def __init__(self, how, back: bool = False, in_place: bool = False) -> None:
        super().__init__()
        self.how, self.back, self.in_place = how, back, in_place
        self.register_buffer("table", torch.ones(3, 2))

    def forward(self, x):
        column = self.table[:, 0]
        dense = self.how(column)
        if self.in_place:
            dense.zero_()
        else:
            add_one_(dense)
        if self.back:
            column.copy_(dense)
        return x + column.sum()


class InPlace(Column):
    def forward(self, x):
        self.table[:, 0].add_(1)
        return x + self.table[:, 0].sum()


class Read(Column):
    """The copy is what the step goes on with."""

    def forward(self, x):
        dense = self.table[:, 0].contiguous()
        dense.add_(1)
        return x + dense.sum()


def _findings(program):
    return [d for d in program.report if d.code == "CW305"]


def test_a_write_to_a_dense_copy_is_carried_back(make_case, program_of, replays, differs):
    def case():
        made = make_case(Column(_dense))
        made.reference = InPlace(None)
        return made

    differs(case())
    replays(case())
    (found,) = _findings(program_of(case()))
    assert (found.verdict, found.repair, found.severity) == ("refuted", "copy back", "note")


class ReadBefore(Column):
    """The copy is the model's own: it has read it."""

    def forward(self, x):
        dense = self.table[:, 0].contiguous()
        total = dense.sum()
        add_one_(dense)
        return x + total


def test_a_clone_that_is_asked_for_is_meant(make_case, program_of, replays):
    in_place = Column(_dense, in_place=True)
    for model in (Column(_own), in_place, ReadBefore(None)):
        assert not _findings(program_of(make_case(model)))
        replays(make_case(model))


def test_no_finding_where_the_write_arrives_or_is_read(make_case, program_of):
    for model in (Column(_dense, back=True), InPlace(None), Read(None)):
        assert not _findings(program_of(make_case(model)))


def test_before_and_after(make_case, around, text):
    before, after = around(make_case(Column(_dense)), "copy_back")
    lines = [line for line in after.splitlines() if line not in before.splitlines()]
    assert [line.split("=")[-1].split("(")[0].strip() for line in lines if "copy_" in line] == ["aten.copy_.default"]
    assert around(make_case(Read(None)), "copy_back")[0] == around(make_case(Read(None)), "copy_back")[1]
