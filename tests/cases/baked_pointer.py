"""Public faults of the kind "baked pointer or address": a recording reads where something used to be."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from tests.cases.harness import Record


def _opaque(name: str, body, fake) -> None:
    torch.library.custom_op(f"baked_pointer::{name}", body, mutates_args=()).register_fake(fake)


# ------------------------------------------------------------ C56: an eager producer
def _project(x: torch.Tensor) -> torch.Tensor:
    """Runs between pieces, on the host's side, and allocates what it returns."""
    return torch.from_numpy(x.numpy().copy())


_opaque("project", _project, lambda x: torch.empty_like(x))


class ReadsFresh(nn.Module):
    def forward(self, x):
        h = torch.ops.baked_pointer.project(x)
        return h * 2


class ReadsOwn(nn.Module):
    def forward(self, x):
        h = x.clone()
        return h * 2


def _numbers(model: type[nn.Module], values: tuple[int, ...], name: str) -> Case:
    return Case(model(), [{"x": torch.tensor([v])} for v in values], inputs={"x": (1,)}, name=name)


# ------------------------------------------------------------ C57: prepare() rebinds
class Prepares(nn.Module):
    """Each step hands out the cumulative lengths that the step before prepared."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cumulative", torch.tensor([0, 7, 7]))

    def forward(self, lengths):
        ready = self.cumulative + 0
        self.cumulative = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return ready


class PreparesInPlace(nn.Module):
    """Each step hands out the cumulative lengths that the step before prepared."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cumulative", torch.tensor([0, 7, 7]))

    def forward(self, lengths):
        ready = self.cumulative + 0
        self.cumulative.copy_(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        return ready


def _c57(model: type[nn.Module]) -> Case:
    batches = [{"lengths": torch.tensor([2, 3])}] * 2
    return Case(model(), batches, inputs={"lengths": (2,)}, name="C57 prepare() makes a new tensor")


# ------------------------------------------------------------ C59: a pool made anew
class Resumes(nn.Module):
    """A recurrence; `resume` gives the memory of its state back and brings the state up again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.tensor(14.0))

    def forward(self, x, resume=False):
        if resume:
            saved = self.state.clone()
            self.state.zero_()
            self.state = saved
            return x
        return self.state.mul_(0.5).add_(1) + x


class ResumesInPlace(nn.Module):
    """A recurrence; `resume` gives the memory of its state back and brings the state up again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.tensor(14.0))

    def forward(self, x, resume=False):
        if resume:
            saved = self.state.clone()
            self.state.zero_()
            self.state.copy_(saved)
            return x
        return self.state.mul_(0.5).add_(1) + x


def _c59(model: type[nn.Module]) -> Case:
    x = torch.zeros(1)
    batches = [{"x": x}, {"x": x, "resume": True}, {"x": x}]
    return Case(model(), batches, inputs={"x": (1,)}, name="C59 a state pool comes back elsewhere")


# ------------------------------------------------------------ C60: a hidden copy of weights
class Reloads(nn.Module):
    """A kernel's own shuffled copy of the weights, made anew when they are loaded."""

    def __init__(self):
        super().__init__()
        self.shuffled = torch.tensor([2, 1])

    def forward(self, x, weights=None):
        if weights is not None:
            self.shuffled = weights.flip(0)
        return (x * self.shuffled).sum()


class ReloadsInPlace(nn.Module):
    """A kernel's own shuffled copy of the weights, made anew when they are loaded."""

    def __init__(self):
        super().__init__()
        self.shuffled = torch.tensor([2, 1])

    def forward(self, x, weights=None):
        if weights is not None:
            self.shuffled.copy_(weights.flip(0))
        return (x * self.shuffled).sum()


def _c60(model: type[nn.Module]) -> Case:
    x = torch.ones(2, dtype=torch.int64)
    batches = [{"x": x}, {"x": x, "weights": torch.tensor([3, 4])}, {"x": x}]
    inputs = {"x": (2,), "weights": (2,)}
    return Case(model(), batches, inputs=inputs, name="C60 weights loaded again, their hidden copy elsewhere")


# ------------------------------------------------------------ C62: a window that moves
class CopiesWindow(nn.Module):
    def forward(self, keys, offset):
        return keys[:3] + 0


class CopiesFromOffset(nn.Module):
    def forward(self, keys, offset):
        return keys[torch.arange(3) + offset] + 0


def _c62(model: type[nn.Module], moves: bool) -> Case:
    """The engine hands over the keys from the window's start on, or all of them and the start."""
    keys = torch.arange(1, 7)
    batches = [{"keys": keys[o:] if moves else keys, "offset": torch.tensor([o])} for o in (0, 3)]
    batches[0]["keys"] = keys[:3] if moves else keys
    inputs = {"offset": (1,)} if moves else {"offset": (1,), "keys": (6,)}
    return Case(model(), batches, inputs=inputs, name="C62 the source of a copy moves with the window")


# ------------------------------------------------------------ C64: taken for static
def _save(x: torch.Tensor) -> torch.Tensor:
    """Runs outside, keeps an activation for later."""
    return torch.from_numpy(x.numpy().copy())


_opaque("save", _save, lambda x: torch.empty_like(x))


class BackwardOfSaved(nn.Module):
    """One uncaptured part, then one captured part that reads what it saved."""

    def forward(self, x):
        activation = torch.ops.baked_pointer.save(x + 0)
        return 2 * activation


class BackwardOfOwn(nn.Module):
    """One uncaptured part, then one captured part that reads what it saved."""

    def forward(self, x):
        activation = x + 0
        return 2 * activation


def _first(steps):
    return steps[-1]["output 0"][0]


RECORDS = [
    Record(
        id="C56",
        ref="vllm-project/vllm#37363",
        kind="baked-pointer-or-address",
        title="an eager op between pieces returns a fresh tensor; the next piece reads the one of capture",
        group="graph",
        codes=("CW301",),
        expected=18,
        wrong=10,
        case=lambda: _numbers(ReadsFresh, (5, 9), "C56 a fresh tensor of an eager op"),
        twin=lambda: _numbers(ReadsOwn, (5, 9), "C56 a fresh tensor of an eager op"),
        read=_first,
    ),
    Record(
        id="C57",
        ref="alibaba/rtp-llm#1259",
        kind="baked-pointer-or-address",
        title="prepare() puts a new tensor in an attribute that the recording read",
        group="runner",
        codes=("CW301",),
        expected=[0, 2, 5],
        wrong=[0, 7, 7],
        case=lambda: _c57(Prepares),
        twin=lambda: _c57(PreparesInPlace),
    ),
    Record(
        id="C59",
        ref="sgl-project/sglang#27140",
        kind="baked-pointer-or-address",
        title="state pools are released and made again; recordings keep the old addresses",
        group="runner",
        codes=("CW301",),
        expected=5.0,
        wrong=1.0,
        case=lambda: _c59(Resumes),
        twin=lambda: _c59(ResumesInPlace),
        read=_first,
    ),
    Record(
        id="C60",
        ref="vllm-project/vllm#48312",
        kind="baked-pointer-or-address",
        title="loading weights rebinds a kernel's hidden copy of them",
        group="runner",
        codes=("CW301",),
        expected=7,
        wrong=3,
        case=lambda: _c60(Reloads),
        twin=lambda: _c60(ReloadsInPlace),
    ),
    Record(
        id="C62",
        ref="ikawrakow/ik_llama.cpp#2136",
        kind="baked-pointer-or-address",
        title="the address of a copy's source is not compared and moves with the window",
        group="runner",
        codes=("CW301",),
        expected=[4, 5, 6],
        wrong=[1, 2, 3],
        case=lambda: _c62(CopiesWindow, True),
        twin=lambda: _c62(CopiesFromOffset, False),
    ),
    Record(
        id="C64",
        ref="pytorch/pytorch#197438",
        kind="baked-pointer-or-address",
        title="activations of an uncaptured part count as static, by the number of captured parts",
        group="graph",
        codes=("CW301",),
        expected=10,
        wrong=6,
        case=lambda: _numbers(BackwardOfSaved, (3, 5), "C64 an activation of an eager part"),
        twin=lambda: _numbers(BackwardOfOwn, (3, 5), "C64 an activation of an eager part"),
        read=_first,
    ),
]
