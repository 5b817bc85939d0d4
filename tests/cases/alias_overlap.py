"""Public faults of the kind "alias, overlap, race"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops.contract import Axes, Contract, Rows, Unit, contract, declare
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


# ------------------------------------------------------------------------------ C88: a write to a re-laid-out copy
@torch.library.custom_op("cases::write_dense", mutates_args={"out"})
def write_dense(values: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(values)


@write_dense.register_fake
def _(values, out):
    return None


@contract("cases::write_dense")
def _() -> Contract:
    return Contract(rows={"values": Axes((None,)), "out": Axes((None,), write=True)}, strides={"out": Unit()})


class WritesCopyOfColumn(nn.Module):
    """The op wants a dense argument, so that it is given a dense copy of a column."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2, 3))
        self.register_buffer("values", torch.tensor([5.0, 6.0]))

    def forward(self, x):
        column = self.table[:, 0]
        dense = column.contiguous()
        torch.ops.cases.write_dense(self.values, dense)
        return (column * column).sum() + x * 0


class WritesColumn(nn.Module):
    """The op wants a dense argument, so that it is given a dense copy of a column."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2, 3))
        self.register_buffer("values", torch.tensor([5.0, 6.0]))

    def forward(self, x):
        column = self.table[:, 0]
        dense = column.contiguous()
        torch.ops.cases.write_dense(self.values, dense)
        column.copy_(dense)
        return (column * column).sum() + x * 0


# ------------------------------------------------------------------------------------------ C90: undeclared mutation
@torch.library.custom_op("cases::double_into", mutates_args=())
def double_into(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(x * 2)
    return x.new_empty(0)


@torch.library.custom_op("cases::double_into_declared", mutates_args={"out"})
def double_into_declared(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(x * 2)
    return x.new_empty(0)


for _op in (double_into, double_into_declared):
    _op.register_fake(lambda x, out: x.new_empty(0))
    declare(_op._opoverload, Contract(rows={"x": Rows("T"), "out": Rows("T", write=True)}, locality="row"))


class Doubles(nn.Module):
    """The op writes an argument that its schema calls immutable, and its result is not used."""

    def forward(self, x):
        out = torch.zeros_like(x)
        torch.ops.cases.double_into(x, out)
        return out


class DoublesDeclared(nn.Module):
    """The op writes an argument that its schema calls immutable, and its result is not used."""

    def forward(self, x):
        out = torch.zeros_like(x)
        torch.ops.cases.double_into_declared(x, out)
        return out


def _c90(name: str, model: nn.Module) -> Case:
    case = _case(name, model)
    case.batches = [{"x": torch.ones(3)}, {"x": torch.tensor([1.0, 2.0])}]
    return case


# ------------------------------------------------------------------------------ C86: a peer reads after the op is done
# A sum over two devices as the tape can show it: it starts, and the slow peer's read is where the op's end is.
@torch.library.custom_op("cases::peer_sum_start", mutates_args=())
def peer_sum_start(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(mine)


@torch.library.custom_op("cases::peer_sum_end", mutates_args={"out"})
def peer_sum_end(out: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    out.copy_(mine + theirs)


# ----------------------------------------------------------------------------- C91: a collective that nobody waits for
@torch.library.custom_op("cases::all_reduce_start", mutates_args=())
def all_reduce_start(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return mine.clone()


@torch.library.custom_op("cases::all_reduce_wait", mutates_args={"out"})
def all_reduce_wait(out: torch.Tensor, theirs: torch.Tensor) -> None:
    out.add_(theirs)


for _op in (peer_sum_start, all_reduce_start):
    _op.register_fake(lambda mine, theirs: torch.empty_like(mine))
for _op in (peer_sum_end, all_reduce_wait):
    _op.register_fake(lambda *args: None)
_PAIR = {"mine": Rows("T"), "theirs": Rows("T")}
declare(
    peer_sum_start._opoverload,
    Contract(rows={**_PAIR, "out": Rows("T", write=True)}, locality="row", until="cases::peer_sum_end"),
)
declare(peer_sum_end._opoverload, Contract(rows={**_PAIR, "out": Rows("T", write=True)}, locality="row"))
declare(
    all_reduce_start._opoverload,
    Contract(rows={**_PAIR, "out": Rows("T", write=True)}, locality="row", until="cases::all_reduce_wait"),
)
declare(
    all_reduce_wait._opoverload,
    Contract(rows={"theirs": Rows("T"), "out": Rows("T", write=True)}, locality="row"),
)


class WritesWhilePeerReads(nn.Module):
    """The next kernel of the fast device writes what the slow one has still to read."""

    def forward(self, mine, theirs):
        box = mine * 1
        out = torch.ops.cases.peer_sum_start(box, theirs)
        box.fill_(9)
        torch.ops.cases.peer_sum_end(out, box, theirs)
        return out


class WritesAfterPeerHasRead(nn.Module):
    """The next kernel of the fast device writes what the slow one has still to read."""

    def forward(self, mine, theirs):
        box = mine * 1
        out = torch.ops.cases.peer_sum_start(box, theirs)
        torch.ops.cases.peer_sum_end(out, box, theirs)
        box.fill_(9)
        return out


class ReadsBeforeWait(nn.Module):
    def forward(self, mine, theirs):
        out = torch.ops.cases.all_reduce_start(mine, theirs)
        return out * 1


class ReadsAfterWait(nn.Module):
    def forward(self, mine, theirs):
        out = torch.ops.cases.all_reduce_start(mine, theirs)
        torch.ops.cases.all_reduce_wait(out, theirs)
        return out * 1


def _devices(name: str, model: nn.Module, reference: nn.Module | None = None) -> Case:
    case = _case(name, model, reference)
    case.batches = [{"mine": torch.full((n,), 1.0), "theirs": torch.full((n,), 2.0)} for n in (3, 1)]
    case.inputs = {"mine": ("T",), "theirs": ("T",)}
    return case


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
    Record(
        id="C88",
        ref="pytorch/pytorch#128084",
        kind="alias-overlap-race",
        title="an op writes to the dense copy of a strided argument, and nothing copies back",
        group="graph",
        codes=("CW305",),
        expected=61,
        wrong=2,
        case=lambda: _case("C88 lost mutation", WritesCopyOfColumn(), WritesColumn()),
        twin=lambda: _case("C88 repaired", WritesColumn()),
        read=lambda steps: steps[0]["output 0"][0],
    ),
    Record(
        id="C90",
        ref="intel/llm-scaler#537",
        kind="alias-overlap-race",
        title="an op writes an argument that its schema calls immutable: the call looks dead",
        group="graph",
        codes=("CW305",),
        expected=[2, 4],
        wrong=[0, 0],
        case=lambda: _c90("C90 undeclared mutation", Doubles()),
        twin=lambda: _c90("C90 repaired", DoublesDeclared()),
        sources=((Doubles, DoublesDeclared),),
    ),
    Record(
        id="C86",
        ref="ROCm/aiter#3515",
        kind="alias-overlap-race",
        title="a fast device's next kernel overwrites what a slow peer is still reading",
        group="graph",
        codes=("CW304",),
        expected=3,
        wrong=11,
        case=lambda: _devices("C86 written while a peer reads", WritesWhilePeerReads(), WritesAfterPeerHasRead()),
        twin=lambda: _devices("C86 repaired", WritesAfterPeerHasRead()),
        read=lambda steps: steps[-1]["output 0"][0],
    ),
    Record(
        id="C91",
        ref="pytorch/pytorch#113895",
        kind="alias-overlap-race",
        title="the result of a collective is read, and nothing waits for it",
        group="graph",
        codes=("CW304",),
        expected=3,
        wrong=1,
        case=lambda: _devices("C91 nobody waits", ReadsBeforeWait(), ReadsAfterWait()),
        twin=lambda: _devices("C91 repaired", ReadsAfterWait()),
        read=lambda steps: steps[-1]["output 0"][0],
    ),
]
