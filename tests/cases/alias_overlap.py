"""Public faults of the kind "alias, overlap, race"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops.launch import jit, tl
from tests.cases.harness import Record


def _steps(count: int = 2) -> list[dict[str, torch.Tensor]]:
    """Steps that bring some tokens; what counts is in the model's state."""
    return [{"x": torch.ones(3 - i)} for i in range(count)]


def _case(name: str, model: nn.Module, reference: nn.Module | None = None) -> Case:
    return Case(
        model=model,
        batches=_steps(),
        inputs={"x": ("T",)},
        capacity={"T": 4},
        options={"capture_sizes": (4,)},
        reference=reference,
        name=name,
    )


# ------------------------------------------------------------------------------------ C82: a copy onto itself, shifted
@jit
def _move_units(from_ptr, to_ptr, units):
    """One unit a program; nothing orders them, and this one numbers them from the far end."""
    unit = units - 1 - tl.program_id(0)
    tl.store(to_ptr + unit, tl.load(from_ptr + unit))


class ShiftsInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("block", torch.arange(1.0, 6))

    def forward(self, x):
        source = self.block[2:]
        _move_units[(3,)](source, self.block[:3], 3)
        return x + 1


class ShiftsThroughCopy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("block", torch.arange(1.0, 6))

    def forward(self, x):
        source = self.block[2:].clone()
        _move_units[(3,)](source, self.block[:3], 3)
        return x + 1


# ------------------------------------------------------------------------------------------- C84: a chain of copies
@jit
def _copy_blocks(from_ptr, to_ptr, sources_ptr, destinations_ptr):
    pair = tl.program_id(0)
    value = tl.load(from_ptr + tl.load(sources_ptr + pair))
    tl.store(to_ptr + tl.load(destinations_ptr + pair), value)


class CopiesBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kv", torch.tensor([7.0, 8, 9]))
        self.register_buffer("sources", torch.tensor([0, 1]))
        self.register_buffer("destinations", torch.tensor([1, 2]))

    def forward(self, x):
        _copy_blocks[(2,)](self.kv, self.kv, self.sources, self.destinations)
        return x + 1


class CopiesBlocksOfSnapshot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kv", torch.tensor([7.0, 8, 9]))
        self.register_buffer("sources", torch.tensor([0, 1]))
        self.register_buffer("destinations", torch.tensor([1, 2]))

    def forward(self, x):
        _copy_blocks[(2,)](self.kv.clone(), self.kv, self.sources, self.destinations)
        return x + 1


RECORDS = [
    Record(
        id="C82",
        ref="vllm-project/vllm#50729",
        kind="alias-overlap-race",
        title="a shift within one block is copied in no order, source and destination overlap",
        group="graph",
        codes=("CW304",),
        expected=[3, 4, 5, 4, 5],
        wrong=[5, 4, 5, 4, 5],
        case=lambda: _case("C82 overlapping copy", ShiftsInPlace(), ShiftsThroughCopy()),
        twin=lambda: _case("C82 repaired", ShiftsThroughCopy()),
        read=lambda steps: steps[0]["state block"],
    ),
    Record(
        id="C84",
        ref="vllm-project/vllm-gaudi#329",
        kind="alias-overlap-race",
        title="copy pairs form a chain: the destination of one is the source of the next",
        group="graph",
        codes=("CW304",),
        expected=[7, 7, 8],
        wrong=[7, 7, 7],
        case=lambda: _case("C84 copy chain", CopiesBlocks(), CopiesBlocksOfSnapshot()),
        twin=lambda: _case("C84 repaired", CopiesBlocksOfSnapshot()),
        read=lambda steps: steps[0]["state kv"],
    ),
]
