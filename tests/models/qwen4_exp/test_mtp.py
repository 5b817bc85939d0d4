"""The draft layer against the transformers decoder layer that it contains, and by what it may not change: the text."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from capwise.models.qwen4_exp import Config, Decoder, DraftLayer, Engine, Pool, load_state_dict, oracle, to_transformers

# Two layers are enough for a trunk; the draft layer is one with an indexer.
SMALL = Config.tiny(
    num_hidden_layers=2, layer_types=("linear_attention", "full_attention"), ple_layer_ids=(1,), indexer_n_heads=5
)
SIZES = {"slots": oracle.SLOTS, "blocks": oracle.BLOCKS, "page_size": oracle.PAGE, "num_spec": oracle.NUM_SPEC}


@pytest.fixture(scope="module")
def models():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = Decoder(SMALL, **SIZES)
        draft = DraftLayer(decoder)
    return decoder, draft


def _noise(models, seed=0):
    for model in models:
        model.fill_state_(torch.Generator().manual_seed(seed))


def _plain(draft: DraftLayer, streams: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of one whole sequence, from the equations and the transformers layer."""
    qwen = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    from transformers import Qwen4ExpTextConfig

    alone = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "ple_layer_ids": []}
    config = Qwen4ExpTextConfig(**{**SMALL.to_dict(), **alone})
    config._attn_implementation, config._experts_implementation = "sdpa", "eager"
    theirs = qwen.Qwen4ExpTextModel(config).eval()
    names = {"mtp.layers.0.": "layers.0.", "mtp.hyper_connection_mixer.": "hyper_connection_mixer."}
    state = {}
    for name, value in to_transformers(_decoder_of(draft), draft).items():
        for ours, others in names.items():
            if name.startswith(ours):
                state[others + name[len(ours) :]] = value
    left = theirs.load_state_dict({"embed_tokens.weight": draft.embed, **state}, strict=False)
    assert not left.missing_keys and not left.unexpected_keys

    def unit(x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + SMALL.rms_norm_eps)

    embeds = unit(draft.embed[next_ids]) * (1 + draft.norm_embedding) @ draft.fc_embedding.T
    hidden = (unit(streams) * (1 + draft.norm_hidden)).view(len(next_ids), SMALL.hc_count, -1) @ draft.fc_hidden.T
    x = (hidden + embeds[:, None]).flatten(1)[None]
    places = torch.arange(len(next_ids)).expand(3, 1, -1)
    seen = torch.ones(len(next_ids), len(next_ids), dtype=torch.bool).tril()[None, None]
    x = theirs.layers[0](x, theirs.rotary_emb(x, places), attention_mask=seen)
    return F.linear(theirs.hyper_connection_mixer(x)[0], draft.head)


def _decoder_of(draft: DraftLayer) -> Decoder:
    made = Decoder(SMALL, slots=2, blocks=2, page_size=8)
    made.embed, made.head = draft.embed, draft.head
    return made


@torch.no_grad()
def test_the_draft_layer_is_the_plain_formulation(models):
    """Chunks, verify rows, company and recycled pages, as for the trunk, with streams that need no trunk."""
    decoder, draft = models
    _noise(models)
    texts = [t for t in oracle.random_texts(SMALL, 9, 40, 5) if len(t) > 1]
    noise = [torch.Generator().manual_seed(i) for i in range(len(texts))]
    streams = [torch.randn(len(t), SMALL.width, generator=g) for t, g in zip(texts, noise)]
    following = [torch.tensor([*t[1:], 7]) for t in texts]
    want = [_plain(draft, s, f) for s, f in zip(streams, following)]
    steps = oracle.schedule(SMALL, texts, 2, pad=(0, 0))
    seen = oracle.Agreement(kinds=steps.seen)
    for step in steps:
        rows = torch.randn(step.batch["input_ids"].shape[0], SMALL.width)
        ids = torch.zeros(len(rows), dtype=torch.int32)
        for row in step.rows:
            rows[row.token] = streams[row.text][row.position]
            ids[row.token] = following[row.text][row.position]
        batch = {n: v for n, v in step.batch.items() if n not in ("input_ids", "ngram_context")}
        logits, _ = draft(rows, ids, **batch)
        for row in (r for r in step.rows if r.column is not None):
            seen.tokens += 1
            seen.add(want[row.text][row.position], logits[row.request, row.column], (row.text, row.position))
    assert seen.worst <= 5e-5 and seen.tokens > 60 and seen.kinds["verify3"], seen


def test_draft_weights_come_from_the_checkpoint(models):
    decoder, draft = models
    torch.manual_seed(4)
    other = Decoder(SMALL, **SIZES)
    mine = DraftLayer(other)
    state = to_transformers(decoder, draft)
    assert {"mtp.fc_embedding.weight", "mtp.fc_hidden.weight", "mtp.pre_fc_norm_hidden.weight"} <= state.keys()
    load_state_dict(other, state, mine)
    assert all(torch.equal(v, dict(mine.named_parameters())[n]) for n, v in draft.named_parameters())


@torch.no_grad()
@pytest.mark.parametrize("guesses", ("drafts", "mostly right"))
def test_verified_text_is_the_text_of_plain_decoding(guesses, models):
    """Right guesses of any length, wrong ones behind them, four requests of different lengths at once."""
    decoder, draft = models
    prompts = [t[:17] for t in oracle.random_texts(SMALL, 4, 30, 8)]
    _noise(models)
    plain = Engine(SMALL, Pool(oracle.BLOCKS, oracle.SLOTS, oracle.PAGE, oracle.NUM_SPEC), decoder)
    want = [one.generated for one in plain.generate(prompts, 14)]
    rng = random.Random(0)

    def guess(one, drafts):
        text = next(t for p, t in zip(prompts, want) if one.tokens[: len(p)] == p)
        right = text[len(one.generated) :][: rng.randint(0, len(drafts))]
        return (right + drafts[len(right) :])[: len(drafts)]

    _noise(models, 1)
    pool = Pool(oracle.BLOCKS, oracle.SLOTS, oracle.PAGE, oracle.NUM_SPEC, random.Random(1))
    engine = Engine(SMALL, pool, decoder, draft, guess=guess if guesses == "mostly right" else None)
    assert [one.generated for one in engine.generate(prompts, 14)] == want
    assert engine.offered > 50 and pool.free == {"blocks": oracle.BLOCKS - 1, "slots": oracle.SLOTS - 1}
    if guesses == "mostly right":
        assert engine.taken > engine.offered / 4 and engine.steps < plain.steps
