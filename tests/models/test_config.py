"""The configuration: released constants, and one clear error a mistake."""

from __future__ import annotations

import pytest

from capwise.models.qwen4_exp import Config


def test_released_hash_constants():
    config = Config()
    assert config.multipliers() == (23703573157769, 20109073645365, 8052911324071)
    tails = "003 023 033 047 059 063 069 077 081 093 107 147 153 159 161 171".split()
    assert config.head_sizes() == tuple(int(f"20000{tail}") for tail in tails)
    assert config.head_offsets()[:3] == (0, 20000003, 40000026)
    assert sum(config.head_sizes()) == 320_001_446 and config.table_rows() == 320_001_536
    assert (config.head_dim, config.width, config.dilation, config.conv_state) == (160, 10240, 3, 9)


@pytest.mark.parametrize(
    ("vocabulary", "multipliers"),
    [
        (151936, (15411308609579, 2523213358983, 11275943025685)),
        (100, (14383222055071283, 78689173079975253, 43784898443810683)),
    ],
)
def test_multipliers_of_other_vocabularies(vocabulary, multipliers):
    assert Config(vocab_size=vocabulary, eos_token_id=9).multipliers() == multipliers


def test_published_small_heads():
    config = Config(ple_embed_dim=16, heads_per_ngram=2, ngram_vocab_size_base=1000)
    assert config.head_sizes() == (1009, 1013, 1019, 1021) and config.head_offsets() == (0, 1009, 2022, 3041)


def test_every_token_times_a_multiplier_fits_63_bits():
    config = Config()
    assert all(m % 2 == 1 and (config.vocab_size - 1) * m < 2**63 for m in config.multipliers())


def test_two_layers_share_no_head_and_no_multiplier():
    config = Config.tiny(ple_layer_ids=(2, 5))
    assert not set(config.head_sizes(0)) & set(config.head_sizes(1))
    assert not set(config.multipliers(0)) & set(config.multipliers(1))


def test_a_list_of_eos_means_its_first():
    assert Config(eos_token_id=[7, 8]).eos_token_id == 7


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("hc_count", 1, "Config.hc_count: expected an int of at least 2; got 1"),
        ("ngram_size", 1, "Config.ngram_size: expected an int of at least 2; got 1"),
        ("hidden_size", 2.5, "Config.hidden_size: expected an int of at least 1; got 2.5"),
        ("eos_token_id", None, "Config.eos_token_id: expected a token in [0, 248320); got None"),
        ("eos_token_id", 248320, "Config.eos_token_id: expected a token in [0, 248320); got 248320"),
        ("ple_embed_dim", 2561, "Config.ple_embed_dim: expected a multiple of the 16 n-gram heads; got 2561"),
        ("ple_layer_ids", (0,), "Config.ple_layer_ids: expected distinct layer numbers from 1 on, in order; got (0,)"),
        ("rms_norm_eps", 0.0, "Config.rms_norm_eps: expected a positive number; got 0.0"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(field, value, text):
    with pytest.raises(ValueError) as error:
        Config(**{field: value})
    assert str(error.value) == text
