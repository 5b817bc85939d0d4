"""Differential replay: the same history eager and replayed, with noise in every tail."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from capwise import compat
from capwise.backend import CompiledModel, TraceError, case_options
from capwise.case import Case
from capwise.labels import InputError, Spec, normalise
from capwise.ops.launch import device_tiles
from capwise.report import Report
from capwise.runtime.tape import CaptureError, kernels_run_by
from capwise.snapshot import Snapshot

# A GEMM at 5 rows and at 8 rows differs in the last bits: 2.6e-4 was measured in fp32 at K = 2560.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 5e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Mismatch:
    """One difference. what: "output i", "state name" or "capture". kind: history (two tails differ), eager, capture."""

    step: int
    what: str
    kind: str
    rows: tuple[int, ...] = ()
    expected: Any = None
    got: Any = None
    tolerance: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "rows": list(self.rows)}

    def __str__(self) -> str:
        rows = f" rows {list(self.rows[:8])}" if self.rows else ""
        return f"step {self.step}: {self.what} ({self.kind}){rows}: expected {self.expected}, got {self.got}"


@dataclass
class VerifyResult:
    """What a verification saw. ok: no mismatch. seen: what each step gave, by "output i" or "state name", if kept."""

    case: str
    steps: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    misses: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.mismatches

    def to_dict(self) -> dict[str, Any]:
        mismatches = [m.to_dict() for m in self.mismatches]
        return {"version": 1, "case": self.case, "steps": self.steps, "ok": self.ok, "mismatches": mismatches}

    def __str__(self) -> str:
        head = f"{self.case}: {self.steps} steps, " + ("replay equals eager" if self.ok else "replay differs")
        return "\n".join([head, *[f"  {m}" for m in self.mismatches[:20]]])


def verify(
    case: Case,
    unsafe: bool = False,
    device: str = "cpu",
    histories: int = 1,
    seed: int = 0,
    poison: bool = True,
    keep: bool = False,
    **options: Any,
) -> VerifyResult:
    """Runs a case's history eagerly and replayed, and compares live outputs and all state after every step.

    Args:
        unsafe: replay with repair="none", as a naive engine would.
        device: "cpu" (the tape), "cuda" (graphs; ROCm too), or "hip-emulated": the tape, each Triton launch compiled
            for gfx942 (or another target, "hip-emulated:gfx1201") and its assembly executed under the serial schedule.
        histories: the first is the case's own; further ones are drawn from its batches.
        seed: of histories and noise.
        poison: noise in every tail, twice with different noise, which must not show.
        keep: hold on to what each step gave, in `VerifyResult.seen`.

    Raises:
        InputError: a batch that contradicts the case's description.
    """
    more = dict(options)
    more.setdefault("capture", "graph" if device == "cuda" else "tape")
    if device != "cuda":
        more.setdefault("lower", "eager")
    if unsafe:
        more["repair"] = "none"
    result = VerifyResult(case.name)
    for number in range(histories):
        order = history(len(case.batches), number, seed)
        run = _Run(case, case_options(case, **more), device, poison, unsafe, seed + number, result)
        with _kernels_on(device, seed + number):
            run.keep = keep
            run.all([case.batches[i] for i in order])
    result.report.case = case.name
    return result


@contextlib.contextmanager
def _kernels_on(device: str, seed: int) -> Iterator[None]:
    """How the tape runs Triton launches: by the interpreter, or as the ROCm code they compile to."""
    name, _, gfx = device.partition(":")
    if name != "hip-emulated":
        yield
        return
    from capwise.runtime.emulated import emulated

    with device_tiles(), kernels_run_by(emulated(gfx or "gfx942", seed=seed)):
        yield


def history(count: int, number: int, seed: int) -> list[int]:
    """Indices of batches: the case's own order first, then orders that repeat and reverse it."""
    order = list(range(count))
    if number == 0:
        return order
    rng = random.Random(f"{seed}/{number}")
    drawn = order + [rng.randrange(count) for _ in range(count)]
    rng.shuffle(drawn)
    return drawn


class _Run:
    """One history, with its own copies of model and reference."""

    def __init__(
        self, case: Case, options: Any, device: str, poison: bool, unsafe: bool, seed: int, result: VerifyResult
    ) -> None:
        place = torch.device("cuda" if device == "cuda" else "cpu")
        self.model = _copied(case.model, place)
        self.reference = _copied(case.reference if case.reference is not None else case.model, place)
        self.compiled = CompiledModel(self.model, options)
        self.poison, self.unsafe, self.result, self.place = poison, unsafe, result, place
        self.keep = False
        self.noise = _Noise(seed, in_range_only=unsafe)
        self.specs = normalise(options.inputs)
        self.mine, self.theirs = _Inputs(self.specs, place), _Inputs(self.specs, place)

    def all(self, batches: Sequence[Mapping[str, Any]]) -> None:
        for batch in batches:
            step = self.result.steps
            self.result.steps += 1
            if not self._step(step, batch):
                break
        self.result.report.merge(self.compiled.report)
        self.result.misses += self.compiled.misses

    def _step(self, step: int, batch: Mapping[str, Any]) -> bool:
        """One step; returns whether the history can go on."""
        given = {k: v for k, v in batch.items() if v is not None}
        theirs = self.theirs.fresh(given)
        with torch.no_grad(), compat.eager_kernels():
            expected = self.reference(**theirs)
        self.noise.learn(given)
        try:
            seen = self._replay(given)
        except (InputError, TraceError):
            raise
        except Exception as error:
            if not (self.unsafe or isinstance(error, CaptureError)):
                raise
            self._add(Mismatch(step, "capture", "capture", got=f"{type(error).__name__}: {str(error)[:200]}"))
            return False
        if self.keep:
            self.result.seen.append(seen[0])
        if len(seen) == 2 and not self.unsafe:
            self._compare(step, "history", seen[0], seen[1], exact=True)
        right = self._seen(expected, self.reference, theirs)
        if not self._compare(step, "eager", right, seen[0], exact=False) and self.unsafe and len(seen) == 2:
            self._compare(step, "eager", right, seen[1], exact=False)
        return True

    def _replay(self, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Runs the step; under poison twice from the same state, with different noise. A naive engine's first run sees
        the tails that the last step left, its second one noise, which is taken away again."""
        if not self.poison:
            return [self._once(given)]
        seen = [self._once(given, noise=None if self.unsafe else 0)]
        after = Snapshot(self.model, self.mine.statics())
        arena = self.compiled.arena.snapshot() if self.unsafe else []
        self.before.restore()
        seen.append(self._once(given, noise=1))
        for value, kept in arena:
            value.copy_(kept)
        if self.unsafe:
            after.restore()
        return seen

    def _once(self, given: Mapping[str, Any], noise: int | None = None) -> dict[str, Any]:
        mine = self.mine.fresh(given)
        self.before = Snapshot(self.model, self.mine.statics())
        if noise is not None:
            self.noise.round = noise
            self.compiled.arena.poison(self.noise)
        return self._seen(self.compiled(**mine), self.model, mine)

    def _seen(self, result: Any, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Live outputs and all state, copied."""
        seen = {f"output {i}": _kept(leaf) for i, leaf in enumerate(tree_leaves(result))}
        if isinstance(model, torch.nn.Module):
            seen |= {f"state {n}": _kept(t) for n, t in (*model.named_buffers(), *model.named_parameters())}
        seen |= {f"input {n}": _kept(t) for n, t in inputs.items() if isinstance(t, torch.Tensor)}
        return seen

    def _compare(self, step: int, kind: str, expected: Mapping[str, Any], got: Mapping[str, Any], exact: bool) -> bool:
        """Adds what differs; returns whether anything did."""
        before = len(self.result.mismatches)
        for what, right in expected.items():
            if what not in got:
                continue
            found = difference(right, got[what], exact, self._scratch_rows(what))
            if found is not None:
                self._add(Mismatch(step, what, kind, *found))
        return len(self.result.mismatches) > before

    def _scratch_rows(self, what: str) -> list[tuple[int, int]]:
        """Rows that stand for nothing: what is written there is nobody's."""
        name = what.removeprefix("state ")
        rows = {(d, row) for p in self.compiled.programs for owner, d, row in p.scratch if owner == name}
        return sorted(rows)

    def _add(self, mismatch: Mismatch) -> None:
        self.result.mismatches.append(mismatch)


class _Inputs:
    """A run's own copies of the batches: staged inputs new at every step, buffers and static inputs at one address."""

    def __init__(self, specs: Mapping[str, Spec], place: torch.device) -> None:
        self.specs, self.place = specs, place
        self.kept: dict[Any, torch.Tensor] = {}

    def fresh(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {n: self._one(n, v) for n, v in batch.items()}

    def _one(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        spec = self.specs.get(name)
        if spec is None:
            key = (name, id(value))
            if key not in self.kept:
                self.kept[key] = moved(value, self.place)
            return self.kept[key]
        if spec.kind != "buffer":
            return moved(value, self.place)
        if name not in self.kept:
            self.kept[name] = moved(value, self.place)
        whole = self.kept[name]
        view = whole.as_strided(value.shape, value.stride(), value.storage_offset())
        view.copy_(value)
        return view

    def statics(self) -> Iterator[torch.Tensor]:
        yield from self.kept.values()


def moved(value: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A copy of a tensor with its storage around it, so that strides, offset and room behind it stay."""
    size = value.untyped_storage().nbytes() // value.element_size()
    flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage(), 0, (size,), (1,))
    return flat.to(place, copy=True).as_strided(value.shape, value.stride(), value.storage_offset())


def _copied(model: Any, place: torch.device) -> Any:
    mine = copy.deepcopy(model)
    return mine.to(place) if isinstance(mine, torch.nn.Module) else mine


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone().cpu() if isinstance(leaf, torch.Tensor) else leaf


class _Noise:
    """What stands in tails. Round 0: NaN and large integers; round 1: numbers, and integers seen before, decreasing."""

    def __init__(self, seed: int, in_range_only: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.in_range_only, self.round = in_range_only, 0
        self.seen: dict[str, torch.Tensor] = {}

    def learn(self, batch: Mapping[str, Any]) -> None:
        """Remembers the integers that an input has held: in range, and wrong in a tail."""
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and value.numel() and not value.dtype.is_floating_point:
                known = set(self.seen.get(name, torch.zeros(0)).tolist())
                self.seen[name] = torch.tensor(sorted(known | set(value.flatten().tolist())), dtype=torch.int64)

    def __call__(self, name: str, place: torch.Tensor) -> None:
        wild = self.round == 0 and not self.in_range_only
        if place.dtype.is_floating_point or place.dtype.is_complex:
            drawn = torch.randn(place.shape, generator=self.generator) * 10
            place.copy_(torch.full_like(drawn, float("nan")) if wild else drawn)
        elif place.dtype == torch.bool:
            place.copy_(torch.rand(place.shape, generator=self.generator) < 0.5)
        elif wild:
            place.fill_(torch.iinfo(place.dtype).max // 2)
        else:
            known = self.seen.get(name, torch.zeros(1, dtype=torch.int64))
            at = torch.randint(len(known), place.shape, generator=self.generator)
            place.copy_(known[at].flatten().sort(descending=True).values.view(place.shape))


def difference(
    right: Any, got: Any, exact: bool, scratch: Sequence[tuple[int, int]] = ()
) -> tuple[tuple[int, ...], Any, Any, float] | None:
    """Where two values differ: (rows, expected, got, tolerance), or None.

    Args:
        exact: bitwise; else integers bitwise, floats within the tolerance of their dtype. NaN equals NaN.
        scratch: (dimension, row) pairs that are not compared.
    """
    if not isinstance(right, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = right == got or (isinstance(right, float) and right != right)
        return None if same else ((), right, got, 0.0)
    if right.shape != got.shape or right.dtype != got.dtype:
        return ((), f"{tuple(right.shape)} {right.dtype}", f"{tuple(got.shape)} {got.dtype}", 0.0)
    tolerance = 0.0 if exact else TOLERANCE.get(right.dtype, 0.0)
    bad = _differs(right, got, tolerance)
    for dim, row in scratch:
        if dim < bad.dim() and row < bad.shape[dim]:
            bad.select(dim, row).fill_(False)
    if not bool(bad.any()):
        return None
    at = tuple(int(i) for i in bad.nonzero()[0])
    rows = bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten().tolist() if bad.dim() else []
    return (tuple(rows), right[at].item(), got[at].item(), tolerance)


def _differs(right: torch.Tensor, got: torch.Tensor, tolerance: float) -> torch.Tensor:
    equal = right == got
    if right.dtype.is_floating_point or right.dtype.is_complex:
        equal = equal | (right.isnan() & got.isnan())
        if tolerance:
            equal = equal | torch.isclose(right, got, rtol=tolerance, atol=tolerance)
    return ~equal
