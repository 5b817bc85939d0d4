"""Every core overload, and every overload that a forward of the served model meets, has a rule."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from capwise.ops import aten

# Unknown on purpose: a seam.
SEAMS = {"aten.resize_.default": "a tensor that changes its own size has no captured extent"}


def _core():
    """From the dispatcher: the packet's own listing holds what somebody asked for before."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace == "aten":
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            if torch.Tag.core in op.tags:
                yield op


def _has_rule(op):
    """A row, or what the analysis knows without one: host arithmetic on sizes, and host syncs."""
    return aten.row(op) is not None or aten.syncs(op) or aten.base_name(op).startswith("sym_")


def test_every_core_overload_has_a_rule():
    core = list(_core())
    assert len(core) > 180
    assert [str(op) for op in core if not _has_rule(op)] == list(SEAMS)


def test_a_core_overload_without_a_row_is_found(monkeypatch):
    monkeypatch.setattr(aten, "TABLE", {n: r for n, r in aten.TABLE.items() if n != "avg_pool2d"})
    monkeypatch.setattr(aten, "row", aten.row.__wrapped__)
    missing = {str(op) for op in _core() if not _has_rule(op)}
    assert missing == {*SEAMS, "aten.avg_pool2d.default"}


def test_every_family_has_a_transfer_function():
    from typing import get_args

    from capwise.transfer.drive import _FAMILIES

    assert set(get_args(aten.Family)) == set(_FAMILIES)
    assert {row.family for row in aten.TABLE.values()} == set(_FAMILIES)


class _Met(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.add(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("attention, experts", [("sdpa", "grouped_mm"), ("eager", "batched_mm"), ("sdpa", "eager")])
def test_every_overload_of_a_served_forward_has_a_rule(attention, experts):
    """Prefill, then decode, of a small model with a layer of each kind."""
    from transformers import DynamicCache, Qwen4ExpForCausalLM, Qwen4ExpTextConfig

    config = Qwen4ExpTextConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=64, layer_types=["linear_attention"] * 3 + ["full_attention"],
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        hc_count=4, hc_lowrank=8, ple_layer_ids=[2], ple_embed_dim=32, ngram_size=3, heads_per_ngram=2,
        ngram_vocab_size_base=101, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=4, indexer_n_heads=3,
        indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=8, indexer_compress_ratio=4, eos_token_id=3,
        bos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    config._attn_implementation, config._experts_implementation = attention, experts
    model, cache = Qwen4ExpForCausalLM(config).eval().bfloat16(), DynamicCache(config=config)
    with torch.no_grad(), _Met() as met:
        for tokens in (20, 1):
            model(torch.randint(4, 97, (1, tokens)), past_key_values=cache, use_cache=True)
    ops = {op for op in met.ops if op.namespace == "aten"}
    assert len(ops) > 60
    assert not sorted(str(op) for op in ops if not _has_rule(op))
