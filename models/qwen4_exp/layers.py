"""The layers of the decoder over flat tokens: hyper-connections, gated delta net, attention with an indexer, experts.

What a layer computes of its own row is plain torch and row-local ops; what needs requests, slots or pages is in its
`core`, from ops that take all of it as arguments. What outlives a step is in buffers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import capwise.ops  # noqa: F401  registers the ops
from capwise.models.qwen4_exp.config import Config
from capwise.ops.gdn_chunked import library

ops = torch.ops.capwise


class Metadata(NamedTuple):
    """One step, as `build_batch` makes it, and what is computed of it once: token_to_req int32[T], logical_pos int32[T]
    (-1 for tokens that are not there), slot_mapping int64[T] (where keys and values go, -1 for nowhere), visible
    int32[T] (how many complete blocks of keys a token may see)."""

    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    state_table: torch.Tensor
    num_accepted: torch.Tensor
    has_initial: torch.Tensor
    is_spec: torch.Tensor
    token_to_req: torch.Tensor
    logical_pos: torch.Tensor
    slot_mapping: torch.Tensor
    visible: torch.Tensor

    @property
    def slots(self) -> torch.Tensor:
        return self.state_table[:, 0]


class Pools(NamedTuple):
    """Extents of what persists: rows of state (the null one included), pages of keys (likewise), tokens a page, and
    S, the number of draft tokens."""

    slots: int
    blocks: int
    page_size: int
    num_spec: int = 0


def weight(*shape: int, dtype: torch.dtype | None = None, std: float | None = None, mean: float = 0.0) -> nn.Parameter:
    """A random weight; by default of a spread that keeps the size of what it is multiplied with."""
    spread = shape[-1] ** -0.5 if std is None else std
    return nn.Parameter(torch.empty(shape, dtype=dtype).normal_(mean, spread), requires_grad=False)


def rms_norm(x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension, in float32, rounded once; the weight is stored less one."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (scaled * (1.0 + norm_weight.float())).to(x.dtype)


class HyperConnection(nn.Module):
    """How a block reads the residual streams and writes to them. x [T, hc*H] are the streams, H inner."""

    def __init__(self, config: Config, dtype: torch.dtype | None = None, inject: bool = True) -> None:
        super().__init__()
        self.hc, self.eps = config.hc_count, config.rms_norm_eps
        self.lowrank, self.injects = config.hc_lowrank, inject
        self.norm = weight(config.width, dtype=dtype, std=0.2)
        # The projections to the low rank and to the injection weights read the same rows: one GEMM.
        self.down = weight(config.hc_lowrank + (self.hc if inject else 0), config.width, dtype=dtype)
        self.up = weight(config.width, config.hc_lowrank, dtype=dtype)

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x [T, hc*H] -> what the block is given [T, H], and how much of its result each stream takes [T, hc]."""
        normed = ops.hc_norm(x, self.norm, self.eps, self.hc)
        low = F.linear(normed, self.down) / self.hc
        gates = F.linear(F.silu(low[:, : self.lowrank]), self.up)
        mixed = ops.hc_mix(normed, gates, self.hc)
        return mixed, 2 * torch.sigmoid(low[:, self.lowrank :]) if self.injects else None

    def forward(self, x: torch.Tensor, block: nn.Module, step: Metadata) -> torch.Tensor:
        mixed, inject = self.read(x)
        return ops.hc_write(x, block(mixed, step), inject)


class GatedDeltaNet(nn.Module):
    """A linear layer: short convolution, delta rule, gated norm. Its state: the convolution's last inputs, and one
    matrix a value head for the last token and every draft. prefill: as for the decoder."""

    def __init__(
        self, config: Config, pools: Pools, dtype: torch.dtype | None = None, prefill: str | None = None
    ) -> None:
        super().__init__()
        if prefill not in (None, "fla"):
            raise ValueError(f"prefill: expected None or 'fla'; got {prefill!r}")
        if prefill == "fla":
            library()
        self.prefill = prefill
        self.config = config
        heads, key, value = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
        self.widths = [config.gdn_conv_width, config.value_width, heads, heads]
        self.in_proj = weight(sum(self.widths), config.hidden_size, dtype=dtype)
        self.conv_weight = weight(config.gdn_conv_width, config.linear_conv_kernel_dim, dtype=dtype, std=0.4)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0.05, 4.0).log(), requires_grad=False)
        self.dt_bias = weight(heads, std=0.5)
        self.norm = weight(value, dtype=dtype, std=0.2, mean=1.0)
        self.out_proj = weight(config.hidden_size, config.value_width, dtype=dtype)
        window = config.gdn_conv_state + pools.num_spec
        self.register_buffer("conv_state", torch.zeros(pools.slots, config.gdn_conv_width, window, dtype=dtype))
        self.register_buffer("state", torch.zeros(pools.slots, heads, key, value))

    def forward(self, u: torch.Tensor, step: Metadata) -> torch.Tensor:
        """u [T, H] -> [T, H]."""
        config = self.config
        mixed, z, b, a = F.linear(u, self.in_proj).split(self.widths, dim=1)
        out = self.core(mixed, b, a, step)
        wide = out.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
        gate = z.unflatten(1, (config.linear_num_value_heads, config.linear_value_head_dim)).float()
        gate = torch.sigmoid(gate) if config.output_gate_type == "sigmoid" else F.silu(gate)
        gated = ((self.norm * scaled.to(u.dtype)).float() * gate).to(u.dtype)
        return F.linear(gated.flatten(1), self.out_proj)

    def core(self, mixed: torch.Tensor, b: torch.Tensor, a: torch.Tensor, step: Metadata) -> torch.Tensor:
        """mixed [T, 2*HK*DK + HV*DV], b, a [T, HV] -> [T, HV, DV]; the slots of the step move on."""
        config = self.config
        requests = (step.query_start_loc, step.slots, step.has_initial, step.num_accepted, step.is_spec)
        mixed_now = ops.gdn_conv(mixed, self.conv_weight, self.conv_state, *requests)
        ops.gdn_conv_state_(mixed, self.conv_state, *requests, config.gdn_conv_state)
        q, k, v = mixed_now.split([config.key_width, config.key_width, config.value_width], dim=1)
        keys = (config.linear_num_key_heads, config.linear_key_head_dim)
        scan = ops.gdn_chunked_ if self.prefill == "fla" else ops.gdn_scan_
        return scan(
            q.unflatten(1, keys),
            k.unflatten(1, keys),
            v.unflatten(1, (config.linear_num_value_heads, config.linear_value_head_dim)),
            -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias.float()),
            b.sigmoid().float(),
            self.state,
            step.query_start_loc,
            step.state_table,
            step.has_initial,
            step.num_accepted,
            step.is_spec,
        )


class IndexedAttention(nn.Module):
    """Attention over the blocks of keys that an indexer picks. Its state: pages of keys and values, pages of block
    keys, and a ring of the raw index keys of the last tokens."""

    def __init__(self, config: Config, pools: Pools, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        ratio, index = config.indexer_compress_ratio, config.indexer_head_dim
        if pools.page_size % ratio:
            raise ValueError(f"page_size: expected a multiple of indexer_compress_ratio {ratio}; got {pools.page_size}")
        self.config = config
        self.heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        heads, kv_heads, width = self.heads
        self.widths = [2 * heads * width, kv_heads * width, kv_heads * width, config.indexer_n_heads * index, index]
        self.in_proj = weight(sum(self.widths), config.hidden_size, dtype=dtype)
        self.q_norm, self.k_norm = (weight(width, dtype=dtype, std=0.2) for _ in range(2))
        self.index_q_norm, self.index_k_norm = (weight(index, dtype=dtype, std=0.2) for _ in range(2))
        self.out_proj = weight(config.hidden_size, heads * width, dtype=dtype)
        pairs = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32)
        self.register_buffer("inv_freq", config.rope_theta ** -(pairs / config.rotary_dim), persistent=False)
        blocks, page = pools.blocks, pools.page_size
        capacity = config.ring_capacity(pools.num_spec)
        self.register_buffer("kv_cache", torch.zeros(blocks, page, 2, kv_heads, width, dtype=dtype))
        self.register_buffer("block_keys", torch.zeros(blocks, page // ratio, index, dtype=dtype))
        self.register_buffer("ring", torch.zeros(pools.slots, capacity, index, dtype=dtype))
        self.register_buffer("ring_positions", torch.zeros(pools.slots, capacity, 3, dtype=torch.int64))

    def forward(self, u: torch.Tensor, step: Metadata) -> torch.Tensor:
        """u [T, H] -> [T, H]."""
        config, (heads, kv_heads, width) = self.config, self.heads
        wide, k, v, index_q, index_k = F.linear(u, self.in_proj).split(self.widths, dim=1)
        q, gate = wide.unflatten(1, (heads, 2 * width)).split(width, dim=2)
        index_q = index_q.unflatten(1, (config.indexer_n_heads, config.indexer_head_dim))
        out = self.core(
            rms_norm(q, self.q_norm, config.rms_norm_eps),
            rms_norm(k.unflatten(1, (kv_heads, width)), self.k_norm, config.rms_norm_eps),
            v.unflatten(1, (kv_heads, width)),
            rms_norm(index_q, self.index_q_norm, config.rms_norm_eps),
            index_k,
            step,
        )
        return F.linear((out * torch.sigmoid(gate)).flatten(1), self.out_proj)

    def core(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
        step: Metadata,
    ) -> torch.Tensor:
        """q [T, HQ, D], k, v [T, HK, D], index_q [T, HI, DI], index_k [T, DI] -> [T, HQ, D]; pages and ring move on.

        Order: block keys are made of the ring before it is overwritten, and before they are scored; keys and values are
        written before they are read.
        """
        config = self.config
        sections, ratio = list(config.mrope_section), config.indexer_compress_ratio
        requests = (step.query_start_loc, step.seq_lens, step.slots)
        q = ops.mrope_kv_write_(
            q, k, v, step.positions, self.inv_freq, step.slot_mapping, self.kv_cache, sections
        )
        index_q = ops.mrope(index_q, step.positions, self.inv_freq, sections)
        ops.qsa_compress_(
            index_k,
            step.positions,
            self.ring,
            self.ring_positions,
            self.index_k_norm,
            self.inv_freq,
            *requests,
            step.block_table,
            self.block_keys,
            sections,
            config.rms_norm_eps,
            ratio,
        )
        ops.qsa_commit_(index_k, step.positions, self.ring, self.ring_positions, *requests)
        token = (step.token_to_req, step.logical_pos, step.block_table, ratio)
        scores = ops.qsa_scores(index_q, self.block_keys, *token)
        chosen = ops.top_blocks(scores, config.blocks_per_query, step.visible)
        return ops.sparse_attention(q, self.kv_cache, chosen, *token, config.attention_scale)


class Experts(nn.Module):
    """The best experts of each token and one that all share, behind a gate."""

    def __init__(self, config: Config, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.top = config.num_experts_per_tok
        count, hidden, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.shared_width = config.shared_expert_intermediate_size
        self.router = weight(count, hidden, dtype=dtype, std=0.6)
        self.gate_up = weight(count, 2 * inner, hidden, dtype=dtype)
        self.down = weight(count, hidden, inner, dtype=dtype)
        # The shared expert's two projections and its gate read the same rows: one GEMM.
        self.shared_in = weight(2 * self.shared_width + 1, hidden, dtype=dtype)
        self.shared_down = weight(hidden, self.shared_width, dtype=dtype)

    def forward(self, u: torch.Tensor, step: Metadata | None = None) -> torch.Tensor:
        """u [T, H] -> [T, H]."""
        weights, experts = ops.moe_route(F.linear(u, self.router), self.top)
        routed = ops.moe_experts(u, weights, experts, self.gate_up, self.down)
        gate, up, open_ = F.linear(u, self.shared_in).split([self.shared_width, self.shared_width, 1], dim=1)
        return routed + torch.sigmoid(open_) * F.linear(F.silu(gate) * up, self.shared_down)
