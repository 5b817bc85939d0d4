"""Python bodies of opaque ops: what they read and keep beside their arguments, found in their source."""

from __future__ import annotations

import functools
import random
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capwise
from capwise.backend import check_case
from capwise.bodies import acts
from capwise.ops import contract as c
from capwise.verify import verify

WIDTH = 4
TABLE = {4: 16, 2048: 128}
SEEN: dict[int, float] = {}
STATE = SimpleNamespace(scale=1.0, planned=None)
SCALE = ContextVar("scale", default=2.0)
GENERATOR = torch.Generator()
WEIGHT = torch.ones(4)
calls = 0


@dataclass(frozen=True)
class Config:
    width: int = 4


CONFIG = Config()


class Planner:
    def __init__(self):
        self.plan = None

    def run(self, x):
        if self.plan is None:
            self.plan = x.shape[0]
        return self.plan


PLANNER = Planner()


def get_scale():
    return STATE.scale


def set_scale(value):
    STATE.scale = value


@functools.cache
def choose(width):
    return width * 2


def clean(x):
    out = torch.empty_like(x)
    for row in range(x.shape[0]):
        out[row] = x[row] * TABLE[WIDTH] * CONFIG.width
    return torch.where(x > 0, out, x) if x.dim() == 2 else out


def counts(x):
    global calls
    calls += 1
    return x * calls


def plans(x):
    return x * PLANNER.run(x)


def remembers(x):
    if x.shape[0] not in SEEN:
        SEEN[x.shape[0]] = 2.0
    return x * SEEN[x.shape[0]]


def cached(x):
    return x * choose(x.shape[1])


def hidden(x):
    return x * get_scale()


def context(x):
    return x * SCALE.get()


def weight(x):
    w = WEIGHT
    return x * w


def draws(x):
    return x * random.random()


def seeds(x):
    return x + GENERATOR.initial_seed()


def noise(x):
    return x + torch.rand(4)


def reads(x):
    first = x[0].sum()
    return x * first.item()


def branches(x):
    total = x.sum()
    if total > 0:
        return x * 2
    return x * 3


def through_numpy(x):
    return torch.from_numpy(x.numpy() * 2)


def streams(x):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = x * 2
    return y


def joined(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    return y


FOUND = [
    (clean, set()),
    (counts, {("CW103", "calls")}),
    (plans, {("CW103", "PLANNER.plan")}),
    (remembers, {("CW103", "SEEN[...]")}),
    (cached, {("CW103", "choose()")}),
    (hidden, {("CW003", "STATE.scale")}),
    (context, {("CW003", "SCALE.get()")}),
    (weight, {("CW003", "WEIGHT")}),
    (draws, {("CW104", "random()")}),
    (seeds, {("CW104", "GENERATOR")}),
    (noise, {("CW104", "rand()")}),
    (reads, {("CW002", ".item()")}),
    (branches, {("CW002", "truth value")}),
    (through_numpy, {("CW002", ".numpy()")}),
    (streams, {("CW103", "not joined")}),
    (joined, set()),
]


@functools.cache
def op(body):
    body.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op(f"test_bodies::{body.__name__}", body, mutates_args=())
    made.register_fake(lambda x: torch.empty_like(x))
    return made._opoverload


@pytest.mark.parametrize(("body", "wanted"), FOUND, ids=lambda v: getattr(v, "__name__", ""))
def test_what_a_body_does_is_found(body, wanted: set[tuple[str, str]]) -> None:
    found = acts(op(body))
    assert {a.code for a in found} == {code for code, _ in wanted}, found
    for code, part in wanted:
        (act,) = [a for a in found if a.code == code]
        assert part in act.what and act.span.file == __file__
        assert body.__code__.co_firstlineno < act.span.line or body in (plans, hidden)


def test_what_nobody_changes_is_assumed() -> None:
    assert [a.verdict for f in (hidden, weight) for a in acts(op(f))] == ["refuted", "assumed"]


class Calls(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x) + 1


def case(body) -> capwise.Case:
    batches = [{"x": torch.arange(4.0 * t).view(t, 4) + t} for t in (4, 3, 2)]
    options = {"capture_sizes": (4,)}
    return capwise.Case(Calls(op(body)), batches, inputs={"x": ("T", 4)}, capacity={"T": 8}, options=options)


@pytest.mark.parametrize(("body", "code"), [(remembers, "CW103"), (hidden, "CW003"), (branches, "CW002")])
def test_the_body_counts_more_than_a_declaration(body, code: str) -> None:
    c.declare(op(body), c.Contract(rows={"x": c.Rows("T", 4), "out": c.Rows("T", 4)}, locality="row"))
    try:
        report = check_case(case(body))
    finally:
        c._DECLARED.pop(op(body))
    assert {d.code for d in report if d.severity == "warning"} == {code}
    assert [s.code for s in report.seams] == [code]
    (found,) = [d for d in report if d.code == code]
    assert f"{__file__}:" in found.notes[0]


def test_a_declared_op_that_reads_its_arguments_only_is_captured() -> None:
    c.declare(op(clean), c.Contract(rows={"x": c.Rows("T", 4), "out": c.Rows("T", 4)}, locality="row"))
    try:
        assert not check_case(case(clean)).seams
    finally:
        c._DECLARED.pop(op(clean))


def test_a_frozen_host_value_shows_and_the_seam_removes_it() -> None:
    assert not verify(case(through_numpy), unsafe=True).ok
    assert verify(case(through_numpy)).ok


@pytest.mark.parametrize("body", [counts, remembers, plans])
def test_a_seam_that_keeps_state_is_compared_with_a_run_that_keeps_its_own(body) -> None:
    result = verify(case(body))
    assert result.ok and "CW103" in result.report.codes(), str(result)
