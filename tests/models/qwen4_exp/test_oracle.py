"""The decoder against transformers over random schedules, and wrong variants of it, each of which must show."""

from __future__ import annotations

import pytest
import torch

from capwise.models.qwen4_exp import layers, oracle

CLOSE, WRONG = 5e-5, 1e-2


def test_random_schedules_give_the_logits_of_whole_sequences(theirs, known):
    texts, want = known
    model = oracle.serving_model(oracle.TINY, theirs)
    found = oracle.compare(model, oracle.head_of(model), oracle.schedule(oracle.TINY, texts), want)
    assert found.worst <= CLOSE, found
    assert found.tokens >= sum(map(len, texts)) and found.largest > 1
    assert {"prefill", "extend", "decode", "idle", *(f"verify{d}" for d in range(4))} <= set(found.kinds), found.kinds


def test_image_positions_and_merged_embeddings(theirs):
    """Three different axes, chunk borders inside the image; n-grams are of the ids all the same."""
    text = [5, 9, 11, 90, 90, 90, 90, 90, 90, 12, 14, 20, 33, 41, 7, 19]
    grid = [[3] * 6, [3, 3, 3, 4, 4, 4], [3, 4, 5, 3, 4, 5]]
    places = torch.tensor([[*range(3), *axis, *range(6, 13)] for axis in grid])
    embeds = torch.randn(len(text), oracle.TINY.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ids = torch.tensor([text])
        whole = theirs.model(
            inputs_embeds=embeds[None], position_ids=places[:, None], ple_input_ids=ids, use_cache=False
        )
        want = theirs.lm_head(whole.last_hidden_state)[0]
    model = oracle.serving_model(oracle.TINY, theirs)
    steps = oracle.schedule(oracle.TINY, [text], positions=[places.tolist()], pad=(0, 0))

    def step_of(**batch):
        at = [row.position for row in step_of.rows]
        more = torch.zeros(batch["input_ids"].shape[0], embeds.shape[1])
        drafts = batch["input_ids"].long()
        more[:] = model.embed[drafts]
        more[: len(at)] = embeds[at]
        return model(**batch, inputs_embeds=more)

    def following():
        for step in steps:
            step_of.rows = step.rows
            yield step

    steps_seen = _Steps(following(), steps.seen)
    found = oracle.compare(step_of, oracle.head_of(model), steps_seen, [want])
    assert found.worst <= CLOSE, found


class _Steps:
    def __init__(self, steps, seen):
        self.steps, self.seen = steps, seen

    def __iter__(self):
        return iter(self.steps)


class _Ops:
    """The ops, some of them replaced."""

    def __init__(self, **replaced):
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(torch.ops.capwise, name)


def _with(**changed):
    """A variant that sees other inputs: argument name -> what is made of it."""
    return lambda model, patch: lambda **batch: model(**{**batch, **{n: f(batch[n]) for n, f in changed.items()}})


def _with_op(**replaced):
    def variant(model, patch):
        patch.setattr(layers, "ops", _Ops(**replaced))
        return model

    return variant


def _early_commit(raw, positions, ring, ring_positions, norm, inv_freq, starts, lens, slots, *rest):
    torch.ops.capwise.qsa_commit_(raw, positions, ring, ring_positions, starts, lens, slots)
    torch.ops.capwise.qsa_compress_(raw, positions, ring, ring_positions, norm, inv_freq, starts, lens, slots, *rest)


def _group_end(raw, positions, ring, ring_positions, *rest):
    torch.ops.capwise.qsa_compress_(raw, positions + 3, ring, ring_positions + 3, *rest)


def _no_tail(q, cache, blocks, token_to_req, logical_pos, table, ratio, scale):
    closed = (logical_pos + 1) // ratio * ratio - 1
    return torch.ops.capwise.sparse_attention(q, cache, blocks, token_to_req, closed, table, ratio, scale)


def _stale(name):
    """A variant that reads an input of the step before."""

    def variant(model, patch):
        last = []

        def step(**batch):
            last.append(batch[name])
            old = last[-2] if len(last) > 1 else batch[name]
            if name == "ngram_context":
                old = torch.cat([old, batch[name][old.shape[0] :]])[: batch[name].shape[0]]
            return model(**{**batch, name: old})

        return step

    return variant


def _small_ring(model, patch):
    for layer in model.layers:
        if hasattr(layer.mixer, "ring"):
            for name in ("ring", "ring_positions"):
                setattr(layer.mixer, name, getattr(layer.mixer, name)[:, :4].clone())
    return model


def _on_ple(change):
    def variant(model, patch):
        for layer in model.layers:
            if layer.ple is not None:
                change(layer.ple)
        return model

    return variant


WRONG_VARIANTS = {
    "has_initial ignored": _with(has_initial=torch.ones_like),
    "state dropped": _with(has_initial=torch.zeros_like),
    "num_accepted ignored": _with(num_accepted=torch.ones_like),
    "verify as decode": _with(is_spec=torch.zeros_like),
    "stride ignored": _with(state_table=lambda t: t.as_strided(t.shape, (1, 1))),
    "ring too small": _small_ring,
    "ring committed early": _with_op(qsa_compress_=_early_commit, qsa_commit_=lambda *_: None),
    "rope at group end": _with_op(qsa_compress_=_group_end),
    "tail dropped": _with_op(sparse_attention=_no_tail),
    "stale n-gram context": _stale("ngram_context"),
    "boundaries of another step": _stale("query_start_loc"),
    "eos barrier missing": _on_ple(lambda ple: setattr(ple.ids, "eos", -1)),
    "conv not dilated": _on_ple(lambda ple: setattr(ple.short_conv, "dilation", 1)),
}


@pytest.mark.parametrize("name", WRONG_VARIANTS)
def test_a_wrong_variant_shows(name, theirs, known, monkeypatch):
    texts, want = known
    model = oracle.serving_model(oracle.TINY, theirs)
    step_of = WRONG_VARIANTS[name](model, monkeypatch)
    steps = oracle.schedule(oracle.TINY, texts, 1, pad=(0, 0))
    try:
        found = oracle.compare(step_of, oracle.head_of(model), steps, want, enough=WRONG)
    except ValueError as error:
        assert name == "boundaries of another step" and "query_start_loc" in str(error)
        return
    assert found.worst > WRONG, (name, found)
