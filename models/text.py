"""A text of some length as token ids: the demo wants real repetition and real word order, not random numbers.

The text is in the public domain: Lincoln's address at Gettysburg (1863), the opening of Dickens' "A Tale of Two
Cities" (1859), Wordsworth's "I wandered lonely as a cloud" (1815). The tokeniser is a rule, not a vocabulary: a word or
a punctuation mark, lower-cased, is hashed to one id.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

from capwise.models.qwen4_exp.config import Config

_PIECE = re.compile(r"[a-z]+(?:'[a-z]+)*|[^\sa-z]")


def tokenise(text: str, config: Config) -> tuple[int, ...]:
    """Token ids of a text: 64 bits of blake2b of each word or mark, modulo the vocabulary, with eos left out. The same
    piece always gets the same id."""
    return tuple(_token(piece, config) for piece in _PIECE.findall(text.lower()))


def _token(piece: str, config: Config) -> int:
    digest = hashlib.blake2b(piece.encode(), digest_size=8).digest()
    token = int.from_bytes(digest, "big") % (config.vocab_size - 1)
    return token + (token >= config.eos_token_id)


@cache
def text() -> str:
    return resources.files("capwise.models").joinpath("text.txt").read_text(encoding="utf-8")


def text_tokens(config: Config) -> tuple[int, ...]:
    """The whole text as token ids."""
    return tokenise(text(), config)
