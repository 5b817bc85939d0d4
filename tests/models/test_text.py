"""The text and its tokeniser."""

from __future__ import annotations

from capwise.models.qwen4_exp import Config
from capwise.models.text import text, text_tokens, tokenise

CONFIG = Config()


def test_the_same_word_is_the_same_token_whatever_its_case():
    a, b, c, d = tokenise("The cat, the", CONFIG)
    assert a == d and len({a, b, c}) == 3


def test_tokens_lie_in_the_vocabulary_and_are_never_eos():
    config = Config.tiny(vocab_size=4, eos_token_id=2)
    assert set(text_tokens(config)) == {0, 1, 3}
    assert all(0 <= t < CONFIG.vocab_size and t != CONFIG.eos_token_id for t in text_tokens(CONFIG))


def test_the_rule_does_not_change():
    assert tokenise("it was the best of times", CONFIG)[:2] == tokenise("It was", CONFIG)
    assert text_tokens(CONFIG)[:5] == (187508, 10560, 43868, 148382, 92864)


def test_the_text_is_some_kilobytes_with_repetition():
    tokens = text_tokens(CONFIG)
    assert len(text()) > 3000 and len(tokens) > 700 and len(set(tokens)) < len(tokens) / 2
