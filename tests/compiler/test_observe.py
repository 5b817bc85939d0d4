"""What an op's body is seen to write, and which bodies are left alone."""

from __future__ import annotations

import os

import numpy
import pytest
import torch
from torch import nn

from capwise.backend import check_case
from capwise.observe import touches_arguments_only
from capwise.ops.contract import Contract, Rows, declare

SEEN: list[int] = []
SCALE = 2.0
COUNTER = {"calls": 0}


def _register(name, body):
    op = torch.library.custom_op(f"observed::{name}", body, mutates_args=())
    op.register_fake(lambda x, out: x.new_empty(x.shape))
    return op._opoverload


def honest(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return x + out * SCALE


def silent(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    _helper(x, out)
    return x + 1


def same_value(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.mul_(1)
    return x + 1


def hidden(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    COUNTER["calls"] += 1
    return x + 1


def _helper(x, out):
    out[0] = x.sum() + 7


HONEST, SILENT, SAME, HIDDEN = (_register(f.__name__, f) for f in (honest, silent, same_value, hidden))


class Calls(nn.Module):
    """The write comes after the last node that the schema would order it against."""

    def __init__(self, op) -> None:
        super().__init__()
        self.op = op

    def forward(self, x):
        out = x * 1
        y = self.op(x, out)
        return y, out + 1


def _found(make_case, op):
    return [d for d in check_case(make_case(Calls(op))) if d.code == "CW305"]


@pytest.mark.parametrize("op", (SILENT, SAME), ids=str)
def test_a_write_behind_the_schemas_back_is_seen_and_kept_in_order(make_case, replays, op):
    (found,) = _found(make_case, op)
    assert (found.repair, found.verdict) == ("seam", "refuted") and "writes out" in found.message
    replays(make_case(Calls(op)))


@pytest.mark.parametrize("op", (HONEST, HIDDEN), ids=str)
def test_an_op_that_writes_nothing_or_is_not_run_has_no_finding(make_case, op):
    assert not _found(make_case, op)


def test_a_body_that_changes_more_than_its_arguments_is_not_run(make_case):
    check_case(make_case(Calls(HIDDEN)))
    assert COUNTER["calls"] == 0


def test_the_contracts_word_counts_where_the_body_is_not_run(make_case):
    op = _register("said", hidden)
    declare(op, Contract(rows={"x": Rows("T", 4), "out": Rows("T", 4, write=True)}, locality="row"))
    (found,) = _found(make_case, op)
    assert "writes out" in found.message


def test_which_bodies_touch_their_arguments_only():
    tensor = torch.ones(2)
    limit = 3

    def closes_over_a_number(x):
        return x + limit

    def closes_over_a_tensor(x):
        return x + tensor

    def counts(x):
        nonlocal limit
        limit += 1
        return x

    def reads_the_environment(x):
        return x if os.environ.get("X") else x + 1

    def appends(x):
        SEEN.append(1)
        return x

    def sets_an_attribute(x):
        x.seen = True
        return x

    def prints(x):
        print(x)
        return x

    assert all(map(touches_arguments_only, (honest, silent, same_value, closes_over_a_number)))
    refused = (hidden, closes_over_a_tensor, counts, reads_the_environment, appends, sets_an_attribute, prints)
    assert not any(map(touches_arguments_only, refused))


# ------------------------------------------------------------------------------------------ work outside a recording
def unseen(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    numpy.multiply(x.numpy(), 2, out=result.numpy())
    return result


def partly_written(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    result[:1] = x[:1]
    return result[:1].expand(x.shape).clone()


UNSEEN, PARTLY = (_register(f.__name__, f) for f in (unseen, partly_written))
for _op in (UNSEEN, PARTLY):
    declare(_op, Contract(rows={"x": Rows("T", 4), "out": Rows("T", 4)}, locality="row"))


def test_work_that_a_recording_does_not_hold_is_done_eagerly(make_case, replays, differs):
    differs(make_case(Calls(UNSEEN)))
    replays(make_case(Calls(UNSEEN)))
    (found,) = [d for d in check_case(make_case(Calls(UNSEEN))) if d.code == "CW103"]
    assert found.repair == "seam" and "computes out outside" in found.message


def test_recorded_work_and_unwritten_rows_have_no_finding(make_case):
    assert "CW103" not in check_case(make_case(Calls(PARTLY))).codes()
    assert "CW103" not in check_case(make_case(Calls(HONEST))).codes()


# ------------------------------------------------------------------------------------------ promised strides
def strided(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, out], 1)[:, :4]


def one_row(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, out], 1)[:, :4].clone(memory_format=torch.contiguous_format)


STRIDED, DENSE = (_register(f.__name__, f) for f in (strided, one_row))
for _op in (STRIDED, DENSE):
    declare(_op, Contract(rows={"x": Rows("T", 4), "out": Rows("T", 4)}, locality="row"))


def test_results_that_are_laid_out_otherwise_than_promised(make_case, replays):
    (found,) = [d for d in check_case(make_case(Calls(STRIDED))) if d.code == "CW401"]
    assert found.repair == "seam" and "lays out out" in found.message
    replays(make_case(Calls(STRIDED)))
    assert "CW401" not in check_case(make_case(Calls(DENSE))).codes()
