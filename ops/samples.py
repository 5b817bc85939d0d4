"""One call of every op of this package, at any extents and sizes: what shows its kernels to tools and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capwise.ops.metadata import token_requests_reference
from capwise.ops.top_blocks import top_blocks_reference

Call = dict[str, Any]


@dataclass(frozen=True)
class Attention:
    """Sizes of an attention layer and its pages. table: pages a request. cap: raw keys that a ring slot holds."""

    query_heads: int = 24
    heads: int = 2
    width: int = 256
    index_heads: int = 4
    index_width: int = 128
    sections: tuple[int, int, int] = (11, 11, 10)
    ratio: int = 4
    chosen: int = 512
    page: int = 16
    table: int = 128
    pages: int = 64 * 128 + 1
    cap: int = 8


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
    attention: Attention = Attention()


SMALL = Sizes(
    24, 2, 2, 3, 6, 40, 4, 3, 16, (3, 7), torch.float32, True, Attention(4, 2, 12, 3, 11, (2, 2, 1), 2, 3, 4, 4, 33, 4)
)


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


def _metadata(lengths: Sequence[int], draw: Draw) -> Call:
    """Requests with some tokens done before, each with pages of its own."""
    sizes, requests = draw.sizes.attention, len(lengths)
    done = torch.tensor([int(draw.integers(0, sizes.table * sizes.page - n + 1, 1)) for n in lengths])
    pages = torch.randperm(sizes.pages - 1, generator=draw.generator)[: requests * sizes.table] + 1
    return {
        "query_start_loc": _starts(lengths),
        "seq_lens": (done + torch.tensor(list(lengths))).int(),
        "block_table": pages.view(requests, sizes.table).int(),
    }


def _tokens(lengths: Sequence[int], draw: Draw) -> Call:
    """The same by token."""
    batch = _metadata(lengths, draw)
    like = torch.empty(sum(lengths))
    row, position = token_requests_reference(batch["query_start_loc"], batch["seq_lens"], like.shape[0])
    return {"token_to_req": row, "logical_pos": position, "block_table": batch["block_table"]}


def _token_requests(lengths: Sequence[int], draw: Draw) -> Call:
    batch = _metadata(lengths, draw)
    return {**_but(batch, "block_table"), "like": draw.floats(sum(lengths), 3)}


def _slot_mapping(lengths: Sequence[int], draw: Draw) -> Call:
    return {**_tokens(lengths, draw), "page_size": draw.sizes.attention.page}


def _rope(lengths: Sequence[int], draw: Draw) -> Call:
    sections = draw.sizes.attention.sections
    pairs = sum(sections)
    return {
        "positions": draw.integers(-9, 1000, 3, sum(lengths), dtype=torch.int64),
        "inv_freq": 1e7 ** (-torch.arange(pairs) / pairs),
        "sections": list(sections),
    }


def _mrope(lengths: Sequence[int], draw: Draw) -> Call:
    sizes = draw.sizes.attention
    return {"x": draw.floats(sum(lengths), sizes.index_heads, sizes.index_width), **_rope(lengths, draw)}


def _kv_cache(draw: Draw) -> torch.Tensor:
    sizes = draw.sizes.attention
    return draw.floats(sizes.pages, sizes.page, 2, sizes.heads, sizes.width)


def _mrope_kv_write(lengths: Sequence[int], draw: Draw) -> Call:
    """q is the first half of a projection's heads, as with a gate beside it; every fifth token has no slot."""
    sizes, tokens = draw.sizes.attention, sum(lengths)
    slots = torch.randperm((sizes.pages - 1) * sizes.page, generator=draw.generator)[:tokens] + sizes.page
    slots[4::5] = -1
    return {
        "q": draw.floats(tokens, sizes.query_heads, 2 * sizes.width)[..., : sizes.width],
        "k": draw.floats(tokens, sizes.heads, sizes.width),
        "v": draw.floats(tokens, sizes.heads, sizes.width),
        **_rope(lengths, draw),
        "slot_mapping": slots,
        "kv_cache": _kv_cache(draw),
    }


def _qsa_commit(lengths: Sequence[int], draw: Draw) -> Call:
    sizes, slots = draw.sizes.attention, draw.sizes.slots
    return {
        "raw_key": draw.floats(sum(lengths), sizes.index_width),
        **_but(_rope(lengths, draw), "inv_freq", "sections"),
        "ring": draw.floats(slots, sizes.cap, sizes.index_width),
        "ring_positions": draw.integers(-9, 1000, slots, sizes.cap, 3, dtype=torch.int64),
        **_but(_metadata(lengths, draw), "block_table"),
        "state_indices": draw.slots(len(lengths)),
    }


def _block_keys(draw: Draw) -> torch.Tensor:
    sizes = draw.sizes.attention
    return draw.floats(sizes.pages, sizes.page // sizes.ratio, sizes.index_width)


def _qsa_compress(lengths: Sequence[int], draw: Draw) -> Call:
    return {
        **_qsa_commit(lengths, draw),
        **_but(_rope(lengths, draw), "positions"),
        "norm_weight": draw.floats(draw.sizes.attention.index_width),
        **_metadata(lengths, draw),
        "block_keys": _block_keys(draw),
        "eps": 1e-6,
        "ratio": draw.sizes.attention.ratio,
    }


def _qsa_scores(lengths: Sequence[int], draw: Draw) -> Call:
    sizes = draw.sizes.attention
    iq = draw.floats(sum(lengths), sizes.index_heads, sizes.index_width)
    return {"iq": iq, "block_keys": _block_keys(draw), **_tokens(lengths, draw), "ratio": sizes.ratio}


def _top_blocks(lengths: Sequence[int], draw: Draw) -> Call:
    """Whole numbers, many of them equal, and columns that are not visible."""
    sizes, tokens = draw.sizes.attention, sum(lengths)
    width = sizes.table * sizes.page // sizes.ratio
    scores = draw.integers(-3, 4, tokens, width).float()
    return {
        "scores": scores.masked_fill(scores == -3, float("-inf")),
        "k": sizes.chosen,
        "visible": draw.integers(0, width + 1, tokens),
    }


def _sparse_attention(lengths: Sequence[int], draw: Draw) -> Call:
    sizes, tokens = draw.sizes.attention, _tokens(lengths, draw)
    width = sizes.table * sizes.page // sizes.ratio
    scores = torch.rand(sum(lengths), width, generator=draw.generator)
    return {
        "q": draw.floats(sum(lengths), sizes.query_heads, sizes.width),
        "kv_cache": _kv_cache(draw),
        "blocks": top_blocks_reference(scores, sizes.chosen, (tokens["logical_pos"] + 1) // sizes.ratio),
        **tokens,
        "ratio": sizes.ratio,
        "scale": sizes.width**-0.5,
    }


def _logits_rows(lengths: Sequence[int], draw: Draw) -> Call:
    return {
        "hidden": draw.floats(sum(lengths), draw.sizes.hidden),
        "query_start_loc": _starts(lengths),
        "is_spec": torch.rand(len(lengths), generator=draw.generator) < 0.5,
        "width": draw.sizes.taps,
    }


def _but(call: Call, *names: str) -> Call:
    return {n: v for n, v in call.items() if n not in names}


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
    "token_requests": _token_requests,
    "slot_mapping": _slot_mapping,
    "mrope": _mrope,
    "mrope_kv_write_": _mrope_kv_write,
    "qsa_compress_": _qsa_compress,
    "qsa_commit_": _qsa_commit,
    "qsa_scores": _qsa_scores,
    "top_blocks": _top_blocks,
    "sparse_attention": _sparse_attention,
    "logits_rows": _logits_rows,
}


def sample(op: str, lengths: Sequence[int], sizes: Sizes = SMALL, seed: int = 0) -> Call:
    """Arguments by name of one call of `capwise::<op>`.

    Args:
        lengths: how many tokens each request brings; 0 is allowed.

    Raises:
        KeyError: no such op.
    """
    return CALLS[op](lengths, Draw(sizes, torch.Generator().manual_seed(seed)))
