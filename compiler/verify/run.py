"""One history, run eagerly and replayed, with adversaries at work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from capwise import compat
from capwise.backend import CompiledModel, TraceError
from capwise.case import Case
from capwise.labels import InputError, normalise
from capwise.options import Options
from capwise.runtime.pool import Pool
from capwise.runtime.tape import CaptureError, before_launches, kernels_run_by
from capwise.snapshot import OtherRun, Snapshot
from capwise.verify import blame, layouts
from capwise.verify.compare import difference
from capwise.verify.inputs import Inputs, copied
from capwise.verify.noise import Noise
from capwise.verify.order import Order, ordered
from capwise.verify.reads_first import ReadsFirst
from capwise.verify.result import Mismatch, Place

# Each alone finds faults that the others do not; what plain replay shows needs none of them.
ADVERSARIES = ("poison", "order", "pool", "fresh", "layouts", "writes")


@dataclass(frozen=True)
class Round:
    """One replay of a step. noise: None leaves the tails as they are. fresh: by a program that never ran before.
    compared: its values must be those of the first round; else only its launches. early: the host writes the next
    step's inputs before the launches run."""

    noise: int | None = None
    order: Order = "natural"
    fresh: bool = False
    compared: bool = True
    early: bool = False


@dataclass(frozen=True)
class Setting:
    """Where and how a verification runs. device: of `verify`, without a target. buffers: engine's own buffers are
    written early too."""

    device: str
    unsafe: bool
    seed: int
    adversaries: frozenset[str]
    buffers: bool = False

    @property
    def on_tape(self) -> bool:
        return self.device != "cuda"

    def rounds(self, adversaries: frozenset[str]) -> list[Round]:
        """The replays of one step. A naive engine's first one sees the tails that the last step left."""
        noisy = "poison" in adversaries
        permuted: Order = "permuted" if "order" in adversaries and self.device == "cpu" else "natural"
        rounds = [Round(0 if noisy and not self.unsafe else None)]
        early = "writes" in adversaries and self.on_tape
        if noisy or early or permuted != "natural":
            rounds.append(Round(1 if noisy else None, permuted, early=early))
        fresh = "fresh" in adversaries and not self.unsafe
        if fresh or permuted != "natural":
            rounds.append(Round(None, "natural" if permuted == "natural" else "deferred", fresh))
        if "layouts" in adversaries and not fresh and not self.unsafe:
            rounds.append(Round(None, fresh=True, compared=False))
        return rounds


class Run:
    """Histories of one case, one at a time, each from the state that the case's model is in."""

    def __init__(self, case: Case, options: Options, setting: Setting, keep: Callable[[dict[str, Any]], None]) -> None:
        self.case, self.setting, self.keep = case, setting, keep
        self.place = torch.device("cuda" if setting.device == "cuda" else "cpu")
        self.model = copied(case.model, self.place)
        self.compiled = CompiledModel(self.model, options)
        self.specs = normalise(options.inputs)
        self.mine = Inputs(self.specs, self.place)
        self.first = Snapshot(self.model, self.mine.statics())
        self.reads_first = ReadsFirst()
        self.steps = 0

    def history(self, order: Sequence[int], adversaries: frozenset[str], all_steps: bool = True) -> list[Mismatch]:
        """Runs a history from the start; returns what differed, or what differed first."""
        self._restart()
        found: list[Mismatch] = []
        for step, number in enumerate(order):
            self.next = self.case.batches[order[step + 1]] if step + 1 < len(order) else {}
            new = self._step(step, self.case.batches[number], adversaries)
            found += new
            if new and (not all_steps or new[-1].kind == "capture"):
                break
        return found

    def _restart(self) -> None:
        self.first.restore()
        self.compiled.forget()
        self.mine.restart()
        self.theirs = Inputs(self.specs, self.place)
        source = self.case.reference if self.case.reference is not None else self.case.model
        self.reference = copied(source, self.place)
        self.other = OtherRun()
        self.noise = Noise(self.setting.seed, in_range_only=self.setting.unsafe)
        self.steps = 0

    # ------------------------------------------------------------------------------------------------ a step
    def _step(self, step: int, batch: Mapping[str, Any], adversaries: frozenset[str]) -> list[Mismatch]:
        self.steps += 1
        given = {k: v for k, v in batch.items() if v is not None}
        theirs = self.theirs.fresh(given)
        with torch.no_grad(), compat.eager_kernels(), self._seeded(step), self.other.at_work(), self.reads_first:
            expected = self.reference(**theirs)
        right = self._seen(expected, self.reference, theirs)
        self.noise.learn(given)
        rounds = self.setting.rounds(adversaries)
        try:
            seen, found = self._replay(step, given, rounds, adversaries)
        except (InputError, TraceError):
            raise
        except Exception as error:
            if not (self.setting.unsafe or isinstance(error, CaptureError)):
                raise
            node = getattr(error, "node", None)
            place = blame.place_of(node) if node is not None else None
            got = f"{type(error).__name__}: {str(error)[:200]}"
            return [Mismatch(step, "capture", "capture", got=got, place=place)]
        self.keep(seen[0])
        if not self.setting.unsafe:
            for rest, other in zip(rounds[1:], seen[1:]):
                if rest.compared and not found:
                    found += self._compare(step, "history", seen[0], other, exact=True)
        for one in seen if self.setting.unsafe else seen[:1]:
            wrong = self._compare(step, "eager", right, one, exact=False)
            found += wrong
            if wrong:
                break
        if "pool" in adversaries and self._pool is not None:
            self._pool.retire()
        return found

    def _replay(
        self, step: int, given: Mapping[str, Any], rounds: Sequence[Round], adversaries: frozenset[str]
    ) -> tuple[list[dict[str, Any]], list[Mismatch]]:
        """Every round from the same state. The next step finds what the last round with noise leaves in rows that stand
        for nothing; a naive engine's next step finds what its first round leaves."""
        seen: list[dict[str, Any]] = []
        found: list[Mismatch] = []
        noisy = [i for i, one in enumerate(rounds) if one.noise is not None and not one.fresh]
        lasting = noisy[-1] if noisy and not self.setting.unsafe else 0
        before: Snapshot | None = None
        after: Snapshot | None = None
        arena: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, one in enumerate(rounds):
            mine = self.mine.fresh(given)
            if before is not None:
                before.restore()
            elif len(rounds) > 1:
                before = Snapshot(self.model, self.mine.statics())
            with self._seeded(step), self._around(one, found, step, adversaries, mine):
                seen.append(self._seen(self.compiled(**mine), self.model, mine, one.early))
            if number == lasting and len(rounds) > number + 1:
                after = Snapshot(self.model, self.mine.statics())
                arena = self.compiled.arena.snapshot() if self.setting.unsafe else []
        if after is not None:
            after.restore()
            for value, kept in arena:
                value.copy_(kept)
        return seen, found

    @contextlib.contextmanager
    def _around(
        self, one: Round, found: list[Mismatch], step: int, adversaries: frozenset[str], mine: Mapping[str, Any]
    ) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if one.early:
                stack.enter_context(before_launches(lambda: self._write_early(mine)))
            if one.order != "natural":
                stack.enter_context(kernels_run_by(ordered(one.order, self.setting.seed + step)))
            recorded = self.compiled.recordings if one.fresh else {}
            if one.fresh:
                stack.enter_context(self.compiled.unrecorded())
            self._poison(one, adversaries)
            yield
            if "layouts" in adversaries and one.fresh:
                found += self._layouts(step, recorded, self.compiled.recordings)

    def _early_inputs(self, inputs: Mapping[str, Any]) -> list[str]:
        """Inputs that a host may write as soon as they are staged."""
        kinds = ("staged", "buffer") if self.setting.buffers else ("staged",)
        return [
            n
            for n, v in inputs.items()
            if isinstance(v, torch.Tensor) and n in self.specs and self.specs[n].kind in kinds
        ]

    def _write_early(self, mine: Mapping[str, Any]) -> None:
        """The next step's values, as far as they reach; where there are none, other ones in range."""
        for name in self._early_inputs(mine):
            place, coming = mine[name], self.next.get(name)
            if isinstance(coming, torch.Tensor) and coming.dim() == place.dim() and coming.numel():
                both = tuple(slice(0, min(a, b)) for a, b in zip(place.shape, coming.shape))
                place[both] = coming[both].to(place.dtype)
            elif place.numel():
                self.noise.round = 1
                self.noise(name, place)

    def _poison(self, one: Round, adversaries: frozenset[str]) -> None:
        """Noise in tails, and in memory of recordings that no step may count on."""
        if one.noise is not None:
            self.noise.round = one.noise
            self.compiled.arena.poison(self.noise)
        if "pool" in adversaries and self._pool is not None and not self.setting.unsafe:
            self._pool.poison(0xFF if one.order == "natural" else 0x3F)

    @property
    def _pool(self) -> Pool | None:
        pool = self.compiled.arena.pool
        return pool if isinstance(pool, Pool) else None

    @contextlib.contextmanager
    def _seeded(self, step: int) -> Iterator[None]:
        """Random numbers are the same in every round: what differs then is not chance."""
        if not self.setting.on_tape:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.setting.seed + step)
            yield

    def _layouts(self, step: int, recorded: Mapping[Any, Any], again: Mapping[Any, Any]) -> list[Mismatch]:
        fixed = {t.untyped_storage()._cdata: f"state {n}" for n, t in self._named_state()}
        fixed |= {t.untyped_storage()._cdata: "input" for t in self.mine.statics()}
        found = []
        for key in recorded.keys() & again.keys():
            for _, launch, frozen, other in layouts.differing(recorded[key], again[key], fixed):
                place = blame.node_named(key[0], launch.node) if launch is not None else None
                what = f"launch {launch.name}" if launch is not None else "launches"
                found.append(Mismatch(step, what, "history", expected=other, got=frozen, place=place))
        return found

    def _named_state(self) -> list[tuple[str, torch.Tensor]]:
        if not isinstance(self.model, torch.nn.Module):
            return []
        return [*self.model.named_buffers(), *self.model.named_parameters()]

    # ------------------------------------------------------------------------------------------------ comparing
    def _seen(self, result: Any, model: Any, inputs: Mapping[str, Any], early: bool = False) -> dict[str, Any]:
        """Live outputs and all state, copied. What the host has written by now (`early`) says nothing."""
        rewritten = {inputs[n].untyped_storage()._cdata for n in self._early_inputs(inputs)} if early else set()
        inputs = {n: t for n, t in inputs.items() if not _lies_in(t, rewritten)}
        leaves = {f"output {i}": leaf for i, leaf in enumerate(tree_leaves(result))}
        seen = {name: _kept(leaf) for name, leaf in leaves.items() if not _lies_in(leaf, rewritten)}
        if isinstance(model, torch.nn.Module):
            seen |= {f"state {n}": _kept(t) for n, t in (*model.named_buffers(), *model.named_parameters())}
        seen |= {f"input {n}": _kept(t) for n, t in inputs.items() if isinstance(t, torch.Tensor)}
        return seen

    def _compare(
        self, step: int, kind: str, expected: Mapping[str, Any], got: Mapping[str, Any], exact: bool
    ) -> list[Mismatch]:
        found = []
        for what, right in expected.items():
            if what in got:
                differs = difference(right, got[what], exact, self._scratch_rows(what))
                found += [Mismatch(step, what, kind, *differs)] if differs is not None else []
        return found

    def _scratch_rows(self, what: str) -> list[tuple[int, int]]:
        """Rows that stand for nothing: what is written there is nobody's."""
        name = what.removeprefix("state ")
        rows = {(d, row) for p in self.compiled.programs for owner, d, row in p.scratch if owner == name}
        return sorted(rows)

    # ------------------------------------------------------------------------------------------------ blame
    def first_difference(self, order: Sequence[int], adversaries: frozenset[str]) -> Place | None:
        """The first node that differs in the last step of a failing history."""
        found = self.history(order, adversaries, all_steps=False)
        if not found or found[0].step + 1 != len(order) or found[0].place is not None:
            return found[0].place if found else None
        self.history(order[:-1], adversaries, all_steps=True)
        given = {k: v for k, v in self.case.batches[order[-1]].items() if v is not None}
        self.noise.learn(given)
        try:
            values = [self._values(len(order) - 1, given, one, adversaries) for one in self.setting.rounds(adversaries)]
            ticket = self.compiled.ticket
            if ticket is None:
                return None
            history = found[0].kind == "history"
            batch = self.compiled.admission.bind((), self.mine.fresh(given))
            eager = {} if history else blame.interpreted(ticket, batch)
        except (IndexError, RuntimeError, ValueError):  # a replay that cannot finish has no values to compare
            return None
        pairs = [(values[0], other, False) for other in values[1:]] if history else [(v, eager, True) for v in values]
        for one, other, against_eager in pairs:
            place = blame.first_difference(one, other, ticket, not against_eager, against_eager)
            if place is not None:
                return place
        return None

    def _values(self, step: int, given: Mapping[str, Any], one: Round, adversaries: frozenset[str]) -> blame.Values:
        """Node values of one round; the model is left as it was. What is not recorded yet is recorded first."""
        mine = self.mine.fresh(given)
        before = Snapshot(self.model, self.mine.statics())
        with self._around(replace(one, early=False), [], step, adversaries - {"layouts"}, mine):
            with self._seeded(step):
                self.compiled(**mine)
            before.restore()
            self._poison(one, adversaries)
            early = before_launches(lambda: self._write_early(mine)) if one.early else contextlib.nullcontext()
            with self._seeded(step), early:
                values = blame.replayed(lambda: self.compiled(**mine))
        before.restore()
        return values


def _lies_in(value: Any, storages: set[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in storages


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone().cpu() if isinstance(leaf, torch.Tensor) else leaf
