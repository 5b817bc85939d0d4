"""A small serving loop: greedy decoding of several requests at once, with drafts that are verified or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from capwise.models.qwen4_exp.batch import Request, build_batch
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.pool import Pool

StepOf = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Running:
    """One request. tokens: prompt and what was generated. computed: how many are in the caches. drafts: guesses of what
    follows. top: of its first generated token, the log-probabilities of the 20 likeliest."""

    tokens: list[int]
    wanted: int
    computed: int = 0
    accepted: int = 1
    verified: bool = False
    drafts: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    top: torch.Tensor | None = None


class Engine:
    """Runs requests to their end, greedily.

    Args:
        step_of: the decoder, compiled or not. draft_of: a draft layer; None: no drafts.
        pool: with 1+S slots a request, as the decoder was made.
        max_blocks: columns of the block table.
        guess: where given, replaces the drafts of a request: (request, drafts) -> drafts.
    """

    def __init__(
        self,
        config: Config,
        pool: Pool,
        step_of: StepOf,
        draft_of: StepOf | None = None,
        max_blocks: int = 8,
        guess: Callable[[Running, list[int]], list[int]] | None = None,
    ) -> None:
        self.config, self.pool, self.step_of, self.draft_of = config, pool, step_of, draft_of
        self.max_blocks, self.guess = max_blocks, guess
        self.offered = self.taken = self.steps = 0

    def generate(self, prompts: Sequence[Sequence[int]], wanted: int) -> list[Running]:
        """All prompts at once, `wanted` tokens each.

        Raises:
            PoolError: not enough blocks or slots.
        """
        live = list(enumerate(Running(list(p), wanted) for p in prompts))
        done = [one for _, one in live]
        while live:
            self._step(live)
            for name, one in [row for row in live if len(row[1].generated) >= row[1].wanted]:
                live.remove((name, one))
                self.pool.release(name)
        return done

    def _step(self, live: Sequence[tuple[int, Running]]) -> None:
        rows = [self._request(name, one) for name, one in live]
        batch = self._batch(rows)
        logits, streams = self.step_of(**batch)
        self.steps += 1
        logits, streams = logits.clone(), streams.clone()
        best = logits.argmax(-1).tolist()
        kept = []
        for i, ((_, one), row) in enumerate(zip(live, rows)):
            if one.top is None:
                one.top = torch.log_softmax(logits[i, 0].float(), 0).topk(min(20, logits.shape[2])).values
            kept.append(self._accept(one, row, best[i]))
        if self.draft_of is not None and self.pool.num_spec:
            self._draft(live, rows, batch, streams, kept)

    def _request(self, name: int, one: Running) -> Request:
        verify = bool(one.computed) and self.pool.num_spec > 0 and self.draft_of is not None
        drafts = one.drafts if verify else []
        tokens = [*one.tokens, *drafts]
        # Draft steps write keys past the last accepted token: their pages must be there.
        self.pool.reserve(name, len(tokens) + self.pool.num_spec)
        slots, blocks = self.pool.slots(name), self.pool.blocks(name)
        return Request(tokens, one.computed, len(tokens) - one.computed, slots, blocks, verify, one.accepted)

    def _batch(self, rows: Sequence[Request]) -> dict[str, torch.Tensor]:
        spec = self.pool.num_spec
        return build_batch(rows, self.config, spec, page_size=self.pool.page_size, max_blocks=self.max_blocks)

    def _accept(self, one: Running, row: Request, best: Sequence[int]) -> int:
        """Takes over what the target says; returns the column of the last row that counts."""
        column = 0
        if row.verify:
            drafts = list(row.tokens[row.computed + 1 :])
            while column < len(drafts) and drafts[column] == best[column]:
                column += 1
            self.offered, self.taken = self.offered + len(drafts), self.taken + column
            one.computed, one.accepted = row.computed + column + 1, column + 1
        else:
            one.computed, one.accepted = row.computed + row.length, 1
        one.tokens += [*best[: column + 1]]
        one.generated += [*best[: column + 1]]
        del one.generated[one.wanted :]
        return column

    def _draft(
        self,
        live: Sequence[tuple[int, Running]],
        rows: Sequence[Request],
        batch: dict[str, torch.Tensor],
        streams: torch.Tensor,
        kept: Sequence[int],
    ) -> None:
        """First over all rows of the target's step, ids shifted by one; then one row a request."""
        assert self.draft_of is not None
        ids, starts = batch["input_ids"].tolist(), batch["query_start_loc"].tolist()
        following = [*ids[1:], 0]
        last = [start + column if row.verify else end - 1
                for start, end, row, column in zip(starts, starts[1:], rows, kept)]  # fmt: skip
        for at, (_, one) in zip(last, live):
            following[at] = one.tokens[-1]
        for _, one in live:
            one.drafts = []
        plain = {n: v for n, v in batch.items() if n not in ("input_ids", "ngram_context")}
        for number in range(self.pool.num_spec):
            next_ids = torch.tensor(following, dtype=torch.int32)
            logits, streams = self.draft_of(streams=streams, next_ids=next_ids, **plain)
            best = logits.argmax(-1).tolist()
            columns = kept if number == 0 else [0] * len(live)
            for i, (_, one) in enumerate(live):
                one.drafts.append(best[i][columns[i]])
            if number + 1 == self.pool.num_spec:
                break
            streams = streams[torch.tensor(last)].clone()
            last, following = list(range(len(live))), [one.drafts[-1] for _, one in live]
            plain = self._one_row_each(live, number + 1)
        if self.guess is not None:
            for _, one in live:
                one.drafts = self.guess(one, one.drafts)

    def _one_row_each(self, live: Sequence[tuple[int, Running]], number: int) -> dict[str, torch.Tensor]:
        """The step of draft number `number`: each request's row stands at the position of its last guess."""
        rows = []
        for name, one in live:
            at = one.computed + number - 1
            history = [*one.tokens, *one.drafts][: at + 1]
            rows.append(Request(history, at, 1, self.pool.slots(name), self.pool.blocks(name)))
        batch = self._batch(rows)
        return {n: v for n, v in batch.items() if n not in ("input_ids", "ngram_context")}

