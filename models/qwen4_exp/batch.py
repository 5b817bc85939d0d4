"""Requests -> one flat step, in the raw form that a serving engine hands to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capwise.models.qwen4_exp.config import Config


@dataclass(frozen=True)
class Request:
    """One request in one step.

    tokens: its whole history, this step's chunk included. computed: how many of them were computed before.
    length: how many this step computes (0 keeps its place and does nothing). slot: its row of the state; 0, the null
    slot, for a request that owns none. With S speculative columns it also owns the S slots after that one.
    """

    tokens: Sequence[int]
    computed: int
    length: int
    slot: int


def build_batch(
    requests: Sequence[Request], config: Config, num_spec: int = 0, hidden: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """A flat step: T tokens of R requests.

    Args:
        num_spec: S, further columns of the block table; its column 0 is then a view of stride 1+S.
        hidden: [T, width] activations that enter the layer, where the model wants any.

    Returns:
        input_ids int32[T], query_start_loc int32[R+1], ngram_context int32[R, n-1] (the tokens before each chunk, eos
        where there is none), block_table int32[R, 1+S], has_initial bool[R], and hidden where given.

    Raises:
        ValueError: names the request and what is wrong with it.
    """
    if not requests:
        raise ValueError("requests: expected at least one request; got none")
    for i, request in enumerate(requests):
        _check(i, request, config)
    _check_slots(requests, num_spec)
    chunks = [list(r.tokens[r.computed : r.computed + r.length]) for r in requests]
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + len(chunk))
    tables = [[r.slot + j if r.slot else 0 for j in range(1 + num_spec)] for r in requests]
    batch = {
        "input_ids": _int32([token for chunk in chunks for token in chunk]),
        "query_start_loc": _int32(starts),
        "ngram_context": _int32([_context(r, config) for r in requests]),
        "block_table": _int32(tables),
        "has_initial": torch.tensor([r.computed > 0 for r in requests]),
    }
    if hidden is not None:
        if tuple(hidden.shape) != (starts[-1], config.width):
            raise ValueError(f"hidden: expected [{starts[-1]}, {config.width}]; got {list(hidden.shape)}")
        batch["hidden"] = hidden
    return batch


def input_axes(config: Config, num_spec: int = 0, names: Sequence[str] | None = None) -> dict[str, Any]:
    """What the axes of a batch are called, for `inputs=`; only `names` where given."""
    axes: Mapping[str, Any] = {
        "input_ids": ("T",),
        "hidden": ("T", config.width),
        "query_start_loc": ("R+1",),
        "ngram_context": ("R", config.context),
        "block_table": ("R", 1 + num_spec),
        "has_initial": ("R",),
    }
    return {name: axes[name] for name in (axes if names is None else names)}


def _int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _context(request: Request, config: Config) -> list[int]:
    before = list(request.tokens[max(request.computed - config.context, 0) : request.computed])
    return [config.eos_token_id] * (config.context - len(before)) + before


def _check(i: int, request: Request, config: Config) -> None:
    known = len(request.tokens)
    if request.computed < 0 or request.length < 0 or request.computed + request.length > known:
        raise ValueError(
            f"requests[{i}]: expected 0 <= computed and computed + length <= {known} tokens; "
            f"got computed {request.computed}, length {request.length}"
        )
    if request.slot < 0:
        raise ValueError(f"requests[{i}].slot: expected 0 (none) or a slot number; got {request.slot}")
    bad = [token for token in request.tokens if not 0 <= token < config.vocab_size]
    if bad:
        raise ValueError(f"requests[{i}].tokens: expected ids in [0, {config.vocab_size}); got {len(bad)} outside")


def _check_slots(requests: Sequence[Request], num_spec: int) -> None:
    owners: dict[int, int] = {}
    for i, request in enumerate(requests):
        for slot in range(request.slot, request.slot + 1 + num_spec) if request.slot else ():
            if slot in owners:
                whose = f"slot {slot} of requests[{owners[slot]}]"
                raise ValueError(f"requests[{i}]: expected slots of its own; got {whose}")
            owners[slot] = i
