"""Configuration of Qwen4Exp, its validation rules, and the constants of the n-gram hash.

The defaults are the released values of Qwen/Qwen3.8-Flash-Next; the class defaults of transformers differ, and are what
a config.json leaves out (`from_dict`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
# Keeps the seeds of two PLE layers apart.
_LAYER_SEED_STEP = 10007


LINEAR, INDEXED = "linear_attention", "indexed_attention"
# Checkpoints say "full_attention" for the layers whose attention has an indexer; releases of transformers have each a
# word of their own, and take that of the checkpoints.
_CHECKPOINT = "full_attention"
_KINDS = {LINEAR: LINEAR, INDEXED: INDEXED, _CHECKPOINT: INDEXED, "qwen_sparse_attention": INDEXED}
_GATES = ("sigmoid", "silu")
_POSITIVE = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim linear_key_head_dim "
    "linear_value_head_dim linear_num_key_heads linear_num_value_heads num_experts num_experts_per_tok "
    "moe_intermediate_size shared_expert_intermediate_size hc_lowrank indexer_n_heads indexer_head_dim indexer_budget "
    "indexer_compress_ratio heads_per_ngram ple_embed_dim ngram_vocab_size_base make_ngram_vocab_size_divisible_by "
    "split_ngram_parts"
).split()
# What transformers takes where a config.json is silent, where that is not what this class takes.
_ABSENT: Mapping[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 32768,
    "split_ngram_parts": 512,
    "ple_layer_ids": (),
    "ple_embed_dim": None,
    "eos_token_id": None,
    "output_gate_type": None,
    "layer_types": None,
    "mtp_num_hidden_layers": 0,
    "indexer_n_heads": None,
    "indexer_kv_heads": None,
    "indexer_head_dim": None,
    "indexer_budget": None,
    "indexer_compress_ratio": None,
}
_ROPE: Mapping[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 1.0,
    "mrope_section": (11, 11, 10),
}
# Fixed in this implementation: field of a config.json -> the only value.
_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "norm_topk_prob": True,
}


@dataclass(frozen=True)
class Config:
    """Sizes of the model, text part.

    Raises:
        ValueError: a field cannot have its value; says which, what was expected and what was given.
    """

    vocab_size: int = 248320
    hidden_size: int = 2560
    num_hidden_layers: int = 48
    layer_types: tuple[str, ...] | None = None  # None: three linear layers, then one with an indexer, and so on
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-6
    eos_token_id: int = 248044
    # attention
    num_attention_heads: int = 24
    num_key_value_heads: int = 2
    head_dim: int = 256
    rope_theta: float = 10_000_000.0
    partial_rotary_factor: float = 0.25
    mrope_section: tuple[int, ...] = (11, 11, 10)
    indexer_n_heads: int = 4
    indexer_kv_heads: int = 1
    indexer_head_dim: int = 128
    indexer_budget: int = 2048
    indexer_compress_ratio: int = 4
    # gated delta net
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 48
    output_gate_type: str = "sigmoid"
    # experts
    num_experts: int = 512
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 640
    shared_expert_intermediate_size: int = 640
    # hyper-connections
    hc_count: int = 4
    hc_lowrank: int = 320
    # n-grams
    ple_layer_ids: tuple[int, ...] = (2,)  # counted from 1
    ple_embed_dim: int = 2560
    ple_conv_kernel_size: int = 4
    ngram_size: int = 3
    heads_per_ngram: int = 8
    ngram_vocab_size_base: int = 20_000_000
    make_ngram_vocab_size_divisible_by: int = 128
    split_ngram_parts: int = 128
    seed: int = 1234
    # multi-token prediction
    mtp_num_hidden_layers: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.eos_token_id, (list, tuple)):
            object.__setattr__(self, "eos_token_id", self.eos_token_id[0] if self.eos_token_id else None)
        object.__setattr__(self, "ple_layer_ids", tuple(self.ple_layer_ids))
        object.__setattr__(self, "mrope_section", tuple(self.mrope_section))
        for name in _POSITIVE:
            _expect(getattr(self, name), 1, name)
        for name in ("hc_count", "ngram_size", "ple_conv_kernel_size", "linear_conv_kernel_dim"):
            _expect(getattr(self, name), 2, name)
        if not self.rms_norm_eps > 0:
            _refuse("rms_norm_eps", "a positive number", self.rms_norm_eps)
        self._check_layers()
        self._check_attention()
        self._check_linear()
        self._check_ngrams()

    def _check_layers(self) -> None:
        count = self.num_hidden_layers
        kinds = self.layer_types
        if kinds is None:
            kinds = tuple(INDEXED if i % 4 == 3 else LINEAR for i in range(count))
        if len(kinds) != count:
            _refuse("layer_types", f"one kind for each of the {count} layers", f"{len(kinds)} kinds")
        if unknown := sorted(set(kinds) - set(_KINDS)):
            _refuse("layer_types", f"only {LINEAR} and {INDEXED} (or full_attention)", unknown[0])
        object.__setattr__(self, "layer_types", tuple(_KINDS[kind] for kind in kinds))
        if self.num_experts_per_tok > self.num_experts:
            _refuse("num_experts_per_tok", f"at most the {self.num_experts} experts", self.num_experts_per_tok)
        if self.mtp_num_hidden_layers not in (0, 1):
            _refuse("mtp_num_hidden_layers", "0 or 1", self.mtp_num_hidden_layers)

    def _check_attention(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            heads = self.num_key_value_heads
            _refuse("num_attention_heads", f"a multiple of the {heads} key-value heads", self.num_attention_heads)
        if self.indexer_kv_heads != 1:
            _refuse("indexer_kv_heads", "1", self.indexer_kv_heads)
        if self.indexer_budget % self.indexer_compress_ratio:
            ratio = self.indexer_compress_ratio
            _refuse("indexer_budget", f"a multiple of indexer_compress_ratio {ratio}", self.indexer_budget)
        rotary = self.rotary_dim
        if not 0 < rotary <= self.head_dim or rotary % 2:
            fits = f"a fraction that rotates an even number of the {self.head_dim} dimensions"
            _refuse("partial_rotary_factor", fits, self.partial_rotary_factor)
        if rotary > self.indexer_head_dim:
            _refuse("indexer_head_dim", f"at least the {rotary} rotated dimensions", self.indexer_head_dim)
        if len(self.mrope_section) != 3 or sum(self.mrope_section) != rotary // 2 or min(self.mrope_section) < 0:
            _refuse("mrope_section", f"three counts that add up to {rotary // 2} pairs", self.mrope_section)

    def _check_linear(self) -> None:
        if self.linear_num_value_heads % self.linear_num_key_heads:
            heads = self.linear_num_key_heads
            _refuse("linear_num_value_heads", f"a multiple of the {heads} key heads", self.linear_num_value_heads)
        if self.output_gate_type not in _GATES:
            _refuse("output_gate_type", " or ".join(_GATES), self.output_gate_type)

    def _check_ngrams(self) -> None:
        layers = self.ple_layer_ids
        if not layers:
            return
        if not isinstance(self.eos_token_id, int) or not 0 <= self.eos_token_id < self.vocab_size:
            _refuse("eos_token_id", f"a token in [0, {self.vocab_size})", self.eos_token_id)
        if self.ple_embed_dim % self.ngram_heads:
            _refuse("ple_embed_dim", f"a multiple of the {self.ngram_heads} n-gram heads", self.ple_embed_dim)
        if list(layers) != sorted(set(layers)) or min(layers) < 1:
            _refuse("ple_layer_ids", "distinct layer numbers from 1 on, in order", layers)
        if layers[-1] > self.num_hidden_layers:
            _refuse("ple_layer_ids", f"layer numbers up to {self.num_hidden_layers}", layers)
        assert self.layer_types is not None
        if wrong := [layer for layer in layers if self.layer_types[layer - 1] != LINEAR]:
            _refuse("ple_layer_ids", f"layers of kind {LINEAR}", f"layer {wrong[0]}, {INDEXED}")

    @classmethod
    def tiny(cls, **changes: Any) -> Config:
        """A model of a few thousand parameters with every part in place, for tests. With a budget of two blocks the
        attention is sparse from position 12 on."""
        small: dict[str, Any] = dict(
            vocab_size=97,
            hidden_size=16,
            num_hidden_layers=8,
            max_position_embeddings=512,
            eos_token_id=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=8,
            rope_theta=10_000.0,
            partial_rotary_factor=0.75,
            mrope_section=(1, 1, 1),
            indexer_n_heads=3,
            indexer_head_dim=8,
            indexer_budget=8,
            linear_key_head_dim=4,
            linear_value_head_dim=6,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=10,
            hc_lowrank=6,
            ple_embed_dim=16,
            heads_per_ngram=2,
            ngram_vocab_size_base=101,
            make_ngram_vocab_size_divisible_by=8,
            split_ngram_parts=4,
        )
        return cls(**{**small, **changes})

    @classmethod
    def from_dict(cls, values: Any) -> Config:
        """From the configuration of a checkpoint.

        Args:
            values: a transformers configuration, what `json.load` makes of a config.json, or the path of one. The text
                part of a vision-language configuration is taken. A field that is absent has the value that
                transformers gives it.

        Raises:
            ValueError: a value that this implementation does not serve.
        """
        given = _text_part(values)
        for name, only in _FIXED.items():
            if (got := given.get(name, only)) != only:
                _refuse(name, repr(only), got)
        rope = {**_ROPE, **(given.get("rope_parameters") or given.get("rope_scaling") or {})}
        rope |= {n: given[n] for n in ("rope_theta", "partial_rotary_factor") if given.get(n) is not None}
        if rope["rope_type"] != "default":
            _refuse("rope_parameters.rope_type", "'default'", rope["rope_type"])
        known = [f.name for f in fields(cls)]
        taken = {n: given[n] if n in given else _ABSENT[n] for n in known if n in given or n in _ABSENT}
        taken |= {n: rope[n] for n in ("rope_theta", "partial_rotary_factor", "mrope_section")}
        if taken["ple_embed_dim"] is None:
            taken["ple_embed_dim"] = taken["hidden_size"]
        if taken["output_gate_type"] is None:
            taken["output_gate_type"] = _FIXED["hidden_act"]
        taken["ple_layer_ids"] = tuple(sorted(set(taken["ple_layer_ids"] or ())))
        if isinstance(taken["layer_types"], Sequence):
            taken["layer_types"] = tuple(taken["layer_types"])
        elif given.get("full_attention_interval", 4) != 4:
            every = given["full_attention_interval"]
            count = taken["num_hidden_layers"]
            taken["layer_types"] = tuple(LINEAR if (i + 1) % every else INDEXED for i in range(count))
        return cls(**taken)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a transformers text configuration takes them."""
        apart = ("rope_theta", "partial_rotary_factor", "mrope_section", "mtp_num_hidden_layers")
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        rope = {"rope_type": "default", "mrope_interleaved": True}
        rope |= {"rope_theta": self.rope_theta, "partial_rotary_factor": self.partial_rotary_factor}
        rope["mrope_section"] = list(self.mrope_section)
        kinds = [_CHECKPOINT if kind == INDEXED else kind for kind in self.layer_types]
        lists = {"layer_types": kinds, "ple_layer_ids": list(self.ple_layer_ids)}
        return {**plain, **lists, **_FIXED, "rope_parameters": rope}

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of a head are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def blocks_per_query(self) -> int:
        """How many complete blocks of keys a query attends to, at most."""
        return self.indexer_budget // self.indexer_compress_ratio

    @property
    def key_width(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def gdn_conv_width(self) -> int:
        """Channels of the convolution of a linear layer: queries, keys, values."""
        return 2 * self.key_width + self.value_width

    @property
    def gdn_conv_state(self) -> int:
        """How many tokens of history the convolution of a linear layer keeps."""
        return self.linear_conv_kernel_dim - 1

    def ring_capacity(self, num_spec: int) -> int:
        """Rows of raw index keys that a request keeps: a group may wait for its last member, and `num_spec` draft rows
        must not overwrite one that is still needed."""
        ratio = self.indexer_compress_ratio
        return -(-(ratio + num_spec) // ratio) * ratio

    @property
    def width(self) -> int:
        """Width of the residual stream: hc_count streams of hidden_size."""
        return self.hc_count * self.hidden_size

    @property
    def context(self) -> int:
        """How many earlier tokens an id depends on."""
        return self.ngram_size - 1

    @property
    def ngram_heads(self) -> int:
        return self.context * self.heads_per_ngram

    @property
    def ngram_head_dim(self) -> int:
        """Columns of the n-gram table."""
        return self.ple_embed_dim // self.ngram_heads

    @property
    def dilation(self) -> int:
        return self.ngram_size

    @property
    def conv_state(self) -> int:
        """How many tokens of history the short convolution keeps."""
        return (self.ple_conv_kernel_size - 1) * self.dilation

    def multipliers(self, layer: int = 0) -> tuple[int, ...]:
        """Hash multipliers of the PLE layer number `layer` among the PLE layers: odd, and small enough that a token
        times one stays below 2^63."""
        half = max(1, (((1 << 63) - 1) // self.vocab_size) // 2)
        base = self.seed + _LAYER_SEED_STEP * layer
        return tuple(2 * (_splitmix64(base + _GAMMA * (i + 1)) % half) + 1 for i in range(self.ngram_size))

    def head_sizes(self, layer: int = 0) -> tuple[int, ...]:
        """Rows of each head's part of the table: primes from the base on, no two heads of the model alike."""
        return self._primes[layer * self.ngram_heads : (layer + 1) * self.ngram_heads]

    def head_offsets(self, layer: int = 0) -> tuple[int, ...]:
        sizes = self.head_sizes(layer)
        return tuple(sum(sizes[:h]) for h in range(len(sizes)))

    def table_rows(self, layer: int = 0) -> int:
        step = self.make_ngram_vocab_size_divisible_by
        return -(-sum(self.head_sizes(layer)) // step) * step

    @cached_property
    def _primes(self) -> tuple[int, ...]:
        found: list[int] = []
        candidate = self.ngram_vocab_size_base
        while len(found) < self.ngram_heads * len(self.ple_layer_ids):
            if _is_prime(candidate):
                found.append(candidate)
            candidate += 1
        return tuple(found)


def _text_part(values: Any) -> dict[str, Any]:
    if isinstance(values, (str, PathLike)):
        values = json.loads(Path(values).read_text())
    if not isinstance(values, Mapping):
        if not hasattr(values, "to_dict"):
            kinds = "a transformers configuration, a mapping or a path"
            raise ValueError(f"config: expected {kinds}; got {type(values).__name__}")
        values = values.to_dict()
    return dict(values.get("text_config") or values)


def _expect(value: Any, least: int, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        _refuse(name, f"an int of at least {least}", value)


def _refuse(name: str, expected: str, got: Any) -> None:
    raise ValueError(f"Config.{name}: expected {expected}; got {got!r}")


def _splitmix64(value: int) -> int:
    """One step of splitmix64 (Steele, Lea, Flood 2014), modulo 2^64."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True
