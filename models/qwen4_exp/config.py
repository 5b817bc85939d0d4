"""Configuration of Qwen4Exp, as far as the n-gram path (PLE) needs it, and the constants of its hash.

The defaults are the released values of Qwen/Qwen3.8-Flash-Next; the class defaults of other implementations differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
# Keeps the seeds of two PLE layers apart.
_LAYER_SEED_STEP = 10007


@dataclass(frozen=True)
class Config:
    """Sizes of the model.

    Raises:
        ValueError: a field cannot have its value; says which, what was expected and what was given.
    """

    vocab_size: int = 248320
    hidden_size: int = 2560
    rms_norm_eps: float = 1e-6
    eos_token_id: int = 248044
    hc_count: int = 4
    ple_layer_ids: tuple[int, ...] = (2,)  # counted from 1
    ple_embed_dim: int = 2560
    ple_conv_kernel_size: int = 4
    ngram_size: int = 3
    heads_per_ngram: int = 8
    ngram_vocab_size_base: int = 20_000_000
    make_ngram_vocab_size_divisible_by: int = 128
    seed: int = 1234

    def __post_init__(self) -> None:
        if isinstance(self.eos_token_id, (list, tuple)):
            object.__setattr__(self, "eos_token_id", self.eos_token_id[0] if self.eos_token_id else None)
        object.__setattr__(self, "ple_layer_ids", tuple(self.ple_layer_ids))
        for name in ("vocab_size", "hidden_size", "heads_per_ngram", "ple_embed_dim", "ngram_vocab_size_base"):
            _expect(getattr(self, name), 1, name)
        _expect(self.make_ngram_vocab_size_divisible_by, 1, "make_ngram_vocab_size_divisible_by")
        _expect(self.hc_count, 2, "hc_count")
        _expect(self.ngram_size, 2, "ngram_size")
        _expect(self.ple_conv_kernel_size, 2, "ple_conv_kernel_size")
        if not isinstance(self.eos_token_id, int) or not 0 <= self.eos_token_id < self.vocab_size:
            _refuse("eos_token_id", f"a token in [0, {self.vocab_size})", self.eos_token_id)
        if self.ple_embed_dim % self.ngram_heads:
            _refuse("ple_embed_dim", f"a multiple of the {self.ngram_heads} n-gram heads", self.ple_embed_dim)
        layers = self.ple_layer_ids
        if not layers or list(layers) != sorted(set(layers)) or min(layers) < 1:
            _refuse("ple_layer_ids", "distinct layer numbers from 1 on, in order", layers)
        if not self.rms_norm_eps > 0:
            _refuse("rms_norm_eps", "a positive number", self.rms_norm_eps)

    @classmethod
    def tiny(cls, **fields: Any) -> Config:
        """A model of a few thousand parameters with every part in place, for tests."""
        small = cls(
            vocab_size=97,
            hidden_size=16,
            eos_token_id=3,
            ple_embed_dim=16,
            heads_per_ngram=2,
            ngram_vocab_size_base=101,
            make_ngram_vocab_size_divisible_by=8,
        )
        return replace(small, **fields)

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
    def head_dim(self) -> int:
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
