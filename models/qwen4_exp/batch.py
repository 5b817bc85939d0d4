"""Requests -> one flat step, in the raw form that a serving engine hands to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capwise.models.qwen4_exp.config import Config

# What a PLE layer takes of a step, `hidden` beside it.
PLE_INPUTS = (
    "input_ids", "query_start_loc", "ngram_context", "state_table", "has_initial", "num_accepted", "is_spec",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request in one step.

    Args:
        tokens: its whole history, this step's chunk included; of a verify chunk, the drafts too.
        computed: how many of them were computed before.
        length: how many this step computes (0 keeps its place and does nothing).
        slot: its row of the state; 0, the null slot, for a request that owns none. With S speculative columns it also
            owns the S slots after that one; or a sequence of 1+S slots of its own.
        blocks: the pages of its keys and values, in order; none for a request that owns none.
        verify: whether the chunk is a last token with drafts behind it. A request that has verified once stays so.
        accepted: how many tokens of its last verify chunk were accepted, the first included; 1 after other chunks.
        positions: three rows of `length` rotary positions; None: text, three times the logical ones.
    """

    tokens: Sequence[int]
    computed: int
    length: int
    slot: int | Sequence[int]
    blocks: Sequence[int] = ()
    verify: bool = False
    accepted: int = 1
    positions: Sequence[Sequence[int]] | None = None

    def slots(self, num_spec: int) -> list[int]:
        if isinstance(self.slot, int):
            return [self.slot + j if self.slot else 0 for j in range(1 + num_spec)]
        return list(self.slot)


def build_batch(
    requests: Sequence[Request],
    config: Config,
    num_spec: int = 0,
    hidden: torch.Tensor | None = None,
    *,
    page_size: int = 16,
    max_blocks: int | None = None,
    table_width: int | None = None,
    pad: tuple[int, int] = (0, 0),
) -> dict[str, torch.Tensor]:
    """A flat step: T tokens of R requests.

    Args:
        num_spec: S, further columns of the state table; its column 0 is then a view of stride 1+S.
        hidden: [T, width] activations that enter a PLE layer: the step of that layer alone.
        page_size: tokens a block holds.
        max_blocks: NB, columns of the block table; None: as many as the longest request needs.
        table_width: columns that the state table is a view into; None: no more than it has.
        pad: how many tokens and requests to add that are not there.

    Returns:
        input_ids int32[T], positions int64[3, T], query_start_loc int32[R+1], seq_lens int32[R] (tokens that a request
        has after the step), block_table int32[R, NB], state_table int32[R, 1+S], num_accepted int32[R],
        has_initial bool[R], is_spec bool[R], ngram_context int32[R, n-1] (the tokens before each chunk, eos where there
        is none). With `hidden`: that and PLE_INPUTS.

    Raises:
        ValueError: names the request and what is wrong with it.
    """
    if not requests:
        raise ValueError("requests: expected at least one request; got none")
    for i, request in enumerate(requests):
        _check(i, request, config, num_spec, page_size)
    _check_owned(requests, num_spec)
    most = max(1, *(len(r.blocks) for r in requests))
    if max_blocks is not None and most > max_blocks:
        raise ValueError(f"max_blocks: expected room for {most} blocks; got {max_blocks}")
    chunks = [list(r.tokens[r.computed : r.computed + r.length]) for r in requests]
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + len(chunk))
    more, empty = pad
    none = [Request((), 0, 0, 0)] * empty
    rows = [*requests, *none]
    table = torch.zeros(len(rows), max(table_width or 0, 1 + num_spec), dtype=torch.int32)
    table[:, : 1 + num_spec] = _int32([r.slots(num_spec) for r in rows])
    batch = {
        "input_ids": _int32([token for chunk in chunks for token in chunk] + [0] * more),
        "positions": torch.tensor([_axis(requests, a) + [0] * more for a in range(3)], dtype=torch.int64),
        "query_start_loc": _int32(starts + [starts[-1]] * empty),
        "seq_lens": _int32([r.computed + r.length for r in rows]),
        "block_table": _int32([[*r.blocks, *[0] * ((max_blocks or most) - len(r.blocks))] for r in rows]),
        "state_table": table[:, : 1 + num_spec],
        "num_accepted": _int32([r.accepted for r in rows]),
        "has_initial": torch.tensor([r.computed > 0 for r in rows]),
        "is_spec": torch.tensor([r.verify for r in rows]),
        "ngram_context": _int32([_context(r, config) for r in rows]),
    }
    if hidden is None:
        return batch
    if tuple(hidden.shape) != (starts[-1] + more, config.width):
        raise ValueError(f"hidden: expected [{starts[-1] + more}, {config.width}]; got {list(hidden.shape)}")
    return {"hidden": hidden, **{name: batch[name] for name in PLE_INPUTS}}


def input_axes(config: Config, num_spec: int = 0, names: Sequence[str] | None = None) -> dict[str, Any]:
    """What the axes of a batch are called, for `inputs=`: of what `build_batch` makes, or of `names`."""
    axes: Mapping[str, Any] = {
        "input_ids": ("T",),
        "hidden": ("T", config.width),
        "positions": (3, "T"),
        "query_start_loc": ("R+1",),
        "seq_lens": ("R",),
        "block_table": ("R", None),
        "state_table": ("R", 1 + num_spec),
        "num_accepted": ("R",),
        "has_initial": ("R",),
        "is_spec": ("R",),
        "ngram_context": ("R", config.context),
        "predecessors": ("T", config.context),
    }
    return {name: axes[name] for name in (axes.keys() - {"hidden", "predecessors"} if names is None else names)}


def _int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _axis(requests: Sequence[Request], axis: int) -> list[int]:
    """One row of the rotary positions of all chunks."""
    row: list[int] = []
    for r in requests:
        row += range(r.computed, r.computed + r.length) if r.positions is None else r.positions[axis]
    return row


def _context(request: Request, config: Config) -> list[int]:
    before = list(request.tokens[max(request.computed - config.context, 0) : request.computed])
    return [config.eos_token_id] * (config.context - len(before)) + before


def _check(i: int, request: Request, config: Config, num_spec: int, page_size: int) -> None:
    known = len(request.tokens)
    if request.computed < 0 or request.length < 0 or request.computed + request.length > known:
        raise ValueError(
            f"requests[{i}]: expected 0 <= computed and computed + length <= {known} tokens; "
            f"got computed {request.computed}, length {request.length}"
        )
    if isinstance(request.slot, int) and request.slot < 0:
        raise ValueError(f"requests[{i}].slot: expected 0 (none) or a slot number; got {request.slot}")
    if len(request.slots(num_spec)) != 1 + num_spec or min(request.slots(num_spec)) < 0:
        raise ValueError(f"requests[{i}].slot: expected {1 + num_spec} slot numbers; got {request.slot}")
    bad = [token for token in request.tokens if not 0 <= token < config.vocab_size]
    if bad:
        raise ValueError(f"requests[{i}].tokens: expected ids in [0, {config.vocab_size}); got {len(bad)} outside")
    if request.blocks and len(request.blocks) * page_size < request.computed + request.length:
        need = -(-(request.computed + request.length) // page_size)
        raise ValueError(f"requests[{i}].blocks: expected {need} blocks of {page_size}; got {len(request.blocks)}")
    if request.blocks and min(request.blocks) < 1:
        raise ValueError(f"requests[{i}].blocks: expected block numbers from 1 on; got {min(request.blocks)}")
    if request.verify and not (request.computed and request.length <= 1 + num_spec):
        raise ValueError(
            f"requests[{i}]: expected a verify chunk of at most {1 + num_spec} tokens, after a prompt; "
            f"got computed {request.computed}, length {request.length}"
        )
    if not 1 <= request.accepted <= 1 + num_spec:
        raise ValueError(f"requests[{i}].accepted: expected 1 to {1 + num_spec}; got {request.accepted}")
    axes = request.positions
    if axes is not None and (len(axes) != 3 or any(len(axis) != request.length for axis in axes)):
        got = [len(axis) for axis in axes]
        raise ValueError(f"requests[{i}].positions: expected three rows of {request.length}; got lengths {got}")


def _check_owned(requests: Sequence[Request], num_spec: int) -> None:
    """Slots and blocks belong to one request each."""
    for what, numbers in (("slot", lambda r: r.slots(num_spec)), ("block", lambda r: r.blocks)):
        owners: dict[int, int] = {}
        for i, request in enumerate(requests):
            for number in filter(None, numbers(request)):
                if number in owners:
                    whose = f"{what} {number} of requests[{owners[number]}]"
                    raise ValueError(f"requests[{i}]: expected {what}s of its own; got {whose}")
                owners[number] = i
