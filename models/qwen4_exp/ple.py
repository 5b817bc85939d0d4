"""PLE as it is served: hashed n-grams of the token stream gate a value into every residual stream, then a short
convolution adds what stood just before. Flat steps: the tokens of all requests, one chunk after another.

Every piece of request data is an argument; what outlives a step is the buffer `conv_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

import capwise.ops  # noqa: F401  registers the ops
from capwise.models.qwen4_exp.config import Config
from capwise.ops.short_conv import short_conv_reference, short_conv_state_reference


@dataclass(frozen=True)
class Conv:
    """The two halves of a short convolution: what gives the output, and what moves the state on afterwards."""

    output: Callable[..., torch.Tensor]
    state: Callable[..., None]


OURS = Conv(torch.ops.capwise.ple_short_conv.default, torch.ops.capwise.ple_short_conv_state_.default)
REFERENCE = Conv(short_conv_reference, short_conv_state_reference)


class Shard(NamedTuple):
    """A rank's part of the rows of a table: which is its first, how many, and with whom the rest is."""

    first: int
    rows: int
    group: str


class NgramIds(nn.Module):
    """Ids only: the step that a token-keyed graph gets wrong when boundaries are stale."""

    def __init__(self, config: Config, layer: int = 0) -> None:
        super().__init__()
        self.eos = config.eos_token_id
        self.register_buffer("multipliers", torch.tensor(config.multipliers(layer)))
        self.register_buffer("sizes", torch.tensor(config.head_sizes(layer)))
        self.register_buffer("offsets", torch.tensor(config.head_offsets(layer)))

    def forward(
        self, input_ids: torch.Tensor, query_start_loc: torch.Tensor, ngram_context: torch.Tensor
    ) -> torch.Tensor:
        """input_ids int32[T], query_start_loc int32[R+1], ngram_context int32[R, n-1] -> int64[T, heads]."""
        return torch.ops.capwise.ple_ngram_ids(
            input_ids, query_start_loc, ngram_context, self.multipliers, self.sizes, self.offsets, self.eos
        )

    def hashed(self, input_ids: torch.Tensor, predecessors: torch.Tensor) -> torch.Tensor:
        """The same where the tokens before each were found already, int64[T, n-1] of `ple_predecessors`: row-local."""
        return torch.ops.capwise.ple_ngram_hash(input_ids, predecessors, self.multipliers, self.sizes, self.offsets)


class ShortConv(nn.Module):
    """The convolution and its state. The slots are column 0 of a state table: a view whose stride is the table's
    width. `spare` columns of state past the history hold what drafts may be rolled back to."""

    def __init__(self, channels: int, taps: int, dilation: int, slots: int, conv: Conv = OURS, spare: int = 0) -> None:
        super().__init__()
        self.conv, self.dilation, self.length = conv, dilation, (taps - 1) * dilation
        self.weight = nn.Parameter(torch.randn(channels, taps) / taps, requires_grad=False)
        self.register_buffer("conv_state", torch.randn(slots, channels, self.length + spare))

    def forward(
        self,
        x: torch.Tensor,
        query_start_loc: torch.Tensor,
        state_table: torch.Tensor,
        has_initial: torch.Tensor,
        num_accepted: torch.Tensor | None = None,
        is_spec: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [T, C], query_start_loc int32[R+1], state_table int32[R, 1+S], has_initial bool[R] and, where chunks may be
        drafts, num_accepted int32[R], is_spec bool[R] -> [T, C]."""
        requests = (query_start_loc, state_table[:, 0], has_initial)
        drafts = () if is_spec is None else (num_accepted, is_spec)
        y = self.conv.output(x, self.weight, self.conv_state, *requests, self.dilation, *drafts)
        self.conv.state(x, self.conv_state, *requests, self.length, *drafts)
        return y


class PLE(nn.Module):
    """One PLE layer.

    Args:
        config: sizes; `layer` is this layer's number among the PLE layers.
        slots: rows of the state, the null slot 0 included.
        conv: which kernels run the short convolution.
        spare: columns of state past the history, kept for speculative tokens.

    The weights are random, the convolution's too: a checkpoint starts it at zero, which would leave it untested.
    """

    def __init__(self, config: Config, slots: int, layer: int = 0, conv: Conv = OURS, spare: int = 0) -> None:
        super().__init__()
        self.config = config
        self.shard: Shard | None = None
        width, hidden = config.width, config.hidden_size
        self.ids = NgramIds(config, layer)
        self.table = nn.Parameter(torch.randn(config.table_rows(layer), config.ngram_head_dim), requires_grad=False)
        self.key_value = nn.Linear(config.ple_embed_dim, width + hidden, bias=False)
        self.key_value.weight.requires_grad_(False)
        for name in ("norm_key", "norm_query", "norm_conv"):
            setattr(self, name, nn.Parameter(0.1 * torch.randn(width), requires_grad=False))
        self.short_conv = ShortConv(width, config.ple_conv_kernel_size, config.dilation, slots, conv, spare)

    def forward(
        self,
        input_ids: torch.Tensor,
        hidden: torch.Tensor,
        query_start_loc: torch.Tensor,
        ngram_context: torch.Tensor,
        state_table: torch.Tensor,
        has_initial: torch.Tensor,
        num_accepted: torch.Tensor | None = None,
        is_spec: torch.Tensor | None = None,
        predecessors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """hidden [T, hc*H]; the others as `build_batch` makes them -> [T, hc*H]; the slots of the step move on.

        predecessors: int64 [T, n-1], as `ple_predecessors` gives them: then n-grams need nothing of the requests.
        """
        config = self.config
        if predecessors is None:
            ids = self.ids(input_ids, query_start_loc, ngram_context)
        else:
            ids = self.ids.hashed(input_ids, predecessors)
        if self.shard is None:
            embedding = torch.ops.capwise.ple_table_gather(ids, self.table)
        else:  # what is in another rank's part reads as zeros here
            mine = torch.ops.capwise.ple_table_gather(ids - self.shard.first, self.table)
            embedding = torch.ops.capwise.all_reduce(mine, self.shard.group)
        key, value = self.key_value(embedding).split([config.width, config.hidden_size], dim=1)
        gated, normed = torch.ops.capwise.ple_gate(
            key,
            value,
            hidden,
            self.norm_key,
            self.norm_query,
            self.norm_conv,
            config.rms_norm_eps,
            config.hc_count,
        )
        mixed = self.short_conv(normed, query_start_loc, state_table, has_initial, num_accepted, is_spec)
        return hidden + (gated + mixed)
