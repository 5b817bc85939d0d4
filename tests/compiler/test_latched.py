"""Ops whose launches differ from call to call: sample calls are made twice."""

from __future__ import annotations

import pytest
import torch

from capwise.ops import contract as c
from capwise.ops.launch import jit, tl
from capwise.testing import ContractError, check_declared, open_op


@jit
def _scale(x_ptr, out_ptr, factor, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * factor)


plans: list[int] = []


def _launch(x, factor, rows):
    out = torch.empty_like(x)
    _scale[(rows,)](x, out, factor, N=4)
    return out


def plain(x):
    return _launch(x, 2, x.shape[0])


def counted(x):
    plans.append(1)
    return _launch(x, len(plans), x.shape[0])


def widest(x):
    plans.append(x.shape[0])
    return _launch(x, 2, max(plans))


def planned_once(x):
    if not plans:
        plans.append(1)
        _launch(x, 1, 1)
    return _launch(x, 2, x.shape[0])


def _op(body):
    body.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op(f"test_latched::{body.__name__}", body, mutates_args=())
    made.register_fake(lambda x: torch.empty_like(x))
    return made._opoverload


SAMPLES = [((torch.ones(rows, 4),), {}) for rows in (2, 5, 3)]
AXES = {"x": ("T", 4)}


@pytest.mark.parametrize(("body", "what"), [
    (counted, "with factor=4, not 1"), (widest, "over (5, 1, 1), not (2, 1, 1)"), (planned_once, "launches _scale"),
])  # fmt: skip
def test_a_second_call_that_launches_something_else_is_state(body, what: str) -> None:
    plans.clear()
    opened = open_op(_op(body), SAMPLES, AXES)
    (reason,) = opened.reasons
    assert reason.startswith("CW103: sample 0") and what in reason and opened.contract is None


def test_a_declaration_does_not_hide_it_unless_it_says_so() -> None:
    plans.clear()
    op, rows = _op(counted), {"x": c.Rows("T", 4), "out": c.Rows("T", 4)}
    with pytest.raises(ContractError, match="keeps state from call to call"):
        check_declared(op, c.Contract(rows=rows, locality="row"), SAMPLES)
    check_declared(op, c.Contract(rows=rows, locality="row", hidden=True), SAMPLES)


def test_an_op_that_keeps_nothing_is_opened() -> None:
    opened = open_op(_op(plain), SAMPLES, AXES)
    assert opened.contract is not None and not opened.reasons
