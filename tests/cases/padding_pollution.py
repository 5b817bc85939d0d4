"""Public faults of the kind "padding pollution": padded rows take part in what live rows or state come from.

Each history has a large step, the dummy run of a capture or a burst, whose rows are left in the tails, then a short
one, which is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from capwise import Case, Input, Live
from capwise.ops.launch import jit, tl
from tests.cases.harness import Record


def _make(
    model: type[nn.Module], batches: Sequence[Mapping[str, Any]], capacity: int, symbol: str = "T", **inputs: Any
) -> Callable[[], Case]:
    """One symbol, captured at its capacity."""
    return lambda: Case(
        model=model(),
        batches=[{n: torch.as_tensor(v) for n, v in b.items()} for b in batches],
        inputs=inputs,
        capacity={symbol: capacity},
        key=("T",),
        options={"capture_sizes": (capacity,)},
        name=model.__name__,
    )


def _state(name: str, rows: int) -> Callable[[Sequence[Mapping[str, Any]]], Any]:
    return lambda steps: steps[-1][f"state {name}"][:rows]


# ---------------------------------------------------------------------------------------------------------------- C14
class SentinelStore(nn.Module):
    """Padded slots are -1, which to an ordinary indexed store is the last row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.tensor([10, 11, 12, 13, 0]))

    def forward(self, x, step, slots, num_tokens):
        slots = torch.where(torch.arange(slots.shape[0]) < num_tokens, slots, -1)
        self.cache[:4].index_put_((slots,), x + step)
        return x * 2


class SinkStore(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.tensor([10, 11, 12, 13, 0]))

    def forward(self, x, step, slots, num_tokens):
        self.cache.index_put_((slots,), x + step)
        return x * 2


SENTINEL = [
    {"x": [10, 13], "step": [0], "slots": [0, 3], "num_tokens": 2},
    {"x": [-81], "step": [86], "slots": [0], "num_tokens": 1},
]


# ---------------------------------------------------------------------------------------------------------------- C15
@jit
def store_keys_kernel(keys_ptr, slots_ptr, cache_ptr, gain_ptr):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    gain = tl.load(gain_ptr)
    tl.store(cache_ptr + slot, tl.load(keys_ptr + row) * gain)


@jit
def store_kept_keys_kernel(keys_ptr, slots_ptr, cache_ptr, gain_ptr):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    gain = tl.load(gain_ptr)
    tl.store(cache_ptr + slot, tl.load(keys_ptr + row) * gain, mask=slot >= 0)


class RowsOfKeys(nn.Module):
    """The grid has a program for every key, of which there are as many as were captured."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))

    def forward(self, keys, slots, gain):
        store_keys_kernel[(keys.shape[0],)](keys, slots, self.cache, gain)
        return keys * 2


class RowsOfKeysSkipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))

    def forward(self, keys, slots, gain):
        store_kept_keys_kernel[(keys.shape[0],)](keys, slots, self.cache, gain)
        return keys * 2


# The dummy run of a capture writes nothing: its gain is zero.
KEYS = [
    {"keys": [3.0, 4.0, 8.0, 9.0], "slots": [2, 3, 0, 1], "gain": [0.0]},
    {"keys": [1.0, 2.0], "slots": [2, 3], "gain": [1.0]},
]


# ---------------------------------------------------------------------------------------------------------------- C16
class ClampedSentinel(nn.Module):
    """A kernel without a skip code is given 0 for -1; but slot 0 belongs to a request."""

    def __init__(self):
        super().__init__()
        self.register_buffer("pool", torch.zeros(5, dtype=torch.int64))

    def forward(self, x, step, slots, num_tokens):
        slots = torch.where(torch.arange(slots.shape[0]) < num_tokens, slots, -1)
        self.pool[slots.clamp(min=0)] = x - step
        return x * 2


class ReservedSink(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pool", torch.zeros(5, dtype=torch.int64))

    def forward(self, x, step, slots, num_tokens):
        self.pool[slots] = x - step
        return x * 2


CLAMPED = [
    {"x": [30, 100], "step": [0], "slots": [3, 0], "num_tokens": 2},
    {"x": [32], "step": [1], "slots": [3], "num_tokens": 1},
]


# ---------------------------------------------------------------------------------------------------------------- C19
class PerTensorScale(nn.Module):
    """Attention over no keys is 0 / 0; one scale for the whole tensor then reaches every row."""

    def forward(self, x, num_tokens):
        keys = (torch.arange(x.shape[0]) < num_tokens)[:, None].double()
        y = x * keys / keys
        scale = y.abs().amax() / 127.0
        return torch.round(y / scale)


class PerTensorScaleMasked(nn.Module):
    def forward(self, x, num_tokens):
        keys = (torch.arange(x.shape[0]) < num_tokens)[:, None].double()
        y = torch.where(keys > 0, x * keys / keys, 0.0)
        scale = y.abs().amax() / 127.0
        return torch.round(y / scale)


SCALES = [{"x": [[1.0, 2.0], [3.0, 4.0]], "num_tokens": 2}, {"x": [[1.0, 2.0]], "num_tokens": 1}]
SCALES = [{**b, "x": torch.tensor(b["x"], dtype=torch.float64)} for b in SCALES]


# ---------------------------------------------------------------------------------------------------------------- C20
class ExpertCounts(nn.Module):
    """A counter that lives on counts every routed row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))

    def forward(self, expert, num_tokens):
        hits = (expert[:, None] == torch.arange(2)).long()
        self.counts += hits.sum(0)
        return expert + 1


class ExpertCountsLive(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))

    def forward(self, expert, num_tokens):
        hits = (expert[:, None] == torch.arange(2)).long()
        live = torch.arange(expert.shape[0]) < num_tokens
        self.counts += (hits * live[:, None]).sum(0)
        return expert + 1


ROUTED = [{"expert": [0, 0, 0, 0], "num_tokens": 4}, {"expert": [0, 1], "num_tokens": 2}]


def _counted(steps: Sequence[Mapping[str, Any]]) -> Any:
    return steps[-1]["state counts"] - torch.tensor([4, 0])


# ---------------------------------------------------------------------------------------------------------------- C21
class OwnedPositions(nn.Module):
    """This rank owns even positions, at slot position / 2; a padded row at position 0 claims the first token's slot."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, dtype=torch.int64))

    def forward(self, keys, positions, num_tokens):
        mine = positions % 2 == 0
        self.cache[torch.where(mine, positions // 2, 2)] = keys
        return keys * 2


class OwnedLivePositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, dtype=torch.int64))

    def forward(self, keys, positions, num_tokens):
        mine = (positions % 2 == 0) & (torch.arange(keys.shape[0]) < num_tokens)
        self.cache[torch.where(mine, positions // 2, 2)] = keys
        return keys * 2


OWNED = [
    {"keys": [99] * 5, "positions": [0] * 5, "num_tokens": 5},
    {"keys": [10, 11, 12], "positions": [0, 1, 2], "num_tokens": 3},
]


# ---------------------------------------------------------------------------------------------------------------- C23
class DecayingState(nn.Module):
    """s <- s / 2 + x for every row, as one product and one sum; a zero row decays the state all the same."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.full((1,), 16.0))

    def forward(self, x, num_tokens):
        decay = torch.full_like(x, 0.5)
        past = decay.cumprod(0)
        self.state.copy_((self.state + (x / past).sum(0)) * past[-1])
        return x + 1


class DecayingLiveState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.full((1,), 16.0))

    def forward(self, x, num_tokens):
        live = torch.arange(x.shape[0]) < num_tokens
        decay = torch.full_like(x, 0.5).where(live, 1.0)
        past = decay.cumprod(0)
        self.state.copy_((self.state + (x / past).where(live, 0.0).sum(0)) * past[-1])
        return x + 1


# 16 / 8 + 24 / 4 is the state of 8; the zero rows of that step are what the next one finds in its tail.
DECAY = [{"x": [24.0, 0.0, 0.0], "num_tokens": 3}, {"x": [2.0], "num_tokens": 1}]


# ---------------------------------------------------------------------------------------------------------------- C25
class ScatteredTokens(nn.Module):
    """New tokens go to the rows of their requests; entries of dummy rows go along."""

    def forward(self, tokens, rows, num_tokens):
        out = torch.zeros(4, dtype=torch.int64)
        out[rows] = tokens
        return out[:3], tokens * 2


class ScatteredLiveTokens(nn.Module):
    def forward(self, tokens, rows, num_tokens):
        out = torch.zeros(4, dtype=torch.int64)
        live = torch.arange(rows.shape[0]) < num_tokens
        out[torch.where(live, rows, 3)] = torch.where(live, tokens, 0)
        return out[:3], tokens * 2


SCATTERED = [
    {"tokens": [5, 6, 22, 0], "rows": [0, 0, 1, 2], "num_tokens": 4},
    {"tokens": [21, 22], "rows": [0, 2], "num_tokens": 2},
]


# ---------------------------------------------------------------------------------------------------------------- C26
@torch.library.custom_op("cases::expanded_rows", mutates_args=())
def expanded_rows(lengths: torch.Tensor) -> torch.Tensor:
    """An eager op between pieces, of which nothing is declared: it makes two rows of every request it is shown."""
    return torch.tensor([2 * lengths.shape[0]])


@expanded_rows.register_fake
def _(lengths):
    return lengths.new_empty(1)


class ExpandsPadded(nn.Module):
    def forward(self, lengths, num_requests):
        return expanded_rows(lengths), lengths + 1


class ExpandsLive(nn.Module):
    def forward(self, lengths, num_requests):
        return (2 * num_requests).view(1), lengths + 1


EXPANDED = [{"lengths": [2, 2, 2, 2], "num_requests": 4}, {"lengths": [2, 2], "num_requests": 2}]


_TOKENS = {"num_tokens": Live("T")}
_UPDATE = {"x": ("T",), "step": (1,), **_TOKENS}
_KEYS = {"keys": ("T",), "gain": (1,)}
_SCATTERED = {"tokens": ("T",), "rows": ("T",), **_TOKENS}
_EXPANDED = {"lengths": ("R",), "num_requests": Live("R")}

RECORDS: list[Record] = [
    Record(
        "C14", "vllm-project/vllm#43810", "padding-pollution", "to an indexed store the skip code is a row",
        "graph", ("CW204", "CW206"), [5, 11, 12, 13], [5, 11, 12, 99],
        _make(SentinelStore, SENTINEL, 2, slots=("T",), **_UPDATE),
        _make(SinkStore, SENTINEL, 2, slots=Input("T", null=4), **_UPDATE), _state("cache", 4),
    ),
    Record(
        "C15", "vllm-project/vllm#13418", "padding-pollution", "rows are counted by the padded operand", "graph",
        ("CW204",), [0, 0, 1, 2], [8, 9, 1, 2],
        _make(RowsOfKeys, KEYS, 4, slots=("T",), **_KEYS),
        _make(RowsOfKeysSkipped, KEYS, 4, slots=Input("T", null=-1), **_KEYS), _state("cache", 4),
        ((RowsOfKeys, RowsOfKeysSkipped), (store_keys_kernel, store_kept_keys_kernel)),
    ),
    Record(
        "C16", "lightseekorg/tokenspeed#700", "padding-pollution", "the skip code is clamped to a slot in use", "graph",
        ("CW204",), [100, 0, 0, 31], [99, 0, 0, 31],
        _make(ClampedSentinel, CLAMPED, 2, slots=("T",), **_UPDATE),
        _make(ReservedSink, CLAMPED, 2, slots=Input("T", null=4), **_UPDATE), _state("pool", 4),
    ),
    Record(
        "C19", "vllm-project/vllm#37442", "padding-pollution", "NaN of padded rows in a scale of all rows", "graph",
        ("CW202",), [[64.0, 127.0]], [[float("nan"), float("nan")]],
        _make(PerTensorScale, SCALES, 2, x=("T", 2), **_TOKENS),
        _make(PerTensorScaleMasked, SCALES, 2, x=("T", 2), **_TOKENS),
    ),
    Record(
        "C20", "vllm-project/vllm#38128", "padding-pollution", "a counter of experts counts padded rows", "graph",
        ("CW202", "CW204"), [1, 1], [3, 1],
        _make(ExpertCounts, ROUTED, 4, expert=("T",), **_TOKENS),
        _make(ExpertCountsLive, ROUTED, 4, expert=("T",), **_TOKENS), _counted,
    ),
    Record(
        "C21", "sgl-project/sglang#33253", "padding-pollution", "padded positions claim slots of live tokens", "runner",
        ("CW204",), [10, 12], [99, 12],
        _make(OwnedPositions, OWNED, 5, keys=("T",), positions=("T",), **_TOKENS),
        _make(OwnedLivePositions, OWNED, 5, keys=("T",), positions=("T",), **_TOKENS), _state("cache", 2),
    ),
    Record(
        "C23", "vllm-project/vllm#55178", "padding-pollution", "zero rows decay a recurrent state", "runner",
        ("CW202",), [6.0], [1.5],
        _make(DecayingState, DECAY, 3, x=("T",), **_TOKENS), _make(DecayingLiveState, DECAY, 3, x=("T",), **_TOKENS),
        _state("state", 1),
    ),
    Record(
        "C25", "NVIDIA/TensorRT-LLM#3839", "padding-pollution", "entries of dummy rows are scattered with the others",
        "runner", ("CW202",), [21, 0, 22], [21, 22, 0],
        _make(ScatteredTokens, SCATTERED, 4, **_SCATTERED), _make(ScatteredLiveTokens, SCATTERED, 4, **_SCATTERED),
    ),
    Record(
        "C26", "vllm-project/vllm#49302", "padding-pollution", "an eager op between pieces is shown padded requests",
        "runner", ("CW001",), [4], [8],
        _make(ExpandsPadded, EXPANDED, 4, "R", **_EXPANDED), _make(ExpandsLive, EXPANDED, 4, "R", **_EXPANDED),
    ),
]  # fmt: skip
