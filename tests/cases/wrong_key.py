"""Public faults of the kind "wrong key": a recorded graph serves a batch that it was not made for.

A value of the host that the key leaves out is a symbol of its own here, recorded at its largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from capwise import Case
from capwise.ops.launch import jit, tl
from tests.cases.harness import Record


def _make(
    model: type[nn.Module], batches: Sequence[Mapping[str, Any]], capacity: Mapping[str, int], **inputs: Any
) -> Callable[[], Case]:
    return lambda: Case(
        model=model(),
        batches=[{n: v if isinstance(inputs[n], str) else torch.as_tensor(v) for n, v in b.items()} for b in batches],
        inputs=inputs,
        capacity=capacity,
        key=("T",),
        options={"capture_sizes": (capacity.get("T", 4),)},
        name=model.__name__,
    )


def _on_device(batches: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{**b, name: [b[name]]} for b in batches]


# ---------------------------------------------------------------------------------------------------------------- C28
class PhaseByShape(nn.Module):
    """A prompt of K + 1 tokens has the shape of a decode step, whose graph holds the null slot: the builder took the
    branch for prompts, and did not refresh it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3, dtype=torch.int64))

    def forward(self, x, slot, decode):
        slots = (slot * (1 - decode)).expand(x.shape[0])
        self.state.index_add_(0, slots, x)
        return x + 1


class PhaseOnDevice(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3, dtype=torch.int64))

    def forward(self, x, slot, decode):
        slots = (slot.where(decode == 0, 0)).expand(x.shape[0])
        self.state.index_add_(0, slots, x)
        return x + 1


PHASES = [{"x": [0, 0, 0, 0], "slot": [1], "decode": 1}, {"x": [1, 2, 3, 4], "slot": [1], "decode": 0}]


# ---------------------------------------------------------------------------------------------------------------- C29
@jit
def copy_dense_kernel(x_ptr, out_ptr, stride):
    row, column = tl.program_id(0), tl.arange(0, 4)
    tl.store(out_ptr + row * 4 + column, tl.load(x_ptr + row * 4 + column))


@jit
def copy_strided_kernel(x_ptr, out_ptr, stride):
    row, column = tl.program_id(0), tl.arange(0, 4)
    tl.store(out_ptr + row * 4 + column, tl.load(x_ptr + row * stride + column))


class PlanByShape(nn.Module):
    """A plan is looked up by shape alone; the row stride of the plan is that of a dense tensor."""

    def forward(self, x):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        copy_dense_kernel[(x.shape[0],)](x, out, x.stride(0))
        return out


class PlanByStride(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        copy_strided_kernel[(x.shape[0],)](x, out, x.stride(0))
        return out


class Copy(nn.Module):
    def forward(self, x):
        return x.clone(memory_format=torch.contiguous_format)


def _layouts(model: type[nn.Module]) -> Callable[[], Case]:
    """A view of every second four of 16 numbers, at one address; wrong even eagerly where it is taken for dense."""

    def case() -> Case:
        view = torch.arange(16).view(2, 8)[:, :4]
        return Case(model(), [{"x": view}] * 2, inputs={}, reference=Copy(), name=model.__name__)

    return case


# ---------------------------------------------------------------------------------------------------------------- C30
class ImageMeans(nn.Module):
    """The mean of each image, all of one length; the key is the total."""

    def forward(self, x, length):
        image = torch.arange(x.shape[0]) // length
        sums = torch.zeros_like(x).index_add(0, image, x)
        return sums[image] / length


class ImageMeansOnDevice(nn.Module):
    def forward(self, x, length):
        image = (torch.arange(x.shape[0]) // length).clamp(0, x.shape[0] - 1)
        sums = torch.zeros_like(x).index_add(0, image, x)
        return sums[image] / length


IMAGES = [{"x": [1.0, 3.0, 5.0, 7.0], "length": 4}, {"x": [1.0, 3.0, 5.0, 7.0], "length": 2}]


# ---------------------------------------------------------------------------------------------------------------- C32
class LostSymbol(nn.Module):
    """The sum of all but the last `drop` numbers; the partition's key does not see `drop`."""

    def forward(self, x, drop):
        return torch.where(torch.arange(3) < 3 - drop, x, 0).sum()


class SymbolAsInput(nn.Module):
    def forward(self, x, drop):
        return torch.where(torch.arange(3) + drop < 3, x, 0).sum()


DROPPED = [{"x": [1, 2, 3], "drop": 1}, {"x": [1, 2, 3], "drop": 0}]


# ---------------------------------------------------------------------------------------------------------------- C34
class BakedBoundaries(nn.Module):
    """Sums of two requests; where the first ends is a number of the host, inside a graph keyed by tokens."""

    def forward(self, x, first):
        mine = torch.arange(x.shape[0]) < first
        return torch.stack([x.where(mine, 0).sum(), x.where(~mine, 0).sum()])


class BoundariesOnDevice(nn.Module):
    def forward(self, x, first):
        request = (torch.arange(x.shape[0]) >= first).long()
        return torch.zeros(2, dtype=torch.int64).index_add(0, request, x)


BOUNDARIES = [{"x": [1, 2, 3, 4], "first": 2}, {"x": [1, 2, 3, 4], "first": 1}]


# ---------------------------------------------------------------------------------------------------------------- C36
class IgnoredAdapter(nn.Module):
    """y = 2 x, and 3 from an adapter unless the request asks for the base model, as the warm-up did."""

    def forward(self, x, base):
        return 2 * x + 3 * (1 - base)


class AdapterAsInput(nn.Module):
    def forward(self, x, base):
        return 2 * x + torch.where(base > 0, 0, 3)


ADAPTERS = [{"x": [1, 2], "base": 1}, {"x": [1, 2], "base": 0}]

_HOST = ("CW101", "CW102")

RECORDS: list[Record] = [
    Record(
        "C28", "vllm-project/vllm#53051", "wrong-key", "a prompt replays a decode step's graph", "runner",
        _HOST, 10, 0, _make(PhaseByShape, PHASES, {"T": 4, "D": 1}, x=("T",), slot=(1,), decode="D"),
        _make(PhaseOnDevice, _on_device(PHASES, "decode"), {"T": 4}, x=("T",), slot=(1,), decode=(1,)),
        lambda steps: steps[-1]["state state"][1],
    ),
    Record(
        "C29", "flashinfer-ai/flashinfer#4270", "wrong-key", "a plan for a dense tensor serves a strided one", "runner",
        ("CW401", "CW402"), [[0, 1, 2, 3], [8, 9, 10, 11]], [[0, 1, 2, 3], [4, 5, 6, 7]],
        _layouts(PlanByShape), _layouts(PlanByStride),
        sources=((PlanByShape, PlanByStride), (copy_dense_kernel, copy_strided_kernel)),
    ),
    Record(
        "C30", "sgl-project/sglang#22873", "wrong-key", "images of another layout, as many tokens", "runner",
        _HOST, [2.0, 2.0, 6.0, 6.0], [4.0, 4.0, 4.0, 4.0],
        _make(ImageMeans, IMAGES, {"T": 4, "L": 4}, x=("T",), length="L"),
        _make(ImageMeansOnDevice, _on_device(IMAGES, "length"), {"T": 4}, x=("T",), length=(1,)),
    ),
    Record(
        "C32", "pytorch/pytorch#174729", "wrong-key", "a size made outside of the partition is not in its key", "graph",
        _HOST, 6, 3, _make(LostSymbol, DROPPED, {"D": 1}, x=(3,), drop="D"),
        _make(SymbolAsInput, _on_device(DROPPED, "drop"), {}, x=(3,), drop=(1,)),
    ),
    Record(
        "C34", "vllm-project/vllm#53030", "wrong-key", "request boundaries inside a graph keyed by tokens", "graph",
        _HOST, [1, 9], [3, 7], _make(BakedBoundaries, BOUNDARIES, {"T": 4, "F": 2}, x=("T",), first="F"),
        _make(BoundariesOnDevice, _on_device(BOUNDARIES, "first"), {"T": 4}, x=("T",), first=(1,)),
    ),
    Record(
        "C36", "huggingface/text-generation-inference#2180", "wrong-key", "an adapter that no graph input carries",
        "runner", _HOST, [5, 7], [2, 4], _make(IgnoredAdapter, ADAPTERS, {"T": 2, "B": 1}, x=("T",), base="B"),
        _make(AdapterAsInput, _on_device(ADAPTERS, "base"), {"T": 2}, x=("T",), base=(1,)),
    ),
]  # fmt: skip
