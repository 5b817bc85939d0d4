"""Each adversary alone finds a fault that all others together miss, and none accuses a model that is right."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import nn

import capwise
from capwise.ops.contract import Contract, Rows, contract
from capwise.verify import ADVERSARIES

HOST = {"calls": 0, "table": None}
# What no reader of bodies can see: functions without a source, as those of an extension module are.
_PLACES = {"host": HOST, "torch": torch}
called = eval("lambda: host.update(calls=host['calls'] + 1) or host['calls']", _PLACES)
table = eval("lambda new: host.update(table=torch.arange(4.0) * 3 if new else host['table']) or host['table']", _PLACES)


@triton.jit
def shift_rows(x, rows, width, BLOCK: tl.constexpr):
    """Each program takes the row after its own: right only where programs run in order."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + (row + 1) * width + at, mask=row + 1 < rows, other=0.0)
    tl.store(x + row * width + at, value)


@triton.jit
def count_rows(count, x):
    """Every program adds one: right only where no two programs are between load and store."""
    tl.store(count, tl.load(count) + 1 + 0 * tl.load(x))


@triton.jit
def add_rows(count, x):
    """The same with an atomic: right in any order."""
    tl.atomic_add(count, 1.0 + 0 * tl.load(x))


@triton.jit
def double_rows(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.store(out + row * width + at, 2 * tl.load(x + row * width + at))


@torch.library.custom_op("adversaries::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    shift_rows[(x.shape[0],)](out, x.shape[0], x.shape[1], BLOCK=4)
    return out


@torch.library.custom_op("adversaries::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(1)
    count_rows[(3,)](count, x)
    return x + count


@torch.library.custom_op("adversaries::added", mutates_args=())
def added(x: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(1)
    add_rows[(3,)](count, x)
    return x + count


@torch.library.custom_op("adversaries::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    double_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=4)
    return out


@torch.library.custom_op("adversaries::sums", mutates_args=())
def sums(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum(0)


@torch.library.custom_op("adversaries::remembers", mutates_args=())
def remembers(x: torch.Tensor) -> torch.Tensor:
    """Makes a table when it sees eight rows, in memory of the graph that is being recorded then."""
    return x + table(x.shape[0] == 8)


@torch.library.custom_op("adversaries::latches", mutates_args=())
def latches(x: torch.Tensor) -> torch.Tensor:
    """What the host wrote into a constant is frozen; it stays below every tolerance."""
    return x + torch.tensor([called() * 1e-6])


@torch.library.custom_op("adversaries::harmless", mutates_args=())
def harmless(x: torch.Tensor) -> torch.Tensor:
    """The frozen number changes no value, so far."""
    return x + x * 0 * called()


OPS = (shifted, counted, added, doubled, sums, remembers, latches, harmless)
for _op in OPS:
    _op.register_fake(lambda x: torch.empty_like(x))

# What each says of itself is that it is row-local and reads nothing hidden.
for _op in OPS:
    contract(f"adversaries::{_op._name}")(
        lambda: Contract(rows={"x": Rows("T", None), "out": Rows("T", None)}, locality="row")
    )


@pytest.fixture(autouse=True)
def _host():
    HOST.update(calls=0, table=None)


def _steps(*counts):
    return [{"x": torch.arange(1, t * 4 + 1, dtype=torch.float32).view(t, 4) / 8} for t in counts]


# The fault, the adversary that finds it, and a history that it needs.
FAULTS = {
    "a tail that shows": (sums, "poison", _steps(3)),
    "programs that wait for each other": (shifted, "order", _steps(8, 8)),
    "a lost update": (counted, "order", _steps(8, 8)),
    "memory of another graph": (remembers, "pool", _steps(8, 16)),
    "a number latched at capture": (latches, "fresh", _steps(8, 8)),
    "a launch that depends on the batch": (harmless, "layouts", _steps(8, 8)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_adversary_alone_finds_what_all_others_miss(fault, make_case):
    op, name, steps = FAULTS[fault]
    case = make_case(lambda x: op._opoverload(x) + 1, steps)
    alone = capwise.verify(case, adversaries=(name,))
    assert not alone.ok and alone.adversaries == (name,)
    # What reads another graph's memory reads it eagerly too by then: no node differs.
    assert name == "pool" or alone.first.op == f"adversaries.{op._name}.default"
    HOST.update(calls=0, table=None)
    others = capwise.verify(case, adversaries=[n for n in ADVERSARIES if n != name])
    assert others.ok, str(others)


def test_the_tests_here_have_every_adversary():
    assert {name for _, name, _ in FAULTS.values()} | {"writes"} == set(ADVERSARIES)


def _metadata():
    """Metadata in the front of a buffer of 16."""
    return [{"x": torch.ones(t, 4), "n": (torch.arange(16) * t)[:t]} for t in (6, 5, 3)]


def test_a_host_that_writes_early_is_seen_through_a_buffer_and_not_through_a_staged_input(make_case):
    """The same model twice: read in place at replay, and copied before anything runs."""
    in_place = make_case(lambda x, n: x + n[:, None], _metadata(), {"n": capwise.Buffer("T")})
    alone = capwise.verify(in_place, adversaries=["writes"])
    assert not alone.ok and alone.adversaries == ("writes",) and alone.first.op == "aten.add.Tensor"
    assert capwise.verify(in_place, adversaries=[n for n in ADVERSARIES if n != "writes"]).ok
    assert capwise.verify(in_place).ok  # a Buffer's owner orders its writes, unless it is asked for
    staged = make_case(lambda x, n: x + n[:, None], _metadata(), {"n": ("T",)})
    assert capwise.verify(staged, adversaries=["writes"]).ok


class Right(nn.Module):
    """Kernels that write their own rows, sums by atomics, state in slots, random numbers, a rebound attribute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8, 4))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, slots):
        self.seen[slots] = x
        self.steps = self.steps + 1
        return doubled(x) + added(x) + self.steps, torch.rand_like(x[0]) * 0


def test_no_adversary_accuses_a_model_that_is_right(make_case):
    steps = [{**s, "slots": torch.arange(1, len(s["x"]) + 1)} for s in _steps(6, 5, 7)]
    result = capwise.verify(make_case(Right(), steps, {"slots": capwise.Input("T", null=0)}), histories=3)
    assert result.ok and result.steps >= 9, str(result)


def test_an_adversary_that_does_not_exist_is_refused(make_case):
    with pytest.raises(ValueError, match="got 'poisson'; did you mean 'poison'"):
        capwise.verify(make_case(lambda x: x), adversaries=["poisson"])
