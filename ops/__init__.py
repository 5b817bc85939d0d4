"""The kernels that capwise ships. Importing this package registers them as custom ops under `capwise::`."""

from capwise.ops import align_cache, ngram_ids, ple_gate, short_conv, table_gather

__all__ = ["align_cache", "ngram_ids", "ple_gate", "short_conv", "table_gather"]
