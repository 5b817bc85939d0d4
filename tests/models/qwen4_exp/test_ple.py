"""PLE as served against the transformers module, whole sequences against chunks."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch

from capwise import compat
from capwise.models.qwen4_exp import PLE, Config, Request, build_batch
from capwise.models.qwen4_exp.ple import REFERENCE

CONFIG = Config.tiny(ple_layer_ids=(2, 5))
SLOTS, SPEC = 33, 3


@pytest.fixture(scope="module")
def oracle():
    """The transformers layer number 1 with weights of its own, and ours with the same."""
    qwen = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    from transformers import Qwen4ExpTextConfig

    torch.manual_seed(0)
    theirs = qwen.Qwen4ExpTextPLELayer(Qwen4ExpTextConfig(**CONFIG.to_dict()), 4, 1)
    ours = PLE(CONFIG, SLOTS, layer=1, spare=2)
    embedding = theirs.ple_embedding
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert torch.equal(embedding.layer_multipliers, ours.ids.multipliers)
    assert torch.equal(embedding.ngram_heads_vocab_sizes, ours.ids.sizes)
    assert torch.equal(embedding.ngram_heads_offsets, ours.ids.offsets)
    with torch.no_grad():
        ours.table.copy_(embedding.ngram_embedding.weight)
        ours.key_value.weight.copy_(torch.cat([theirs.key_proj.weight, theirs.value_proj.weight]))
        ours.short_conv.weight.copy_(theirs.conv1d.weight[:, 0])
        for name in ("norm_key", "norm_query", "norm_conv"):
            getattr(ours, name).copy_(getattr(theirs, name).weight)
    return theirs, ours


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ("reference ops", "kernels"))
def test_random_schedules_give_what_whole_sequences_give(seed, way, oracle):
    """Chunks of random lengths, order and company, slots full of noise and of stride 1+S, eos inside."""
    theirs, ours = oracle
    rng = random.Random(seed)
    ours.short_conv.conv_state.copy_(torch.randn(ours.short_conv.conv_state.shape, generator=_generator(seed)))
    lengths = [rng.randint(1, 40) for _ in range(6)]
    tokens = [[rng.choice((CONFIG.eos_token_id, *range(8))) for _ in range(n)] for n in lengths]
    hidden = [torch.randn(n, CONFIG.width, generator=_generator(i)) for i, n in enumerate(lengths)]
    whole = [h + theirs(h[None], torch.tensor([t]), None)[0] for t, h in zip(tokens, hidden)]
    done, got = [0] * 6, [[] for _ in lengths]
    slot = [1 + 5 * i for i in range(6)]
    with compat.interpreted() if way == "kernels" else contextlib.nullcontext():
        while any(d < n for d, n in zip(done, lengths)):
            rows = [i for i in range(6) if done[i] < lengths[i] and rng.random() < 0.7]
            rng.shuffle(rows)
            take = [min(rng.choice((0, 1, 1, 2, 9, 10)), lengths[i] - done[i]) for i in rows]
            if not sum(take):
                continue
            step = [Request(tokens[i], done[i], n, slot[i]) for i, n in zip(rows, take)]
            chunk = torch.cat([hidden[i][done[i] : done[i] + n] for i, n in zip(rows, take)])
            out = ours(**build_batch(step, CONFIG, SPEC, chunk)).split(take)
            for i, n, part in zip(rows, take, out):
                got[i].append(part)
                done[i] += n
    worst = max(float((torch.cat(g) - w).abs().max()) for g, w in zip(got, whole))
    assert worst <= 5e-5


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def test_a_recycled_slot_and_the_null_slot():
    """A fresh request reads nothing of what its slot held; the null slot is neither read nor written."""
    torch.manual_seed(1)
    ple = PLE(CONFIG, SLOTS)
    tokens, hidden = (5, 6, 7), torch.randn(3, CONFIG.width)
    batch = build_batch([Request(tokens, 0, 3, 9)], CONFIG, 0, hidden)
    first = ple(**batch)
    ple.short_conv.conv_state.fill_(float("nan"))
    assert torch.equal(first, ple(**batch))
    before = ple.short_conv.conv_state.clone()
    ple(**build_batch([Request(tokens, 0, 3, 0)], CONFIG, 0, hidden))
    assert torch.equal(before.nan_to_num(7.0), ple.short_conv.conv_state.nan_to_num(7.0))


@torch.no_grad()
def test_the_slot_is_the_first_column_of_the_table():
    ple = PLE(CONFIG, SLOTS)
    before = ple.short_conv.conv_state.clone()
    ple(**build_batch([Request((5, 6), 0, 2, 9), Request((5,), 0, 1, 20)], CONFIG, SPEC, torch.randn(3, CONFIG.width)))
    changed = (ple.short_conv.conv_state != before).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [9, 20]


@torch.no_grad()
def test_the_constructor_picks_the_kernels():
    torch.manual_seed(2)
    ours = PLE(CONFIG, SLOTS)
    torch.manual_seed(2)
    plain = PLE(CONFIG, SLOTS, conv=REFERENCE)
    batch = build_batch([Request((5, 6, 7), 1, 2, 9)], CONFIG, 0, torch.randn(2, CONFIG.width))
    assert torch.equal(ours(**batch), plain(**batch))
    assert torch.equal(ours.short_conv.conv_state, plain.short_conv.conv_state)
