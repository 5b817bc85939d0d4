"""The kernels that capwise ships. Importing this package registers them as custom ops under `capwise::`."""

from capwise.ops import (
    align_cache,
    logits_rows,
    metadata,
    mrope,
    ngram_ids,
    ple_gate,
    qsa_index,
    qsa_scores,
    short_conv,
    sparse_attention,
    table_gather,
    top_blocks,
)

__all__ = [
    "align_cache",
    "logits_rows",
    "metadata",
    "mrope",
    "ngram_ids",
    "ple_gate",
    "qsa_index",
    "qsa_scores",
    "short_conv",
    "sparse_attention",
    "table_gather",
    "top_blocks",
]
