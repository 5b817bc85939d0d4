"""One call of every op of this package, at any extents and sizes: what shows its kernels to tools and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from capwise.ops.metadata import token_requests_reference
from capwise.ops.table_gather import FP8
from capwise.ops.top_blocks import top_blocks_reference

Call = dict[str, Any]


@dataclass(frozen=True)
class Attention:
    """Sizes of an attention layer and its pages, at least. table: pages a request. cap: raw keys in a ring slot."""

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

    def fitting(self, lengths: Sequence[int]) -> Attention:
        """With tables and pages that hold requests of these chunks, each in pages of its own."""
        table = max([self.table, *(-(-n // self.page) for n in lengths)])
        return replace(self, table=table, pages=max(self.pages, len(lengths) * table + 1))


@dataclass(frozen=True)
class Sizes:
    """Sizes of the layers; as released where nothing else is said.

    heads: per n-gram order. state: the shape of one slot of a recurrent state. filled: False leaves floats as the
    allocator gives them, for calls that are recorded and never run. drafts: speculative tokens a request may verify.
    key_heads, value_heads, key_width, value_width, chunk: of the gated delta net. experts, top_k, inner: of the
    mixture of experts.
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
    drafts: int = 3
    key_heads: int = 16
    value_heads: int = 48
    key_width: int = 128
    value_width: int = 128
    chunk: int = 32
    experts: int = 64
    top_k: int = 10
    inner: int = 640


SMALL = Sizes(
    24, 2, 2, 3, 6, 40, 4, 3, 16, (3, 7), torch.float32, True, Attention(4, 2, 12, 3, 11, (2, 2, 1), 2, 3, 4, 5, 31, 4),
    key_heads=1, value_heads=2, key_width=5, value_width=7, chunk=16, experts=6, top_k=2, inner=12,
)  # fmt: skip


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

    def request(self, lengths: Sequence[int]) -> Call:
        """What a step says of each request whose drafts may be verified: about half of those that could."""
        requests, most = len(lengths), self.sizes.drafts + 1
        chance = torch.rand(requests, 2, generator=self.generator)
        short = torch.tensor([n <= most for n in lengths])
        return {
            "query_start_loc": _starts(lengths),
            "has_initial": chance[:, 0] < 0.7,
            "num_accepted": self.integers(1, most + 1, requests),
            "is_spec": short & (chance[:, 1] < 0.5),
        }


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


def _predecessors(lengths: Sequence[int], draw: Draw) -> Call:
    return _but(_ngram_ids(lengths, draw), "multipliers", "sizes", "offsets")


def _ngram_hash(lengths: Sequence[int], draw: Draw) -> Call:
    call = _but(_ngram_ids(lengths, draw), "query_start_loc", "ngram_context", "eos")
    before = draw.integers(90, 100, sum(lengths), draw.sizes.ngram - 1, dtype=torch.int64)
    return {"input_ids": call.pop("input_ids"), "predecessors": before, **call}


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


def _window(lengths: Sequence[int], draw: Draw, channels: int, length: int) -> Call:
    return {
        "x": draw.floats(sum(lengths), channels),
        "state": draw.floats(draw.sizes.slots, channels, length + draw.sizes.drafts),
        "state_indices": draw.slots(len(lengths)),
        **draw.request(lengths),
    }


def _conv_state(lengths: Sequence[int], draw: Draw) -> Call:
    length = (draw.sizes.taps - 1) * draw.sizes.dilation
    return {**_window(lengths, draw, draw.sizes.hidden * draw.sizes.streams, length), "length": length}


def _conv(lengths: Sequence[int], draw: Draw) -> Call:
    call = _conv_state(lengths, draw)
    channels = draw.sizes.hidden * draw.sizes.streams
    del call["length"]
    return {**call, "weight": draw.floats(channels, draw.sizes.taps), "dilation": draw.sizes.dilation}


def _gdn_channels(sizes: Sizes) -> int:
    return 2 * sizes.key_heads * sizes.key_width + sizes.value_heads * sizes.value_width


def _gdn_conv_state(lengths: Sequence[int], draw: Draw) -> Call:
    length = draw.sizes.taps - 1
    return {**_window(lengths, draw, _gdn_channels(draw.sizes), length), "length": length}


def _gdn_conv(lengths: Sequence[int], draw: Draw) -> Call:
    call = _gdn_conv_state(lengths, draw)
    del call["length"]
    return {**call, "weight": draw.floats(_gdn_channels(draw.sizes), draw.sizes.taps)}


def _gdn_scan(lengths: Sequence[int], draw: Draw) -> Call:
    """q, k and v are parts of one row; the slots of a request are different ones, some of them null."""
    sizes, tokens, requests = draw.sizes, sum(lengths), len(lengths)
    row = draw.floats(tokens, _gdn_channels(sizes))
    keys, columns = sizes.key_heads * sizes.key_width, 1 + sizes.drafts
    q, k, v = row.split([keys, keys, sizes.value_heads * sizes.value_width], 1)
    slots = max(sizes.slots, requests * columns + 1)
    table = torch.randperm(slots - 1, generator=draw.generator)[: requests * columns].view(requests, columns) + 1
    table[3::4] = 0
    table[1::4, -1] = 0
    recurrent = (slots, sizes.value_heads, sizes.key_width, sizes.value_width)
    gates = torch.rand(2, tokens, sizes.value_heads, generator=draw.generator)
    return {
        "q": q.unflatten(1, (sizes.key_heads, -1)),
        "k": k.unflatten(1, (sizes.key_heads, -1)),
        "v": v.unflatten(1, (sizes.value_heads, -1)),
        "g": -gates[0],
        "beta": gates[1],
        "state": torch.randn(recurrent, generator=draw.generator) if sizes.filled else torch.empty(recurrent),
        "state_table": table.int(),
        "chunk": sizes.chunk,
        **draw.request(lengths),
    }


def _hc_norm(lengths: Sequence[int], draw: Draw) -> Call:
    wide = draw.sizes.hidden * draw.sizes.streams
    return {"x": draw.floats(sum(lengths), wide), "weight": draw.floats(wide), "eps": 1e-6, "hc": draw.sizes.streams}


def _hc_mix(lengths: Sequence[int], draw: Draw) -> Call:
    wide = draw.sizes.hidden * draw.sizes.streams
    both = {name: draw.floats(sum(lengths), wide) for name in ("n", "gate_logits")}
    return {**both, "hc": draw.sizes.streams}


def _hc_write(lengths: Sequence[int], draw: Draw) -> Call:
    sizes, tokens = draw.sizes, sum(lengths)
    shapes = {"x": sizes.hidden * sizes.streams, "y": sizes.hidden, "inject": sizes.streams}
    return {name: draw.floats(tokens, width) for name, width in shapes.items()}


def _moe_route(lengths: Sequence[int], draw: Draw) -> Call:
    return {"logits": draw.floats(sum(lengths), draw.sizes.experts), "k": draw.sizes.top_k}


def _moe_experts(lengths: Sequence[int], draw: Draw) -> Call:
    """Different experts for each token; some choices name none."""
    sizes, tokens = draw.sizes, sum(lengths)
    order = torch.rand(tokens, sizes.experts + 1, generator=draw.generator).argsort(1)
    return {
        "u": draw.floats(tokens, sizes.hidden),
        "weights": draw.floats(tokens, sizes.top_k),
        "experts": order[:, : sizes.top_k].int(),
        "gate_up": draw.floats(sizes.experts, 2 * sizes.inner, sizes.hidden),
        "down": draw.floats(sizes.experts, sizes.hidden, sizes.inner),
    }


def _table_gather_fp8(lengths: Sequence[int], draw: Draw) -> Call:
    """Every bit pattern of a byte that is a number in both formats; the format by the number of tokens."""
    call, rows = _table_gather(lengths, draw), draw.sizes.table_rows
    bits = draw.integers(0, 256, rows, draw.sizes.head_width, dtype=torch.uint8)
    bits[((bits & 0x7F) == 0x7F) | (bits == 0x80)] = 0x31
    table = bits.view(FP8[sum(lengths) % 2])
    return {"ids": call["ids"], "table": table, "scale": torch.tensor(0.37), "dtype": draw.sizes.dtype}


def _w8a8(lengths: Sequence[int], draw: Draw) -> Call:
    sizes = draw.sizes
    return {
        "x": draw.floats(sum(lengths), sizes.hidden),
        "weight": draw.integers(-127, 128, sizes.inner, sizes.hidden, dtype=torch.int8),
        "weight_scale": torch.rand(sizes.inner, generator=draw.generator) / 64,
    }


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
    sizes, requests = draw.sizes.attention.fitting(lengths), len(lengths)
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


def _kv_cache(lengths: Sequence[int], draw: Draw) -> torch.Tensor:
    sizes = draw.sizes.attention.fitting(lengths)
    return draw.floats(sizes.pages, sizes.page, 2, sizes.heads, sizes.width)


def _mrope_kv_write(lengths: Sequence[int], draw: Draw) -> Call:
    """q is the first half of a projection's heads, as with a gate beside it; every fifth token has no slot."""
    sizes, tokens = draw.sizes.attention.fitting(lengths), sum(lengths)
    slots = torch.randperm((sizes.pages - 1) * sizes.page, generator=draw.generator)[:tokens] + sizes.page
    slots[4::5] = -1
    return {
        "q": draw.floats(tokens, sizes.query_heads, 2 * sizes.width)[..., : sizes.width],
        "k": draw.floats(tokens, sizes.heads, sizes.width),
        "v": draw.floats(tokens, sizes.heads, sizes.width),
        **_rope(lengths, draw),
        "slot_mapping": slots,
        "kv_cache": _kv_cache(lengths, draw),
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


def _block_keys(lengths: Sequence[int], draw: Draw) -> torch.Tensor:
    sizes = draw.sizes.attention.fitting(lengths)
    return draw.floats(sizes.pages, sizes.page // sizes.ratio, sizes.index_width)


def _qsa_compress(lengths: Sequence[int], draw: Draw) -> Call:
    return {
        **_qsa_commit(lengths, draw),
        **_but(_rope(lengths, draw), "positions"),
        "norm_weight": draw.floats(draw.sizes.attention.index_width),
        **_metadata(lengths, draw),
        "block_keys": _block_keys(lengths, draw),
        "eps": 1e-6,
        "ratio": draw.sizes.attention.ratio,
    }


def _qsa_scores(lengths: Sequence[int], draw: Draw) -> Call:
    sizes = draw.sizes.attention
    iq = draw.floats(sum(lengths), sizes.index_heads, sizes.index_width)
    return {"iq": iq, "block_keys": _block_keys(lengths, draw), **_tokens(lengths, draw), "ratio": sizes.ratio}


def _top_blocks(lengths: Sequence[int], draw: Draw) -> Call:
    """Whole numbers, many of them equal, and columns that are not visible."""
    sizes, tokens = draw.sizes.attention.fitting(lengths), sum(lengths)
    width = sizes.table * sizes.page // sizes.ratio
    scores = draw.integers(-3, 4, tokens, width).float()
    return {
        "scores": scores.masked_fill(scores == -3, float("-inf")),
        "k": sizes.chosen,
        "visible": draw.integers(0, width + 1, tokens),
    }


def _sparse_attention(lengths: Sequence[int], draw: Draw) -> Call:
    sizes, tokens = draw.sizes.attention.fitting(lengths), _tokens(lengths, draw)
    width = sizes.table * sizes.page // sizes.ratio
    scores = torch.rand(sum(lengths), width, generator=draw.generator)
    return {
        "q": draw.floats(sum(lengths), sizes.query_heads, sizes.width),
        "kv_cache": _kv_cache(lengths, draw),
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
    "ple_predecessors": _predecessors,
    "ple_ngram_hash": _ngram_hash,
    "ple_table_gather": _table_gather,
    "ple_gate": _gate,
    "ple_short_conv": _conv,
    "ple_short_conv_state_": _conv_state,
    "ple_table_gather_fp8": _table_gather_fp8,
    "gdn_conv": _gdn_conv,
    "gdn_conv_state_": _gdn_conv_state,
    "gdn_scan_": _gdn_scan,
    "hc_norm": _hc_norm,
    "hc_mix": _hc_mix,
    "hc_write": _hc_write,
    "moe_route": _moe_route,
    "moe_experts": _moe_experts,
    "w8a8_linear": _w8a8,
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
