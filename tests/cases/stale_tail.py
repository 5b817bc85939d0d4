"""Public faults of the kind "stale tail": a captured read goes past the rows that this step wrote.

Each history has a large step whose rows are left in the tails, then a short one, which is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from capwise import Case, Input, Live
from capwise.ops.contract import Boundaries, Contract, Fill, PerRequest, Slots, declare
from tests.cases.harness import Record


def _make(
    model: type[nn.Module], batches: Sequence[Mapping[str, Any]], capacity: int = 4, symbol: str = "R", **inputs: Any
) -> Callable[[], Case]:
    """One symbol, captured at its capacity. Lists and numbers become tensors, but for an int that is a symbol."""
    return lambda: Case(
        model=model(),
        batches=[{n: v if isinstance(inputs[n], str) else torch.tensor(v) for n, v in b.items()} for b in batches],
        inputs=inputs,
        capacity={symbol: capacity},
        key=("T",),
        options={"capture_sizes": (capacity,)},
        name=model.__name__,
    )


# ---------------------------------------------------------------------------------------------------------------- C01
class Positions(nn.Module):
    """The rotary kernel's own copy of three positions a token, and the axis of each pair of the first token. Which axis
    a layout gives a pair is the rotary op's own declaration and no matter of a replay."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3, dtype=torch.int64))

    def forward(self, positions, num_tokens):
        self.rows.zero_()
        self.rows[: positions.shape[0]] = positions
        return positions[0, torch.arange(6) % 3]


class PositionsMasked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3, dtype=torch.int64))

    def forward(self, positions, num_tokens):
        self.rows.zero_()
        rows = self.rows[: positions.shape[0]]
        rows.copy_(torch.where((torch.arange(positions.shape[0]) < num_tokens)[:, None], positions, rows))
        return positions[0, torch.arange(6) % 3]


POSITIONS = [
    {"positions": [[7, 7, 7], [8, 8, 8], [9, 9, 9], [10, 10, 10]], "num_tokens": 4},
    {"positions": [[3, 1, 2], [3, 1, 3]], "num_tokens": 2},
]


# ---------------------------------------------------------------------------------------------------------------- C02
class OptionalPositions(nn.Module):
    """Positions where the caller gives some (`given` is 1), else what the lengths say; the branch is the host's."""

    def forward(self, positions, lengths, given):
        return positions * given + lengths * (1 - given)


class OptionalPositionsOnDevice(nn.Module):
    def forward(self, positions, lengths, given):
        return torch.where(given > 0, positions, lengths)


OPTIONAL = [
    {"positions": [4, 4, 4], "lengths": [4, 4, 4], "given": 1},
    {"positions": [4, 4, 4], "lengths": [5, 5, 5], "given": 0},
]


# ---------------------------------------------------------------------------------------------------------------- C04
class PoolIndices(nn.Module):
    """Attention metadata is made from the rows of the request pool, all captured ones."""

    def __init__(self):
        super().__init__()
        self.register_buffer("metadata", torch.zeros(4, dtype=torch.int64))

    def forward(self, indices, num_requests):
        self.metadata.zero_()
        self.metadata[: indices.shape[0]].copy_(indices)
        return indices + 1


class PoolIndicesFilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("metadata", torch.zeros(4, dtype=torch.int64))

    def forward(self, indices, num_requests):
        self.metadata.zero_()
        live = torch.arange(indices.shape[0]) < num_requests
        self.metadata[: indices.shape[0]].copy_(torch.where(live, indices, self.metadata[: indices.shape[0]]))
        return indices + 1


POOL = [{"indices": [3, 1, 0, 9], "num_requests": 4}, {"indices": [5, 2], "num_requests": 2}]


# ---------------------------------------------------------------------------------------------------------------- C05
class Window(nn.Module):
    """The live window of a block table, newest block first; blocks hold 0 (the null block), 100 (now another's), 1, 2.
    A reader without the window's start sums what the row lists."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.tensor([0, 100, 1, 2]))

    def forward(self, blocks, num_blocks):
        return self.cache[blocks].sum()


class WindowBounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.tensor([0, 100, 1, 2]))

    def forward(self, blocks, num_blocks):
        inside = torch.arange(blocks.shape[0]) < num_blocks
        return self.cache[torch.where(inside, blocks, 0)].where(inside, 0).sum()


WINDOW = [{"blocks": [3, 2, 1], "num_blocks": 3}, {"blocks": [3, 2], "num_blocks": 2}]


# ---------------------------------------------------------------------------------------------------------------- C07
@torch.library.custom_op("cases::set_lengths", mutates_args=("out",))
def set_lengths(lengths: torch.Tensor, out: torch.Tensor) -> None:
    """A kernel's task parameters: one key length a row; a row of length 0 does nothing."""
    out.zero_()
    out[: lengths.shape[0]].copy_(lengths)


declare("cases::set_lengths", Contract({"lengths": PerRequest("R", tail=Fill(0))}, locality="row", state=("out",)))


class PairedLengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("task", torch.zeros(4, dtype=torch.int64))

    def forward(self, lengths, num_requests):
        set_lengths(lengths, self.task)
        return lengths * 2


class PairedLengthsPadded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("task", torch.zeros(4, dtype=torch.int64))

    def forward(self, lengths, num_requests):
        live = torch.arange(lengths.shape[0]) < num_requests
        set_lengths(torch.where(live, lengths, 0), self.task)
        return lengths * 2


LENGTHS = [{"lengths": [5, 4, 7, 7], "num_requests": 4}, {"lengths": [6, 5, 8], "num_requests": 3}]


# ---------------------------------------------------------------------------------------------------------------- C08
@torch.library.custom_op("cases::advance", mutates_args=("state", "lengths"))
def advance(
    starts: torch.Tensor, slots: torch.Tensor, accepted: torch.Tensor, state: torch.Tensor, lengths: torch.Tensor
) -> None:
    """Moves the recurrent state of every request on by its length; slot 0 stands for nothing."""
    lengths.zero_()
    lengths[: slots.shape[0]].copy_(starts.diff())
    for r, slot in enumerate(slots):
        state.index_add_(0, slot[None], ((starts[r + 1] - starts[r] + accepted[r]) * (slot != 0))[None])


declare(
    "cases::advance",
    Contract(
        {"starts": Boundaries("R+1"), "slots": Slots("R", into="state", null=0),
         "accepted": PerRequest("R", tail=Fill(0))},
        locality="segment",
        state=("state", "lengths"),
    ),
)  # fmt: skip


class SpeculativeState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(6, dtype=torch.int64))
        self.register_buffer("lengths", torch.zeros(4, dtype=torch.int64))

    def forward(self, starts, slots, accepted, num_requests):
        advance(starts, slots, accepted, self.state, self.lengths)
        return slots + 1


class SpeculativeStatePadded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(6, dtype=torch.int64))
        self.register_buffer("lengths", torch.zeros(4, dtype=torch.int64))

    def forward(self, starts, slots, accepted, num_requests):
        row = torch.arange(starts.shape[0])
        live = row[:-1] < num_requests
        starts = starts[torch.minimum(row, num_requests)]
        advance(starts, slots.where(live, 0), accepted.where(live, 0), self.state, self.lengths)
        return slots + 1


SPECULATIVE = [
    {"starts": [0, 3, 6, 9, 12], "slots": [1, 2, 3, 4], "accepted": [1, 1, 1, 1], "num_requests": 4},
    {"starts": [0, 3, 6], "slots": [3, 4], "accepted": [1, 2], "num_requests": 2},
]


# ---------------------------------------------------------------------------------------------------------------- C10
class WrongVector(nn.Module):
    """State goes back by the manager's own slot vector, whose third entry names a request that is parked by now."""

    def __init__(self):
        super().__init__()
        self.register_buffer("pool", torch.zeros(10, dtype=torch.int64))

    def forward(self, x, step, slots, managed):
        self.pool[managed] = x + step
        return x * 2


class CallersVector(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pool", torch.zeros(10, dtype=torch.int64))

    def forward(self, x, step, slots, managed):
        self.pool[slots] = x + step
        return x * 2


PARKED = [
    {"x": [1, 2, 60], "step": 0, "slots": [2, 3, 6], "managed": [2, 3, 6]},
    {"x": [-19, -9], "step": 39, "slots": [2, 3], "managed": [2, 3]},
]


def _parked(model: type[nn.Module]) -> Callable[[], Case]:
    batches = [{**b, "step": [b["step"]]} for b in PARKED]
    return _make(model, batches, x=("R",), step=(1,), slots=Input("R", null=9), managed=("R",))


# ---------------------------------------------------------------------------------------------------------------- C13
@torch.library.custom_op("cases::prefetch", mutates_args=("pages",))
def prefetch(table: torch.Tensor, pages: torch.Tensor) -> None:
    """Pages to fetch: as many table entries as the loop was rounded to; page 0 is no page."""
    pages.zero_()
    pages[: table.shape[0]].copy_(table)


declare("cases::prefetch", Contract({"table": PerRequest("R", tail=Fill(0))}, locality="row", state=("pages",)))


class OverRead(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pages", torch.zeros(3, dtype=torch.int64))

    def forward(self, table, columns):
        prefetch(table, self.pages)
        return table + 1


class OverReadSanitised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pages", torch.zeros(3, dtype=torch.int64))

    def forward(self, table, columns):
        prefetch(table.where(torch.arange(table.shape[0]) < columns, 0), self.pages)
        return table + 1


TABLE = [{"table": [4, 5, 77], "columns": 3}, {"table": [4, 5], "columns": 2}]


def _state(name: str) -> Callable[[Sequence[Mapping[str, Any]]], Any]:
    return lambda steps: steps[-1][f"state {name}"]


_REQUESTS = {"num_requests": Live("R")}

RECORDS: list[Record] = [
    Record(
        "C01", "alibaba/rtp-llm#1175", "stale-tail", "the rotary kernel reads positions of an earlier step", "runner",
        ("CW201", "CW204"),
        [[3, 1, 2, 3, 1, 3, 0, 0, 0, 0, 0, 0], [3, 1, 2, 3, 1, 2]],
        [[3, 1, 2, 3, 1, 3, 9, 9, 9, 10, 10, 10], [3, 1, 2, 3, 1, 2]],
        _make(Positions, POSITIONS, symbol="T", positions=("T", 3), num_tokens=Live("T")),
        _make(PositionsMasked, POSITIONS, symbol="T", positions=("T", 3), num_tokens=Live("T")),
        lambda steps: [steps[-1]["state rows"].flatten(), steps[-1]["output 0"]],
    ),
    Record(
        "C02", "alibaba/rtp-llm#1108", "stale-tail", "absent positions are those of the last step", "runner",
        ("CW302", "CW102"), [5, 5, 5], [4, 4, 4],
        _make(OptionalPositions, OPTIONAL, 1, "G", positions=(3,), lengths=(3,), given="G"),
        _make(
            OptionalPositionsOnDevice, [{**b, "given": [b["given"]]} for b in OPTIONAL], 1, "G", positions=(3,),
            lengths=(3,), given=(1,),
        ),
    ),
    Record(
        "C04", "sgl-project/sglang#22958", "stale-tail", "pool indices of an earlier batch, out of range by now",
        "runner", ("CW201", "CW204", "CW206"), [5, 2, 0, 0], [5, 2, 0, 9],
        _make(PoolIndices, POOL, indices=("R",), **_REQUESTS),
        _make(PoolIndicesFilled, POOL, indices=("R",), **_REQUESTS), _state("metadata"),
    ),
    Record(
        "C05", "vllm-project/vllm#42273", "stale-tail", "a block that left the window belongs to another request",
        "runner", ("CW201", "CW202", "CW206"), 3, 103,
        _make(Window, WINDOW, 3, blocks=("R",), num_blocks=Live("R")),
        _make(WindowBounded, WINDOW, 3, blocks=("R",), num_blocks=Live("R")),
    ),
    Record(
        "C07", "vllm-project/vllm-ascend#7290", "stale-tail", "a leftover length beside padded boundaries", "runner",
        ("CW201",), [6, 5, 8, 0], [6, 5, 8, 7],
        _make(PairedLengths, LENGTHS, lengths=("R",), **_REQUESTS),
        _make(PairedLengthsPadded, LENGTHS, lengths=("R",), **_REQUESTS), _state("task"),
    ),
    Record(
        "C08", "vllm-project/vllm-ascend#11408", "stale-tail", "of five no-op values some are stale",
        "runner", ("CW201", "CW204"), [3, 3, 0, 0], [3, 3, 3, 3],
        _make(SpeculativeState, SPECULATIVE, starts=("R+1",), slots=("R",), accepted=("R",), **_REQUESTS),
        _make(SpeculativeStatePadded, SPECULATIVE, starts=("R+1",), slots=("R",), accepted=("R",), **_REQUESTS),
        _state("lengths"),
    ),
    Record(
        "C10", "NVIDIA/TensorRT-LLM#13151", "stale-tail", "a padded row writes the state of a parked request", "runner",
        ("CW204",), 60, 99, _parked(WrongVector), _parked(CallersVector), lambda steps: steps[-1]["state pool"][6],
    ),
    Record(
        "C13", "alibaba/rtp-llm#1023", "stale-tail", "the kernel reads a rounded number of table entries", "graph",
        ("CW201",), [4, 5], [4, 5, 77],
        _make(OverRead, TABLE, 3, table=("R",), columns=Live("R")),
        _make(OverReadSanitised, TABLE, 3, table=("R",), columns=Live("R")),
        lambda steps: [page for page in steps[-1]["state pages"].tolist() if page],
    ),
]  # fmt: skip
