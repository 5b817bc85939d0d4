"""The decoder as it is served: flat tokens of many requests, paged keys, slots of state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from capwise.models.qwen4_exp.config import LINEAR, Config
from capwise.models.qwen4_exp.layers import (
    Experts,
    GatedDeltaNet,
    HyperConnection,
    IndexedAttention,
    Metadata,
    Pools,
    ops,
    weight,
)
from capwise.models.qwen4_exp.ple import PLE, Shard


def metadata(
    config: Config,
    pools: Pools,
    rows: torch.Tensor,
    positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *requests: torch.Tensor,
) -> Metadata:
    """What layers read of a step; per token once, whatever the number of layers. rows [T, ...] only says how many
    tokens there are."""
    token_to_req, logical_pos = ops.token_requests(query_start_loc, seq_lens, rows)
    places = ops.slot_mapping(token_to_req, logical_pos, block_table, pools.page_size)
    visible = (logical_pos + 1) // config.indexer_compress_ratio
    return Metadata(
        positions, query_start_loc, seq_lens, block_table, *requests, token_to_req, logical_pos, places, visible
    )


class DecoderLayer(nn.Module):
    """n-grams where the layer has them, then a mixing block and experts, each between hyper-connections."""

    def __init__(
        self,
        config: Config,
        pools: Pools,
        kind: str,
        ple: int | None = None,
        dtype: torch.dtype | None = None,
        prefill: str | None = None,
    ) -> None:
        super().__init__()
        self.ple = None
        if ple is not None:
            self.ple = PLE(config, pools.slots, ple, spare=pools.num_spec).to(dtype)
        self.mixer_connection = HyperConnection(config, dtype)
        linear = kind == LINEAR
        self.mixer = GatedDeltaNet(config, pools, dtype, prefill) if linear else IndexedAttention(config, pools, dtype)
        self.experts_connection = HyperConnection(config, dtype)
        self.experts = Experts(config, dtype)

    def forward(
        self,
        x: torch.Tensor,
        step: Metadata,
        input_ids: torch.Tensor | None = None,
        ngram_context: torch.Tensor | None = None,
        predecessors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [T, hc*H] -> [T, hc*H]."""
        if self.ple is not None:
            x = self.ple(
                input_ids,
                x,
                step.query_start_loc,
                ngram_context,
                step.state_table,
                step.has_initial,
                step.num_accepted,
                step.is_spec,
                predecessors,
            )
        x = self.mixer_connection(x, self.mixer, step)
        return self.experts_connection(x, self.experts, step)


class Decoder(nn.Module):
    """Qwen4Exp, text part.

    Args:
        config: sizes.
        slots, blocks: rows of state and pages of keys, the null ones included.
        page_size: tokens a page, a multiple of the indexer's ratio.
        num_spec: S, the most drafts a verify chunk may hold.
        dtype: of weights and caches; recurrent state, A_log and dt_bias stay float32. None: the default dtype.
        prefill: which op runs the delta rule. None: `gdn_scan_`, which graphs hold. "fla": `gdn_chunked_`, which runs
            long chunks by flash-linear-attention, between graphs.

    The weights are random, all of them, until `load_state_dict` of this package fills them.

    Raises:
        ValueError: page_size is no multiple of the ratio; another `prefill`.
        ImportError: `prefill="fla"` without `pip install 'capwise[fla]'`.
    """

    def __init__(
        self,
        config: Config,
        slots: int,
        blocks: int,
        page_size: int = 16,
        num_spec: int = 0,
        dtype: torch.dtype | None = None,
        prefill: str | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.pools = Pools(slots, blocks, page_size, num_spec)
        self.embed = weight(config.vocab_size, config.hidden_size, dtype=dtype, std=1.0)
        ple = {layer - 1: number for number, layer in enumerate(config.ple_layer_ids)}
        kinds = config.layer_types or ()
        self.layers = nn.ModuleList(
            DecoderLayer(config, self.pools, kind, ple.get(i), dtype, prefill) for i, kind in enumerate(kinds)
        )
        self.final = HyperConnection(config, dtype, inject=False)
        self.head = weight(config.vocab_size, config.hidden_size, dtype=dtype)
        self.shard: Shard | None = None

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
        inputs_embeds: torch.Tensor | None = None,
        predecessors: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step; arguments as `build_batch` makes them.

        Args:
            inputs_embeds: [T, H], in place of the embeddings of input_ids, where images were merged in; n-grams are of
                input_ids all the same.
            predecessors: int64 [T, n-1], what `ple_predecessors` makes of input_ids, query_start_loc and ngram_context,
                where an engine has it; n-grams then read nothing of the requests.

        Returns:
            logits [R, 1+S, V]: of a verify chunk's tokens in order, of other chunks' last token at 0, and zeros; and
            the residual streams before the final mixer [T, hc*H], which draft layers read.
        """
        requests = (query_start_loc, seq_lens, block_table, state_table, num_accepted, has_initial, is_spec)
        step = metadata(self.config, self.pools, input_ids, positions, *requests)
        embeds = F.embedding(input_ids, self.embed) if inputs_embeds is None else inputs_embeds
        x = torch.cat([embeds] * self.config.hc_count, dim=1)
        for layer in self.layers:
            x = layer(x, step, input_ids, ngram_context, predecessors)
        return self.logits(x, query_start_loc, is_spec), x

    def logits(self, x: torch.Tensor, query_start_loc: torch.Tensor, is_spec: torch.Tensor) -> torch.Tensor:
        """x [T, hc*H] -> [R, 1+S, V]."""
        rows = ops.logits_rows(self.final.read(x)[0], query_start_loc, is_spec, 1 + self.pools.num_spec)
        if self.shard is None:
            return F.linear(rows, self.head)
        after = self.config.vocab_size - self.shard.first - self.shard.rows
        return ops.all_reduce(F.pad(F.linear(rows, self.head), (self.shard.first, after)), self.shard.group)

    def fill_state_(self, generator: torch.Generator) -> None:
        fill_state_(self, generator)


def fill_state_(module: nn.Module, generator: torch.Generator) -> None:
    """Fills everything that persists with noise: what a request reads of it must be its own."""
    for name, buffer in module.named_buffers():
        if name.rpartition(".")[2] in STATE:
            noise = torch.randn(buffer.shape, generator=generator, device=generator.device)
            buffer.copy_(noise * (100 if name.endswith("positions") else 1))


STATE = ("conv_state", "state", "kv_cache", "block_keys", "ring", "ring_positions")
