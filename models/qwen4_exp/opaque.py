"""The decoder as an engine with closed kernels runs it: vendor ops that take activations and a layer's name.

Every tensor argument of these ops is [T, ...]: by signature each looks row-local. What they do depends on boundaries,
slots, pages and drafts, which they fetch from a context that the engine sets around a step, and they write the pools of
the layer that they look up there. Results go to buffers that the caller provides, as in-place ops of engines do.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from capwise.models.qwen4_exp.decoder import Decoder, DecoderLayer, metadata
from capwise.models.qwen4_exp.layers import GatedDeltaNet, IndexedAttention, Metadata, ops


@dataclass
class ForwardContext:
    """What an engine knows of the step that runs: its batch, and the layers by name."""

    batch: Mapping[str, torch.Tensor] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)


_stack: list[ForwardContext] = []


@contextlib.contextmanager
def forward_context(model: OpaqueDecoder, batch: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Inside, the vendor ops run the step `batch` (as `build_batch` makes it) on the pools of `model`."""
    _stack.append(ForwardContext(batch, dict(model.decoder.named_modules())))
    try:
        yield
    finally:
        _stack.pop()


def current() -> ForwardContext:
    """The innermost context.

    Raises:
        RuntimeError: no engine set one.
    """
    if not _stack:
        raise RuntimeError("vendor ops: expected a forward context around the step; got none")
    return _stack[-1]


def _step(rows: torch.Tensor) -> Metadata:
    """The metadata of the step, at the number of rows that the op was given."""
    found = current()
    batch = found.batch
    plain = [batch[name] for name in Metadata._fields if name in batch]
    decoder: Decoder = found.layers[""]
    return metadata(decoder.config, decoder.pools, rows, *plain)


@torch.library.custom_op("vendor::ple_ngram_ids", mutates_args=())
def ple_ngram_ids(input_ids: torch.Tensor, heads: int, layer: str) -> torch.Tensor:
    """input_ids [T] -> table rows int64 [T, heads]."""
    found = current()
    return found.layers[layer](input_ids, found.batch["query_start_loc"], found.batch["ngram_context"])


@ple_ngram_ids.register_fake
def _(input_ids, heads, layer):
    return input_ids.new_empty((input_ids.shape[0], heads), dtype=torch.int64)


@torch.library.custom_op("vendor::ple_short_conv", mutates_args={"residual"})
def ple_short_conv(inputs: torch.Tensor, residual: torch.Tensor, layer: str) -> None:
    """inputs [T, C]: what the convolution gives is added to residual [T, C]; the layer's pool moves on."""
    batch = current().batch
    names = ("query_start_loc", "state_table", "has_initial", "num_accepted", "is_spec")
    residual += current().layers[layer](inputs, *[batch[name] for name in names])


@ple_short_conv.register_fake
def _(inputs, residual, layer):
    return None


@torch.library.custom_op("vendor::gdn_attention_core", mutates_args={"out"})
def gdn_attention_core(mixed: torch.Tensor, b: torch.Tensor, a: torch.Tensor, out: torch.Tensor, layer: str) -> None:
    """mixed [T, conv width], b, a [T, HV] -> out [T, HV, DV]; the layer's pools move on."""
    out.copy_(GatedDeltaNet.core(current().layers[layer], mixed, b, a, _step(mixed)))


@gdn_attention_core.register_fake
def _(mixed, b, a, out, layer):
    return None


@torch.library.custom_op("vendor::qsa_with_output", mutates_args={"out"})
def qsa_with_output(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index_q: torch.Tensor,
    index_k: torch.Tensor,
    out: torch.Tensor,
    layer: str,
) -> None:
    """q [T, HQ, D], k, v [T, HK, D], index_q [T, HI, DI], index_k [T, DI] -> out [T, HQ, D]; pages and ring move on."""
    out.copy_(IndexedAttention.core(current().layers[layer], q, k, v, index_q, index_k, _step(q)))


@qsa_with_output.register_fake
def _(q, k, v, index_q, index_k, out, layer):
    return None


@torch.library.custom_op("vendor::select_rows", mutates_args=())
def select_rows(hidden: torch.Tensor, requests: int, width: int) -> torch.Tensor:
    """hidden [T, H] -> [requests, width, H], the rows that logits are wanted of, and zeros."""
    batch = current().batch
    rows = ops.logits_rows(hidden, batch["query_start_loc"], batch["is_spec"], width)
    return F.pad(rows, (0, 0, 0, 0, 0, requests - rows.shape[0]))


@select_rows.register_fake
def _(hidden, requests, width):
    return hidden.new_empty((requests, width, hidden.shape[1]))


class _GdnCore:
    """In place of the layer's own `core`."""

    def __init__(self, layer: GatedDeltaNet, name: str) -> None:
        config = layer.config
        self.name, self.shape = name, (config.linear_num_value_heads, config.linear_value_head_dim)

    def __call__(self, mixed: torch.Tensor, b: torch.Tensor, a: torch.Tensor, step: Any) -> torch.Tensor:
        out = mixed.new_zeros((mixed.shape[0], *self.shape))
        torch.ops.vendor.gdn_attention_core(mixed, b, a, out, self.name)
        return out


class _QsaCore:
    """In place of the layer's own `core`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, q: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = torch.zeros_like(q)
        torch.ops.vendor.qsa_with_output(q, *rest[:-1], out, self.name)
        return out


class OpaqueDecoder(nn.Module):
    """A decoder whose request-bound ops are closed; its weights and pools are those of the decoder that it is given,
    which it takes over.

    Args:
        requests: the most requests of a step.
    """

    def __init__(self, decoder: Decoder, requests: int) -> None:
        super().__init__()
        self.decoder, self.requests = decoder, requests
        for name, module in decoder.named_modules():
            if isinstance(module, GatedDeltaNet):
                module.core = _GdnCore(module, name)  # type: ignore[method-assign]
            elif isinstance(module, IndexedAttention):
                module.core = _QsaCore(name)  # type: ignore[method-assign]

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """input_ids int32[T], all else from the forward context -> logits [requests, 1+S, V], streams [T, hc*H]."""
        decoder = self.decoder
        x = torch.cat([F.embedding(input_ids, decoder.embed)] * decoder.config.hc_count, dim=1)
        for number, layer in enumerate(decoder.layers):
            x = self._ngrams(x, input_ids, layer, f"layers.{number}.ple")
            x = layer.mixer_connection(x, layer.mixer, None)
            x = layer.experts_connection(x, layer.experts, None)
        rows = torch.ops.vendor.select_rows(decoder.final.read(x)[0], self.requests, 1 + decoder.pools.num_spec)
        return F.linear(rows, decoder.head), x

    def _ngrams(self, x: torch.Tensor, input_ids: torch.Tensor, layer: DecoderLayer, name: str) -> torch.Tensor:
        if layer.ple is None:
            return x
        ple, config = layer.ple, self.decoder.config
        ids = torch.ops.vendor.ple_ngram_ids(input_ids, config.ngram_heads, f"{name}.ids")
        both = ple.key_value(ops.ple_table_gather(ids, ple.table))
        key, value = both.split([config.width, config.hidden_size], dim=1)
        norms = (ple.norm_key, ple.norm_query, ple.norm_conv)
        gated, normed = ops.ple_gate(key, value, x, *norms, config.rms_norm_eps, config.hc_count)
        torch.ops.vendor.ple_short_conv(normed, gated, f"{name}.short_conv")
        return x + gated


# Which copy of a model a step is of: its name is a constant of the graph that is traced from it.
_NAMES = itertools.count()
_MODELS: weakref.WeakValueDictionary[str, OpaqueDecoder] = weakref.WeakValueDictionary()
_STEP = ("query_start_loc", "seq_lens", "block_table", "state_table", "num_accepted", "has_initial", "is_spec")


@torch.library.custom_op("vendor::begin_step", mutates_args=())
def begin_step(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    state_table: torch.Tensor,
    num_accepted: torch.Tensor,
    has_initial: torch.Tensor,
    is_spec: torch.Tensor,
    ngram_context: torch.Tensor,
    model: str,
) -> torch.Tensor:
    """Sets the context of a step, for a model that is called with the whole batch; returns input_ids, from which
    everything that reads the context follows."""
    requests = (query_start_loc, seq_lens, block_table, state_table, num_accepted, has_initial, is_spec)
    batch = {"positions": positions, "ngram_context": ngram_context, **dict(zip(_STEP, requests))}
    _stack[:] = [ForwardContext(batch, dict(_MODELS[model].decoder.named_modules()))]
    return input_ids.clone()


@begin_step.register_fake
def _(
    input_ids, positions, query_start_loc, seq_lens, block_table, state_table, num_accepted, has_initial, is_spec,
    ngram_context, model,
):  # fmt: skip
    return torch.empty_like(input_ids)


class Served(nn.Module):
    """An opaque decoder and its engine in one: called like a decoder, with the whole batch."""

    def __init__(self, model: OpaqueDecoder) -> None:
        super().__init__()
        self.model = model
        self.name = f"model {next(_NAMES)}"
        _MODELS[self.name] = model

    def __deepcopy__(self, memo: dict[int, Any]) -> Served:
        return Served(copy.deepcopy(self.model, memo))

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        state_table: torch.Tensor,
        num_accepted: torch.Tensor,
        has_initial: torch.Tensor,
        is_spec: torch.Tensor,
        ngram_context: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `OpaqueDecoder`."""
        requests = (query_start_loc, seq_lens, block_table, state_table, num_accepted, has_initial, is_spec)
        ids = torch.ops.vendor.begin_step(input_ids, positions, *requests, ngram_context, self.name)
        return self.model(ids)


# Which rows of the dependence table each vendor op holds.
HOLDS: Mapping[str, tuple[str, ...]] = {
    "vendor.ple_ngram_ids.default": ("ple n-gram ids", "ple predecessors, once a step"),
    "vendor.ple_short_conv.default": ("ple short conv",),
    "vendor.gdn_attention_core.default": ("gdn conv1d", "gdn delta-rule scan"),
    "vendor.qsa_with_output.default": (
        "indexer rope", "rope + kv cache write", "qsa compress groups", "qsa raw-key ring write", "qsa score + top-k",
        "expand + sparse paged attention",
    ),
    "vendor.select_rows.default": ("logits rows + head",),
}  # fmt: skip
