"""Random schedules over known texts: what an engine does with requests, in every order and company.

Each text is one request. Its chunks have random lengths; a step holds a random choice of requests in random order;
decoding turns into verify chunks whose drafts are right up to a random point; blocks and slots of finished requests go
to later ones, whose state they are full of.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from capwise.models.qwen4_exp.batch import Request, build_batch
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.pool import Pool

CHUNKS = (1, 1, 2, 3, 4, 5, 8, 9, 10, 13)


@dataclass(frozen=True)
class Row:
    """A token of a step whose logits are known: row `token` of the step, row (`request`, `column`) of the selected
    logits where it is one of them, and the place `position` of text number `text`."""

    text: int
    position: int
    token: int
    request: int
    column: int | None


@dataclass(frozen=True)
class Step:
    """kinds: of each request, "prefill", "extend", "decode", "verify<d>" or "idle"."""

    batch: dict[str, torch.Tensor]
    rows: tuple[Row, ...]
    kinds: tuple[str, ...]


@dataclass
class _Live:
    text: int
    computed: int = 0
    accepted: int = 1
    verified: bool = False


@dataclass
class Schedule:
    """Iterates over the steps that bring every text to its end.

    Args:
        texts: token ids of each request.
        positions: rotary positions of each request, three rows; None: text.
        num_spec: S; 0: no verify chunks.
        pool: where blocks and slots come from.
        max_requests, max_tokens: of one step.
        chunks: lengths of prompt chunks to draw from.
        pad: at most so many tokens and requests that are not there.
        max_blocks: columns of the block table.
    """

    config: Config
    texts: Sequence[Sequence[int]]
    pool: Pool
    seed: int = 0
    positions: Sequence[Sequence[Sequence[int]]] | None = None
    max_requests: int = 6
    max_tokens: int = 48
    chunks: Sequence[int] = CHUNKS
    pad: tuple[int, int] = (0, 0)
    max_blocks: int = 8
    prompt: float = 0.5
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._prompts = [max(1, int(len(t) * self.prompt * 2 * self._random.random())) for t in self.texts]
        self._waiting = list(range(len(self.texts)))
        self._live: list[_Live] = []

    def __iter__(self) -> Iterator[Step]:
        while self._waiting or self._live:
            step = self._step()
            if step is not None:
                yield step

    def _step(self) -> Step | None:
        draw = self._random
        while self._waiting and len(self._live) < self.max_requests and draw.random() < 0.7:
            self._live.append(_Live(self._waiting.pop(0)))
        chosen = [one for one in self._live if draw.random() < 0.8]
        draw.shuffle(chosen)
        room, requests, rows, kinds = self.max_tokens, [], [], []
        for one in chosen:
            made = self._request(one, room)
            if made is None:
                continue
            request, good, kind = made
            token = self.max_tokens - room
            known = min(good + 1, request.length) if request.verify else request.length
            for j in range(known):
                last = j == request.length - 1
                column = j if request.verify else 0 if last else None
                rows.append(Row(one.text, one.computed + j, token + j, len(requests), column))
            requests.append(request)
            kinds.append(kind)
            self.seen[kind] = self.seen.get(kind, 0) + 1
            room -= request.length
            self._advance(one, request, good)
        if not any(r.length for r in requests):
            return None
        spec = self.pool.num_spec
        batch = build_batch(
            requests,
            self.config,
            spec,
            page_size=self.pool.page_size,
            max_blocks=self.max_blocks,
            table_width=1 + spec + draw.choice((0, 2)),
            pad=(draw.randint(0, self.pad[0]), draw.randint(0, self.pad[1])),
        )
        # Not before the step is made: what a request owns is its own for the whole step.
        for one in [one for one in self._live if one.computed == len(self.texts[one.text])]:
            self._live.remove(one)
            self.pool.release(one.text)
        return Step(batch, tuple(rows), tuple(kinds))

    def _request(self, one: _Live, room: int) -> tuple[Request, int, str] | None:
        """The next chunk of a request, how many of its drafts are right, and what it is."""
        draw, text = self._random, list(self.texts[one.text])
        left, spec = len(text) - one.computed, self.pool.num_spec
        if draw.random() < 0.05:
            return self._made(one, text, 0, False), 0, "idle"
        if one.computed < self._prompts[one.text]:
            length = min(draw.choice(self.chunks), self._prompts[one.text] - one.computed, room)
            kind = "extend" if one.computed else "prefill"
            return (self._made(one, text, length, False), 0, kind) if length else None
        if not (one.verified or spec and draw.random() < 0.6):
            return (self._made(one, text, 1, False), 0, "decode") if room else None
        drafts = draw.randint(0, spec)
        if room < 1 + drafts:
            return None
        good = min(draw.randint(0, drafts), left - 1)
        history = text[: one.computed + 1 + good]
        while len(history) < one.computed + 1 + drafts:
            history.append(self._wrong(text, len(history)))
        return self._made(one, history, 1 + drafts, True), good, f"verify{drafts}"

    def _wrong(self, text: Sequence[int], at: int) -> int:
        token = self._random.randrange(self.config.vocab_size)
        return token if at >= len(text) or token != text[at] else (token + 1) % self.config.vocab_size

    def _made(self, one: _Live, tokens: Sequence[int], length: int, verify: bool) -> Request:
        self.pool.reserve(one.text, one.computed + length)
        places = None
        if self.positions is not None:
            axes = self.positions[one.text]
            past = [range(max(axis) + 1, max(axis) + 1 + length) for axis in axes]
            places = [[*axis, *more][one.computed : one.computed + length] for axis, more in zip(axes, past)]
        slots, blocks = self.pool.slots(one.text), self.pool.blocks(one.text)
        # An idle request still is one that verifies: its next chunk selects by how much was accepted.
        return Request(
            tokens, one.computed, length, slots, blocks, verify or (one.verified and not length), one.accepted, places
        )

    def _advance(self, one: _Live, request: Request, good: int) -> None:
        if not request.length:
            return
        one.computed += good + 1 if request.verify else request.length
        one.accepted = good + 1 if request.verify else 1
        one.verified = request.verify
