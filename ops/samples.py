"""One call of every op of this package, at any extents and sizes: what shows its kernels to tools and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the layers; as released where nothing else is said.

    heads: per n-gram order. state: the shape of one slot of a recurrent state. filled: False leaves floats as the
    allocator gives them, for calls that are recorded and never run.
    """

    hidden: int = 2560
    streams: int = 4
    heads: int = 8
    ngram: int = 3
    head_width: int = 160
    table_rows: int = 4096
    taps: int = 4
    dilation: int = 3
    slots: int = 80
    state: tuple[int, ...] = (32, 128, 128)
    dtype: torch.dtype = torch.bfloat16
    filled: bool = False


SMALL = Sizes(24, 2, 2, 3, 6, 40, 4, 3, 16, (3, 7), torch.float32, True)


@dataclass(frozen=True)
class Draw:
    """Where a call's values come from."""

    sizes: Sizes
    generator: torch.Generator

    def floats(self, *shape: int) -> torch.Tensor:
        if not self.sizes.filled:
            return torch.empty(shape, dtype=self.sizes.dtype)
        return torch.randn(shape, generator=self.generator).to(self.sizes.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator, dtype=dtype)

    def slots(self, requests: int) -> torch.Tensor:
        """Different slots, the null slot for every fourth request."""
        drawn = (torch.randperm(self.sizes.slots - 1, generator=self.generator)[:requests] + 1).int()
        drawn[3::4] = 0
        return drawn


def _ngram_ids(lengths: Sequence[int], draw: Draw) -> Call:
    sizes, context = draw.sizes, draw.sizes.ngram - 1
    heads = sizes.heads * context
    rows = draw.integers(sizes.table_rows // 2, sizes.table_rows, heads, dtype=torch.int64)
    return {
        "input_ids": draw.integers(90, 100, sum(lengths)),
        "query_start_loc": _starts(lengths),
        "ngram_context": draw.integers(90, 100, len(lengths), context),
        "multipliers": draw.integers(1, 2**40, sizes.ngram, dtype=torch.int64) * 2 + 1,
        "sizes": rows,
        "offsets": torch.cumsum(rows, 0) - rows,
        "eos": 99,
    }


def _table_gather(lengths: Sequence[int], draw: Draw) -> Call:
    sizes = draw.sizes
    heads = sizes.heads * (sizes.ngram - 1)
    ids = draw.integers(-1, sizes.table_rows + 1, sum(lengths), heads, dtype=torch.int64)
    return {"ids": ids, "table": draw.floats(sizes.table_rows, sizes.head_width)}


def _gate(lengths: Sequence[int], draw: Draw) -> Call:
    tokens, hidden, wide = sum(lengths), draw.sizes.hidden, draw.sizes.hidden * draw.sizes.streams
    both = draw.floats(tokens, wide + hidden)
    weights = {name: draw.floats(wide) for name in ("w_key", "w_query", "w_conv")}
    views = {"key": both[:, :wide], "value": both[:, wide:], "hidden": draw.floats(tokens, wide)}
    return {**views, **weights, "eps": 1e-6, "hc": draw.sizes.streams}


def _conv_state(lengths: Sequence[int], draw: Draw) -> Call:
    sizes, requests = draw.sizes, len(lengths)
    channels, length = sizes.hidden * sizes.streams, (sizes.taps - 1) * sizes.dilation
    return {
        "x": draw.floats(sum(lengths), channels),
        "state": draw.floats(sizes.slots, channels, length),
        "query_start_loc": _starts(lengths),
        "state_indices": draw.slots(requests),
        "has_initial": torch.rand(requests, generator=draw.generator) < 0.7,
        "length": length,
    }


def _conv(lengths: Sequence[int], draw: Draw) -> Call:
    call = _conv_state(lengths, draw)
    channels = draw.sizes.hidden * draw.sizes.streams
    del call["length"]
    return {**call, "weight": draw.floats(channels, draw.sizes.taps), "dilation": draw.sizes.dilation}


def _align(lengths: Sequence[int], draw: Draw) -> Call:
    """Same slot, another slot, a shared source, another's destination as source: whatever comes."""
    destinations = draw.slots(len(lengths))
    sources = draw.integers(0, draw.sizes.slots, len(lengths))
    sources[::2] = destinations[::2]
    return {"sources": sources, "destinations": destinations}


def _align_shift(lengths: Sequence[int], draw: Draw) -> Call:
    state = _conv_state(lengths, draw)["state"]
    return {"state": state, **_align(lengths, draw), "biases": draw.integers(0, state.shape[2] + 1, len(lengths))}


def _align_copy(lengths: Sequence[int], draw: Draw) -> Call:
    return {"state": draw.floats(draw.sizes.slots, *draw.sizes.state), **_align(lengths, draw)}


def _starts(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(list(lengths)).cumsum(0).tolist()], dtype=torch.int32)


CALLS: dict[str, Callable[[Sequence[int], Draw], Call]] = {
    "ple_ngram_ids": _ngram_ids,
    "ple_table_gather": _table_gather,
    "ple_gate": _gate,
    "ple_short_conv": _conv,
    "ple_short_conv_state_": _conv_state,
    "align_state_shift_": _align_shift,
    "align_state_copy_": _align_copy,
}


def sample(op: str, lengths: Sequence[int], sizes: Sizes = SMALL, seed: int = 0) -> Call:
    """Arguments by name of one call of `capwise::<op>`.

    Args:
        lengths: how many tokens each request brings; 0 is allowed.

    Raises:
        KeyError: no such op.
    """
    return CALLS[op](lengths, Draw(sizes, torch.Generator().manual_seed(seed)))
