"""Ops that go on while later launches run: reads before the wait, writes before the end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capwise.backend import check_case
from capwise.ops.contract import Contract, Rows, declare


@torch.library.custom_op("pending::start", mutates_args=())
def start(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


@torch.library.custom_op("pending::wait", mutates_args=())
def wait(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return out + x * 2


start.register_fake(torch.empty_like)
wait.register_fake(lambda out, x: torch.empty_like(out))
_ROWS = {"x": Rows("T", 4), "out": Rows("T", 4)}
declare(wait._opoverload, Contract(rows=_ROWS, locality="row"))
declare(start._opoverload, Contract(rows=_ROWS, locality="row", until="pending::wait"))


class Waits(nn.Module):
    def forward(self, x):
        y = x * 1
        out = start(y)
        z = x + 1
        out = wait(out, y)
        y.add_(1)
        return out[:, :2] * 3, y + z


class ReadsEarly(nn.Module):
    """Through a view, and nobody waits."""

    def forward(self, x):
        out = start(x)
        return out[:, :2] * 3, x + 1


class Returns(nn.Module):
    def forward(self, x):
        return start(x)


class Writes(nn.Module):
    def forward(self, x):
        y = x * 1
        out = start(y)
        y[:, 0].add_(1)
        out = wait(out, y)
        return out, y


class Both(nn.Module):
    """Read before it is waited for elsewhere: nothing that is inserted could be right for both."""

    def forward(self, x):
        out = start(x)
        early = out * 3
        return early, wait(out, x)


def _right(model):
    class Reference(nn.Module):
        def forward(self, x):
            if isinstance(model, ReadsEarly):
                return x[:, :2] * 6, x + 1
            if isinstance(model, Writes):
                after = x.clone()
                after[:, 0] += 1
                return x * 2, after
            return x * 2

    return Reference()


def _found(case):
    return [(d.verdict, d.repair) for d in check_case(case) if d.code == "CW304"]


@pytest.mark.parametrize(("model", "repair"), [(ReadsEarly(), "wait"), (Returns(), "wait"), (Writes(), "temporary")])
def test_what_comes_too_early_is_repaired(make_case, replays, differs, model, repair):
    case = make_case(model)
    case.reference = _right(model)
    assert _found(case) == [("refuted", repair)]
    differs(case)
    replays(case)


def test_an_op_that_is_waited_for_has_no_finding(make_case, replays):
    assert _found(make_case(Waits())) == []
    replays(make_case(Waits()))


def test_a_read_before_somebody_elses_wait_is_an_error(make_case):
    assert _found(make_case(Both())) == [("refuted", None)]


def test_until_must_name_an_op():
    with pytest.raises(ValueError, match="expected a registered op"):
        declare(start._opoverload, Contract(rows=_ROWS, until="pending::nothing"))
