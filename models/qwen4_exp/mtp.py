"""Multi-token prediction: a draft layer that reads the trunk's streams and the token that follows.

At position j, X_j the streams before the final mixer [hc*H] and E the shared embedding:

    e   = fc_embedding(RMS(E[id_{j+1}]))            h = RMS(X_j), over all hc*H at once
    x_c = fc_hidden(h_c) + e                        one matrix for all streams
    one layer with an indexer (own pages, own ring), own final mixer, the shared head

The logits guess the token after id_{j+1}; the layer's streams feed the next draft step. The first draft step runs over
all rows of the target's step, later ones over one row a request.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from capwise.models.qwen4_exp.config import INDEXED
from capwise.models.qwen4_exp.decoder import Decoder, DecoderLayer, fill_state_, metadata
from capwise.models.qwen4_exp.layers import HyperConnection, ops, rms_norm, weight


class DraftLayer(nn.Module):
    """One multi-token prediction layer over a decoder, whose embedding and head it shares."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        config = self.config = decoder.config
        self.pools, self.embed, self.head = decoder.pools, decoder.embed, decoder.head
        hidden = config.hidden_size
        self.norm_embedding = weight(hidden, dtype=dtype, std=0.2)
        self.norm_hidden = weight(config.width, dtype=dtype, std=0.2)
        self.fc_embedding = weight(hidden, hidden, dtype=dtype)
        self.fc_hidden = weight(hidden, hidden, dtype=dtype)
        self.layer = DecoderLayer(config, self.pools, INDEXED, dtype=dtype)
        self.final = HyperConnection(config, dtype, inject=False)

    def forward(
        self,
        streams: torch.Tensor,
        next_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        state_table: torch.Tensor,
        num_accepted: torch.Tensor,
        has_initial: torch.Tensor,
        is_spec: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step.

        Args:
            streams: [T, hc*H], of the trunk or of this layer's step before.
            next_ids: int32 [T], the token after each row's own.
            the others: as `build_batch` makes them for the rows' own positions.

        Returns:
            logits [R, 1+S, V] and streams [T, hc*H], as the decoder's.
        """
        config, count = self.config, self.config.hc_count
        requests = (query_start_loc, seq_lens, block_table, state_table, num_accepted, has_initial, is_spec)
        step = metadata(config, self.pools, next_ids, positions, *requests)
        embeds = rms_norm(F.embedding(next_ids, self.embed), self.norm_embedding, config.rms_norm_eps)
        embeds = F.linear(embeds, self.fc_embedding)
        hidden = rms_norm(streams, self.norm_hidden, config.rms_norm_eps)
        hidden = F.linear(hidden.unflatten(1, (count, config.hidden_size)), self.fc_hidden)
        x = self.layer((hidden + embeds[:, None]).flatten(1), step)
        rows = ops.logits_rows(self.final.read(x)[0], query_start_loc, is_spec, 1 + self.pools.num_spec)
        return F.linear(rows, self.head), x

    def fill_state_(self, generator: torch.Generator) -> None:
        fill_state_(self, generator)
