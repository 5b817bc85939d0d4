"""Checkpoints into the decoder: every spelling of every name, and one error that says all that does not fit."""

from __future__ import annotations

import json

import pytest
import torch

from capwise.models.qwen4_exp import Config, Decoder, LoadError, load_state_dict, oracle, to_transformers

SIZES = {"slots": 3, "blocks": 3, "page_size": 8}
TABLE = "layers.1.ple.ple_embedding.ngram_embedding"


@pytest.fixture(scope="module")
def checkpoint(theirs):
    return {name: value.clone() for name, value in theirs.state_dict().items()}


def _fresh(seed: int = 7) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(oracle.TINY, **SIZES)


def _same(one: Decoder, other: Decoder) -> bool:
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == theirs.keys() and all(torch.equal(v, theirs[n]) for n, v in mine.items())


@pytest.fixture(scope="module")
def loaded(checkpoint):
    model = _fresh()
    load_state_dict(model, checkpoint)
    return model


def test_every_weight_comes_from_the_checkpoint_and_goes_back(checkpoint, loaded, theirs):
    assert not any(torch.equal(a, b) for a, b in zip(loaded.parameters(), _fresh().parameters()))
    back = to_transformers(loaded)
    assert back.keys() == checkpoint.keys()
    assert all(torch.equal(back[name], value) for name, value in checkpoint.items())
    again = _fresh(8)
    load_state_dict(again, back)
    assert _same(again, loaded)


def _split_table(state):
    table = state.pop(f"model.{TABLE}.weight")
    parts = table.split(-(-table.shape[0] // oracle.TINY.split_ngram_parts))
    return {**state, **{f"model.{TABLE}.shard_{i}.weight": part for i, part in enumerate(parts)}}


def _single_experts(state):
    inner = oracle.TINY.moe_intermediate_size
    for name in [n for n in state if n.endswith("experts.gate_up_proj")]:
        both, down = state.pop(name), state.pop(name.replace("gate_up", "down"))
        for e in range(both.shape[0]):
            one = name.replace("gate_up_proj", f"{e}.")
            state |= {f"{one}gate_proj.weight": both[e, :inner], f"{one}up_proj.weight": both[e, inner:]}
            state[f"{one}down_proj.weight"] = down[e]
    return state


def _fused(state):
    for parts, whole in (
        (("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), "linear_attn.in_proj_qkvz"),
        (("linear_attn.in_proj_b", "linear_attn.in_proj_a"), "linear_attn.in_proj_ba"),
        (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.qkv_proj"),
        (("shared_expert.gate_proj", "shared_expert.up_proj"), "shared_expert.gate_up_proj"),
    ):
        for first in [n for n in state if n.endswith(f"{parts[0]}.weight")]:
            names = [first.replace(parts[0], part) for part in parts]
            state[first.replace(parts[0], whole)] = torch.cat([state.pop(name) for name in names])
    return state


def _vision_language(state):
    named = {n.replace("model.", "model.language_model.", 1): v for n, v in state.items()}
    return {**named, "model.visual.patch_embed.weight": torch.zeros(2), "mtp.fc_hidden.weight": torch.zeros(2)}


@pytest.mark.parametrize("spelling", (_split_table, _single_experts, _fused, _vision_language))
def test_another_spelling_gives_the_same_weights(spelling, checkpoint, loaded):
    model = _fresh(9)
    load_state_dict(model, spelling(dict(checkpoint)))
    assert _same(model, loaded)


def test_files_one_or_sharded(checkpoint, loaded, tmp_path):
    save = pytest.importorskip("safetensors.torch").save_file
    dense = {name: value.contiguous() for name, value in _split_table(dict(checkpoint)).items()}
    save(dense, str(tmp_path / "all.safetensors"))
    names = sorted(dense)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    folder = tmp_path / "sharded"
    folder.mkdir()
    for file, held in files.items():
        save({name: dense[name] for name in held}, str(folder / file))
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for source in (tmp_path / "all.safetensors", str(folder)):
        model = _fresh(9)
        load_state_dict(model, source)
        assert _same(model, loaded)
    (folder / "b.safetensors").unlink()
    with pytest.raises(LoadError, match="missing b.safetensors"):
        load_state_dict(model, folder)
    with pytest.raises(LoadError, match="expected a .safetensors file or a folder that holds one"):
        load_state_dict(model, tmp_path / "nothing")


def test_all_that_does_not_fit_is_said_at_once_and_nothing_is_loaded(checkpoint):
    wrong = dict(checkpoint)
    del wrong["model.layers.0.mlp.gate.weight"]
    wrong["model.layers.0.mlp.gate.bias"] = torch.zeros(8)
    wrong["lm_head.weight"] = torch.zeros(97, 63)
    model = _fresh()
    with pytest.raises(LoadError) as error:
        load_state_dict(model, wrong)
    for part in (
        "missing: layers.0.mlp.gate.weight",
        "unexpected: model.layers.0.mlp.gate.bias",
        "mis-shaped: lm_head.weight [97, 63], expected [97, 64]",
    ):
        assert part in str(error.value)
    assert _same(model, _fresh())


def test_a_part_of_a_projection_may_not_come_twice_nor_be_left_out(checkpoint):
    part = "model.layers.2.self_attn.k_proj.weight"
    fused = _fused(dict(checkpoint))
    with pytest.raises(LoadError, match=r"given twice: layers\.2\.self_attn\.\w+_proj\.weight"):
        load_state_dict(_fresh(), {**fused, part: checkpoint[part]})
    table = _split_table(dict(checkpoint))
    del table[f"model.{TABLE}.shard_3.weight"]
    with pytest.raises(LoadError, match=f"missing: {TABLE}.weight"):
        load_state_dict(_fresh(), table)


def test_a_checkpoint_of_another_hash_is_refused(checkpoint):
    name = "model.layers.1.ple.ple_embedding.ngram_heads_offsets"
    with pytest.raises(LoadError, match=f"another hash: {name}"):
        load_state_dict(_fresh(), {**checkpoint, name: checkpoint[name] + 1})


def test_pages_hold_whole_groups():
    with pytest.raises(ValueError, match="page_size: expected a multiple of indexer_compress_ratio 4; got 6"):
        Decoder(Config.tiny(num_hidden_layers=4), slots=2, blocks=2, page_size=6)
