"""Differential replay: the same history eager and replayed, with adversaries at work. Every idea is a file:

noise (poison in tails), order (of a launch's programs), layouts (two recordings of one key), histories (orders of
batches, and failing ones made short); run puts them together, blame finds the first differing node. reads_first says
what is right where eager itself depends on an order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from capwise.backend import case_options
from capwise.case import Case
from capwise.labels import normalise
from capwise.ops.launch import device_tiles
from capwise.options import nearest
from capwise.runtime.tape import kernels_run_by
from capwise.verify.compare import TOLERANCE, difference
from capwise.verify.histories import history, orders, shortest
from capwise.verify.inputs import moved
from capwise.verify.result import Mismatch, Place, VerifyResult
from capwise.verify.run import ADVERSARIES, Run, Setting

__all__ = [
    "ADVERSARIES",
    "TOLERANCE",
    "Mismatch",
    "Place",
    "VerifyResult",
    "difference",
    "history",
    "moved",
    "verify",
]

# Steps that may be run to make one failing history short. The emulator takes a second a launch.
_SHRINKING = {"cpu": 64, "hip-emulated": 8}


def verify(
    case: Case,
    unsafe: bool = False,
    device: str = "cpu",
    histories: int = 1,
    seed: int = 0,
    poison: bool = True,
    keep: bool = False,
    adversaries: Sequence[str] | None = None,
    mlir: bool = False,
    **options: Any,
) -> VerifyResult:
    """Runs a case's history eagerly and replayed, and compares live outputs and all state after every step.

    Args:
        unsafe: replay with repair="none", as a naive engine would.
        device: "cpu" (the tape), "cuda" (graphs; ROCm too), or "hip-emulated": the tape, each Triton launch compiled
            for gfx942 (or another target, "hip-emulated:gfx1201") and its assembly executed under the serial schedule.
        histories: the first is the case's own; further ones are drawn from its batches.
        seed: of histories and noise.
        poison: noise in every tail, twice with different noise, which must not show. False takes that adversary out.
        keep: hold on to what each step gave, in `VerifyResult.seen`.
        adversaries: which of ADVERSARIES are at work; all of them if None, but on a device only poison. "writes" asked
            for by name also writes an engine's own buffers (`Buffer`) early: as of an engine that does not wait.
        mlir: ask torch-mlir for a second opinion on captured ATen pieces (needs the extra `mlir`).

    Raises:
        InputError: a batch that contradicts the case's description.
        ValueError: no such adversary.
        MlirError: `mlir` without torch-mlir.
    """
    more = dict(options)
    more.setdefault("capture", "graph" if device == "cuda" else "tape")
    if device != "cuda":
        more.setdefault("lower", "eager")
    if unsafe:
        more["repair"] = "none"
    made = case_options(case, **more)
    chosen = _chosen(adversaries, device, poison)
    result = VerifyResult(case.name)
    for number, order in enumerate(orders(case, normalise(made.inputs), histories, seed)):
        asked = adversaries is not None and "writes" in adversaries
        setting = Setting(device.partition(":")[0], unsafe, seed + number, chosen, buffers=asked)
        run = Run(case, made, setting, result.seen.append if keep else lambda _: None)
        with _kernels_on(device, seed + number):
            found = run.history(order, chosen)
            _add(result, run, found)
            if found and not result.history and setting.device in _SHRINKING:
                _explain(result, run, order, found[0])
    if mlir:
        from capwise.verify.opinion import second_opinion

        result.opinion = second_opinion(case, **more)
        result.mismatches += result.opinion.mismatches
    result.report.case = case.name
    return result


def _chosen(adversaries: Sequence[str] | None, device: str, poison: bool) -> frozenset[str]:
    for name in adversaries or ():
        if name not in ADVERSARIES:
            raise ValueError(
                f"adversaries: expected some of {', '.join(ADVERSARIES)}; got {name!r}{nearest(name, ADVERSARIES)}"
            )
    every = ("poison",) if device == "cuda" else ADVERSARIES
    return frozenset(every if adversaries is None else adversaries) - (set() if poison else {"poison"})


def _add(result: VerifyResult, run: Run, found: Sequence[Mismatch]) -> None:
    """Steps are counted through all histories."""
    result.mismatches += [Mismatch(**{**m.__dict__, "step": m.step + result.steps}) for m in found]
    result.steps += run.steps
    result.report.merge(run.compiled.report)
    result.misses += run.compiled.misses
    result.unordered += [place for place in run.reads_first.found if place not in result.unordered]


def _explain(result: VerifyResult, run: Run, order: Sequence[int], first: Mismatch) -> None:
    """The shortest history that still fails in this way, the adversaries that it needs, and the first node."""
    every = run.setting.adversaries
    run.keep = lambda _: None

    def fails(candidate: list[int], adversaries: frozenset[str] = every) -> bool:
        found = run.history(candidate, adversaries, all_steps=False)
        return bool(found) and found[0].kind == first.kind and found[0].step + 1 == len(candidate)

    short = shortest(order, first.step, fails, _SHRINKING[run.setting.device])
    needed = every
    for name in sorted(every):
        if len(short) * len(every) <= 4 * _SHRINKING[run.setting.device] and fails(short, needed - {name}):
            needed = needed - {name}
    result.history, result.adversaries = short, tuple(n for n in ADVERSARIES if n in needed)
    result.first = first.place or run.first_difference(short, needed)


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
