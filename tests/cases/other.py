"""Public faults of other kinds."""

from __future__ import annotations

import numpy
import torch
from torch import nn

from capwise.case import Case
from capwise.ops.contract import Contract, Rows, declare
from tests.cases.harness import CAPTURE, Record


# ------------------------------------------------------------------------------------------- C99: planned only once
class PlansIfNotPlanned(nn.Module):
    """A warm-up before capture has planned; every step leaves the next one to plan."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("plan", torch.tensor([1, 1]))
        self.planned = True

    def forward(self, x, lengths):
        if not self.planned:
            self.plan.copy_(lengths)
        covered = torch.minimum(lengths, self.plan)
        self.planned = False
        return covered, x + 1


class Plans(nn.Module):
    """A warm-up before capture has planned; every step leaves the next one to plan."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("plan", torch.tensor([1, 1]))

    def forward(self, x, lengths):
        self.plan.copy_(lengths)
        covered = torch.minimum(lengths, self.plan)
        return covered, x + 1


def _c99(model: nn.Module) -> Case:
    return Case(
        model=model,
        batches=[{"x": torch.ones(3), "lengths": torch.tensor(n)} for n in ([1, 1], [2, 4])],
        inputs={"x": ("T",), "lengths": (2,)},
        capacity={"T": 4},
        options={"capture_sizes": (4,)},
        name="C99 planned once",
    )


# ---------------------------------------------------------------------------------- C101: launched outside the capture
def _twice_unseen(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    numpy.multiply(x.numpy(), 2, out=y.numpy())
    return y


def _twice(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.mul(x, 2, out=y)
    return y


class TwiceUnseen(nn.Module):
    def forward(self, x):
        return torch.ops.cases.twice_unseen(x)


class Twice(nn.Module):
    def forward(self, x):
        return torch.ops.cases.twice(x)


for _name, _body in (("twice_unseen", _twice_unseen), ("twice", _twice)):
    _op = torch.library.custom_op(f"cases::{_name}", _body, mutates_args=())
    _op.register_fake(torch.empty_like)
    declare(_op._opoverload, Contract(rows={"x": Rows("T"), "out": Rows("T", write=True)}, locality="row"))


def _c101(model: nn.Module) -> Case:
    return Case(
        model=model,
        batches=[{"x": torch.tensor([1.0, 1.0])}, {"x": torch.tensor([5.0])}],
        inputs={"x": ("T",)},
        capacity={"T": 2},
        options={"capture_sizes": (2,)},
        name="C101 outside the capture",
    )


# ------------------------------------------------------------------------------- C103: tokens move, positions do not
class ShiftsInPython(nn.Module):
    """A draft step moves its tokens on by one, on the device, and its positions by a number that the runner counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("tokens", torch.tensor([10, 11, 12]))
        self.shift = 0

    def forward(self, token, x):
        positions = torch.arange(3) + self.shift
        tokens = self.tokens.clone()
        self.tokens.copy_(torch.cat([tokens[1:], token]))
        self.shift += 1
        return positions, tokens, x + 1


class ShiftsOnDevice(nn.Module):
    """A draft step moves its tokens on by one, on the device, and its positions by a number that the runner counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("tokens", torch.tensor([10, 11, 12]))
        self.register_buffer("shift", torch.tensor(0))

    def forward(self, token, x):
        positions = torch.arange(3) + self.shift
        tokens = self.tokens.clone()
        self.tokens.copy_(torch.cat([tokens[1:], token]))
        self.shift.add_(1)
        return positions, tokens, x + 1


def _c103(model: nn.Module) -> Case:
    return Case(
        model=model,
        batches=[{"token": torch.tensor([13 + i]), "x": torch.ones(2)} for i in range(2)],
        inputs={"token": (1,), "x": ("T",)},
        capacity={"T": 2},
        options={"capture_sizes": (2,)},
        name="C103 paired inputs",
    )


# ------------------------------------------------------------------------ C105: a bucket that the buffers do not hold
class AddsSmallBuffer(nn.Module):
    """Room for two requests of three tokens; a step is padded to the next bucket all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.ones(6))

    def forward(self, x):
        rows = self.bias[: x.shape[0]]
        return x + rows


class AddsPaddedBuffer(nn.Module):
    """Room for two requests of three tokens; a step is padded to the next bucket all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.ones(8))

    def forward(self, x):
        rows = self.bias[: x.shape[0]]
        return x + rows


def _c105(model: nn.Module) -> Case:
    return Case(
        model=model,
        batches=[{"x": torch.zeros(6)}, {"x": torch.full((5,), 7.0)}],
        inputs={"x": ("T",)},
        capacity={"T": 8},
        options={"capture_sizes": (8,)},
        name="C105 small buffer",
    )


RECORDS = [
    Record(
        id="C99",
        ref="vllm-project/vllm#42444",
        kind="other",
        title="work is planned if it is not yet planned: a warm-up has, so that capture records no planning",
        group="graph",
        codes=("CW103",),
        expected=[2, 4],
        wrong=[1, 1],
        case=lambda: _c99(PlansIfNotPlanned()),
        twin=lambda: _c99(Plans()),
    ),
    Record(
        id="C101",
        ref="thu-ml/SageAttention#371",
        kind="other",
        title="an op's launches escape the capture: they run once, and never on replay",
        group="graph",
        codes=("CW103",),
        expected=10,
        wrong=2,
        case=lambda: _c101(TwiceUnseen()),
        twin=lambda: _c101(Twice()),
        read=lambda steps: steps[-1]["output 0"][0],
        sources=((_twice_unseen, _twice),),
    ),
    Record(
        id="C103",
        ref="alibaba/rtp-llm#1163",
        kind="other",
        title="tokens move on by one, and the positions beside them, which the runner counts, do not",
        group="runner",
        codes=("CW103",),
        expected=[1, 2, 3],
        wrong=[0, 1, 2],
        case=lambda: _c103(ShiftsInPython()),
        twin=lambda: _c103(ShiftsOnDevice()),
    ),
    Record(
        id="C105",
        ref="vllm-project/vllm#50065",
        kind="other",
        title="buffers hold 6 rows and the next bucket is 8: a slice of 8 rows has 6",
        group="runner",
        codes=("CW205",),
        expected=[8.0] * 5,
        wrong=CAPTURE,
        case=lambda: _c105(AddsSmallBuffer()),
        twin=lambda: _c105(AddsPaddedBuffer()),
    ),
]
