"""The same prompts before and after a burst of eight: the burst must leave no trace in what they answer."""

from __future__ import annotations

import random

import pytest
import torch

import capwise
from capwise.models.qwen4_exp import Config, Decoder, DraftLayer, Engine, Pool, input_axes

NUM_SPEC, PAGE, REQUESTS, TOKENS = 1, 8, 8, 48
BLOCKS, SLOTS = 1 + 6 * REQUESTS, 1 + (1 + NUM_SPEC) * REQUESTS
SMALL = Config.tiny(num_hidden_layers=2, layer_types=("linear_attention", "full_attention"), ple_layer_ids=(1,))


def _compiled(model, names, repair):
    axes = input_axes(SMALL, NUM_SPEC)
    axes |= {"streams": ("T", SMALL.width), "next_ids": ("T",)}
    return capwise.compile(
        model, inputs={n: a for n, a in axes.items() if n in names}, key=[("T", "R"), ("T",)],
        capacity={"R": REQUESTS, "T": TOKENS}, capture_sizes=(16, TOKENS), capture="tape", lower="eager",
        repair=repair,
    )  # fmt: skip


def _answers(repair, count=10):
    """First tokens and top log-probabilities of probes before and after the burst; and the compiled models."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = Decoder(SMALL, SLOTS, BLOCKS, PAGE, NUM_SPEC)
        draft = DraftLayer(decoder)
    for model in (decoder, draft):
        model.fill_state_(torch.Generator().manual_seed(0))
    axes = [n for n in input_axes(SMALL, NUM_SPEC)]
    step_of = decoder if repair == "eager" else _compiled(decoder, axes, repair)
    draft_of = draft
    if repair == "auto":
        draft_of = _compiled(draft, {*axes, "streams", "next_ids"} - {"input_ids", "ngram_context"}, repair)
    rng = random.Random(0)
    probes = [[rng.randrange(SMALL.vocab_size) for _ in range(rng.randint(3, 32))] for _ in range(count)]
    burst = [[rng.randrange(SMALL.vocab_size) for _ in range(rng.randint(3, 6))] for _ in range(8)]

    def ask():
        """Each probe with another short prompt beside it, so that no step is uniform: those are keyed by tokens."""
        found = []
        for probe in probes:
            engine = Engine(SMALL, Pool(BLOCKS, SLOTS, PAGE, NUM_SPEC), step_of, draft_of)
            one, _ = engine.generate([probe, burst[0][: 3 - len(probe) % 2]], 1)
            found.append((one.generated[0], one.top))
        return found

    before = ask()
    Engine(SMALL, Pool(BLOCKS, SLOTS, PAGE, NUM_SPEC), step_of, draft_of).generate(burst, 3)
    return before, ask(), (step_of, draft_of)


@pytest.fixture(scope="module")
def bodies():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capwise.ops.launch.triton", None)
        yield


@pytest.fixture(scope="module")
def eager(bodies):
    with torch.no_grad():
        return _answers("eager")[0]


def _same(before, after):
    return sum(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(before, after))


def _right(answers, eager):
    return sum(a[0] == b[0] and torch.allclose(a[1], b[1], atol=1e-4) for a, b in zip(answers, eager))


def test_ten_of_ten_probes_answer_the_same_after_a_burst(bodies, eager):
    before, after, compiled = _answers("auto")
    assert (_same(before, after), _right(before, eager)) == (10, 10)
    for run in compiled:
        assert not run.report.seams and not run.misses and len(run.programs) == 2
        assert [one.kind for program in run.programs for one in program.steps] == ["piece"] * 2


def test_a_naive_engine_answers_otherwise(bodies, eager):
    before, after, _ = _answers("none", 5)
    assert _same(before, after) < 5
    assert _right(before, eager) == 0
