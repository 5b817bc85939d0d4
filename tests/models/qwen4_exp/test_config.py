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
    assert (config.ngram_head_dim, config.width, config.dilation, config.conv_state) == (160, 10240, 3, 9)


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
        ("hc_count", 1, "expected an int of at least 2; got 1"),
        ("ngram_size", 1, "expected an int of at least 2; got 1"),
        ("hidden_size", 2.5, "expected an int of at least 1; got 2.5"),
        ("eos_token_id", None, "expected a token in [0, 248320); got None"),
        ("eos_token_id", 248320, "expected a token in [0, 248320); got 248320"),
        ("ple_embed_dim", 2561, "expected a multiple of the 16 n-gram heads; got 2561"),
        ("ple_layer_ids", (0,), "expected distinct layer numbers from 1 on, in order; got (0,)"),
        ("ple_layer_ids", (4,), "expected layers of kind linear_attention; got 'layer 4, indexed_attention'"),
        ("ple_layer_ids", (49,), "expected layer numbers up to 48; got (49,)"),
        ("layer_types", ("full_attention",), "expected one kind for each of the 48 layers; got '1 kinds'"),
        (
            "layer_types",
            ("mamba",) * 48,
            "expected only linear_attention and indexed_attention (or full_attention); got 'mamba'",
        ),
        ("indexer_kv_heads", 2, "expected 1; got 2"),
        ("indexer_budget", 2046, "expected a multiple of indexer_compress_ratio 4; got 2046"),
        ("indexer_head_dim", 32, "expected at least the 64 rotated dimensions; got 32"),
        ("mrope_section", (11, 11, 11), "expected three counts that add up to 32 pairs; got (11, 11, 11)"),
        ("num_experts_per_tok", 513, "expected at most the 512 experts; got 513"),
        ("num_attention_heads", 3, "expected a multiple of the 2 key-value heads; got 3"),
        ("linear_num_value_heads", 40, "expected a multiple of the 16 key heads; got 40"),
        ("output_gate_type", "gelu", "expected sigmoid or silu; got 'gelu'"),
        ("mtp_num_hidden_layers", 2, "expected 0 or 1; got 2"),
        ("rms_norm_eps", 0.0, "expected a positive number; got 0.0"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(field, value, text):
    with pytest.raises(ValueError) as error:
        Config(**{field: value})
    assert str(error.value) == f"Config.{field}: {text}"


def test_the_released_schedule_of_layers():
    config = Config(layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 12)
    assert config == Config() and config.layer_types.count("indexed_attention") == 12
    assert config == Config(layer_types=(["linear_attention"] * 3 + ["qwen_sparse_attention"]) * 12)
    assert set(config.to_dict()["layer_types"]) == {"linear_attention", "full_attention"}
    assert (config.rotary_dim, config.blocks_per_query, config.gdn_conv_width) == (64, 512, 10240)
    assert [config.ring_capacity(s) for s in (0, 1, 3, 4, 5)] == [4, 8, 8, 8, 12]


def test_a_transformers_configuration_and_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = Config.tiny(ple_layer_ids=(2, 5), mtp_num_hidden_layers=0, output_gate_type="silu")
    theirs = transformers.Qwen4ExpTextConfig(**config.to_dict())
    assert Config.from_dict(theirs) == config
    theirs.save_pretrained(tmp_path)
    assert Config.from_dict(tmp_path / "config.json") == config
    assert Config.from_dict({"text_config": theirs.to_dict(), "model_type": "qwen4_exp"}) == config


def test_what_a_config_json_leaves_out_is_as_in_transformers():
    transformers = pytest.importorskip("transformers")
    given = {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
        "indexer_compress_ratio": 4, "rope_parameters": {"rope_theta": 5e6, "mrope_section": [64, 32, 32]},
    }  # fmt: skip
    theirs = transformers.Qwen4ExpTextConfig(**given)
    assert Config.from_dict(given) == Config.from_dict(theirs)
    assert Config.from_dict(given).hidden_size == 2048


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_act": "gelu"}, "Config.hidden_act: expected 'silu'; got 'gelu'"),
        ({"attention_bias": True}, "Config.attention_bias: expected False; got True"),
        ({"norm_topk_prob": False}, "Config.norm_topk_prob: expected True; got False"),
        ({"tie_word_embeddings": True}, "Config.tie_word_embeddings: expected False; got True"),
        ({"indexer_budget": None}, "Config.indexer_budget: expected an int of at least 1; got None"),
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            "Config.rope_parameters.rope_type: expected 'default'; got 'yarn'",
        ),
    ],
)
def test_what_this_implementation_does_not_serve_is_refused(changes, text):
    with pytest.raises(ValueError) as error:
        Config.from_dict({**Config.tiny().to_dict(), **changes})
    assert str(error.value) == text
