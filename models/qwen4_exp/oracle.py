"""The decoder against transformers' `qwen4_exp`: whole sequences there, random schedules here."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.decoder import Decoder
from capwise.models.qwen4_exp.pool import Pool
from capwise.models.qwen4_exp.schedule import Schedule
from capwise.models.qwen4_exp.weights import load_state_dict

NUM_SPEC, PAGE, SLOTS, BLOCKS = 3, 8, 41, 60
# Two n-gram layers, sparse attention from position 12 on. Five index heads: with few, many blocks score exactly 0 and
# the choice among them is anybody's. Wide enough for float32 noise to stay below what is looked for.
TINY = Config.tiny(
    num_hidden_layers=5,
    layer_types=("linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"),
    ple_layer_ids=(2, 4),
    hidden_size=64,
    hc_lowrank=16,
    head_dim=32,
    partial_rotary_factor=0.5,
    mrope_section=(3, 3, 2),
    indexer_n_heads=5,
    indexer_head_dim=16,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    num_experts=8,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=24,
    ple_embed_dim=64,
)


def transformers_model(config: Config, seed: int = 0, experts: str = "eager") -> Any:
    """A random transformers model in float32, every weight drawn: what it leaves at zero or one would go untested.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

    theirs = Qwen4ExpTextConfig(**config.to_dict())
    theirs._attn_implementation, theirs._experts_implementation = "sdpa", experts
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen4ExpForCausalLM(theirs).eval()
        for name, parameter in model.named_parameters():
            _draw(name, parameter.data)
    return model


def _draw(name: str, place: torch.Tensor) -> None:
    if name.endswith("A_log"):
        place.copy_(torch.empty(place.shape).uniform_(0.05, 4.0).log())
    elif name.endswith("dt_bias"):
        place.normal_(0.0, 0.5)
    elif "linear_attn.norm" in name:
        place.normal_(1.0, 0.2)
    elif "norm" in name and place.dim() == 1:
        place.normal_(0.0, 0.2)
    elif "conv1d" in name:
        place.normal_(0.0, 0.4)
    elif "embed" in name:
        place.normal_(0.0, 1.0)
    elif name.endswith("mlp.gate.weight"):
        place.normal_(0.0, 0.6)
    else:
        place.normal_(0.0, 1.3 * place.shape[-1] ** -0.5)


def random_texts(config: Config, count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Token ids with an eos here and there, so that n-grams meet its barrier."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        length = rng.randint(1, longest)
        texts.append([config.eos_token_id if rng.random() < 0.12 else rng.randrange(config.vocab_size)
                      for _ in range(length)])  # fmt: skip
    return texts


@dataclass
class Agreement:
    """What a comparison saw. worst: largest difference of logits; at: where. largest: the largest logit."""

    tokens: int = 0
    selected: int = 0
    steps: int = 0
    worst: float = 0.0
    largest: float = 0.0
    at: tuple[int, int] = (-1, -1)
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, want: torch.Tensor, got: torch.Tensor, at: tuple[int, int]) -> None:
        difference = float((want - got).abs().max())
        # A NaN compares as nothing else does: it is the worst that can be.
        if not difference <= self.worst:
            self.worst, self.at = difference if difference == difference else float("inf"), at
        self.largest = max(self.largest, float(want.abs().max()))


def whole_logits(model: Any, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits [tokens, V] of each text, each run alone and whole."""
    with torch.no_grad():
        return [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]


def serving_model(config: Config, theirs: Any, seed: int = 0, **sizes: int) -> Decoder:
    """Our decoder with the weights of a transformers model, and pools full of noise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ours = Decoder(config, **{"slots": SLOTS, "blocks": BLOCKS, "page_size": PAGE, "num_spec": NUM_SPEC, **sizes})
    load_state_dict(ours, theirs.state_dict())
    ours.fill_state_(torch.Generator().manual_seed(seed))
    return ours


def schedule(config: Config, texts: Sequence[Sequence[int]], seed: int = 0, **more: Any) -> Schedule:
    """A random schedule with everything in it: drafts, padding, strided tables, scattered and recycled slots."""
    order = random.Random(seed)
    pool = Pool(BLOCKS, SLOTS, PAGE, NUM_SPEC, order)
    return Schedule(config, texts, pool, seed, **{"pad": (3, 2), **more})


def compare(
    step_of: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    head_of: Callable[[torch.Tensor], torch.Tensor],
    steps: Schedule,
    want: Sequence[torch.Tensor],
    enough: float = float("inf"),
) -> Agreement:
    """Runs a schedule and compares the logits of every accepted token, and of every selected row.

    Args:
        step_of: a decoder, compiled or not: batch -> logits [R, 1+S, V] and streams [T, hc*H].
        head_of: streams [T, hc*H] -> logits [T, V], to compare the rows that are not selected too.
        want: what is right, [tokens, V] of each text.
        enough: stops at the step whose difference is larger.
    """
    seen = Agreement(kinds=steps.seen)
    for step in steps:
        with torch.no_grad():
            logits, streams = step_of(**step.batch)
            every = head_of(streams)
        seen.steps += 1
        for row in step.rows:
            right = want[row.text][row.position]
            seen.tokens += 1
            seen.add(right, every[row.token], (row.text, row.position))
            if row.column is not None:
                seen.selected += 1
                seen.add(right, logits[row.request, row.column], (row.text, row.position))
        if seen.worst > enough:
            break
    return seen


def head_of(model: Decoder) -> Callable[[torch.Tensor], torch.Tensor]:
    """Logits of all rows of a step."""
    return lambda streams: torch.nn.functional.linear(model.final.read(streams)[0], model.head)

