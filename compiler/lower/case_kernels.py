"""The Triton kernels of a Case: those its recordings launch, and those that Inductor generates for its pieces."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from capwise import compat
from capwise.backend import CompiledModel, case_options, trace_case
from capwise.case import Case
from capwise.labels import bind_extents, normalise
from capwise.lower.artifacts import Conditions
from capwise.lower.errors import LoweringError
from capwise.lower.grids import GridError, fit_grid
from capwise.lower.inductor_kernels import origin, piece_kernels
from capwise.lower.launches import spec_of
from capwise.lower.recorded import Recorded, catalogue
from capwise.lower.triton_aot import KernelSpec
from capwise.ops.launch import device_tiles
from capwise.options import Options
from capwise.program import Program
from capwise.runtime.dispatch import captured_extents, choose_key
from capwise.runtime.tape import kernels_run_by
from capwise.verify import moved

# A bucket that fills the largest tiles, and how far the other recordings lie from the first one.
_TOKENS = 64
_MORE = 37


@dataclass(frozen=True)
class Wanted:
    """A kernel to compile, and the extents of the launch it is for. error: why there is none. grid_error: why it has no
    grid expressions."""

    label: str
    spec: KernelSpec | None = None
    extents: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    grid_error: str = ""

    def conditions(self) -> Conditions:
        """What the kernel's binary rests on."""
        attrs = self.spec.job()["attrs"] if self.spec is not None else {}
        return Conditions(self.extents, {name: dict(pairs) for name, pairs in attrs.items()})

    def named(self, label: str) -> Wanted:
        return replace(self, label=label, spec=self.spec and replace(self.spec, label=label))


def op_kernels() -> list[Wanted]:
    """Every kernel of `capwise.ops`, at the sizes of the released model."""
    return [_wanted(name, launches) for name, launches in catalogue().items()]


def case_kernels(case: Case, options: Mapping[str, Any], folder: Path, grids: bool) -> list[Wanted]:
    """Every kernel of a case; the same code is listed once.

    Args:
        options: over the case's own.
        folder: where generated modules are written; it must outlive compiling.
        grids: whether grid expressions are wanted; they need recordings at several extents.
    """
    return [*_launched(case, options, grids), *_generated(case, options, folder)]


def _wanted(label: str, launches: Sequence[Recorded]) -> Wanted:
    first, *others = launches
    spec = replace(spec_of(first.kernel, first.bound, others=[launch.bound for launch in others]), label=label)
    try:
        return Wanted(label, replace(spec, grid=fit_grid(launches)), first.extents)
    except GridError as error:
        return Wanted(label, spec, grid_error=str(error))


# ------------------------------------------------------------------------------------------------ launched kernels
def _launched(case: Case, options: Mapping[str, Any], grids: bool) -> list[Wanted]:
    variants = list(_variants(case, case_options(case, **options)))
    first, *others = [record_case(case, {**options, **v}) for v in (variants if grids else variants[:1])]
    same = [o for o in others if [launch.name for launch in o] == [launch.name for launch in first]]
    found: dict[str, Wanted] = {}
    for place, launch in enumerate(first):
        spec = spec_of(launch.kernel, launch.bound)
        code = repr(sorted(spec.job().items()))
        if code not in found:
            count = sum(w.label.partition("#")[0] == launch.name for w in found.values())
            label = f"{launch.name}#{count + 1}" if count else launch.name
            found[code] = _wanted(label, [launch, *(o[place] for o in same)])
    return list(found.values())


def _variants(case: Case, options: Options) -> Iterator[dict[str, Any]]:
    """Options that record a case at several bucket sizes and capacities, the one to compile first."""
    seen: dict[str, int] = {}
    for batch in case.batches:
        given = {k: v for k, v in batch.items() if v is not None}
        for symbol, n in bind_extents(normalise(options.inputs or {}), given).items():
            seen[symbol] = max(n, seen.get(symbol, 1))
    first = options.key[0][0] if options.key[0] else ""
    tokens = max(_TOKENS, seen.pop(first, 1))
    for size, more in ((tokens, 0), (tokens + _MORE, 0), (tokens, 3), (tokens + 2 * _MORE, 5)):
        others = {s: options.capacity.get(s, n) + more for s, n in seen.items()}
        yield {"capture_sizes": (size,), "capacity": {**options.capacity, **others, **({first: size} if first else {})}}


def record_case(case: Case, options: Mapping[str, Any]) -> list[Recorded]:
    """The Triton launches of a case's recordings, in order, with a device's tile sizes; they run in the interpreter."""
    compiled = CompiledModel(
        copy.deepcopy(case.model), case_options(case, **{**options, "capture": "tape", "lower": "eager"})
    )
    found: list[Recorded] = []
    extents: dict[str, int] = {}

    def run(kernel: Any, grid: tuple[int, ...], **bound: Any) -> None:
        found.append(Recorded(kernel, tuple(grid), bound, dict(extents)))
        compat.run_interpreted(kernel, grid, **bound)

    seen: set[tuple[Any, ...]] = set()
    with device_tiles(), kernels_run_by(run):
        for batch in case.batches:
            given = {k: _copied(v, "cpu") for k, v in batch.items() if v is not None}
            live = compiled.admission.admit(given)
            signature = compiled.admission.signature(given)
            if signature not in seen:
                seen.add(signature)
                extents = _captured(compiled, live)
                compiled(**given)
    return found


def _captured(compiled: CompiledModel, live: dict[str, int]) -> dict[str, int]:
    admission = compiled.admission
    key = admission.keys[choose_key(admission.keys, live)]
    return captured_extents(key, live, admission.sizes(key), admission.capacity) or live


def _copied(value: Any, device: str) -> Any:
    return moved(value, torch.device(device)) if isinstance(value, torch.Tensor) else value


# ------------------------------------------------------------------------------------------------ generated kernels
def _generated(case: Case, options: Mapping[str, Any], folder: Path) -> list[Wanted]:
    """Inductor's kernels for every piece, on this machine's GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = copy.deepcopy(case.model)
    batches = [{k: _copied(v, device) for k, v in batch.items()} for batch in case.batches]
    there = replace(
        case, model=model.to(device) if isinstance(model, torch.nn.Module) else model, batches=batches, reference=None
    )
    compiled = trace_case(there, **options)
    found: dict[str, Wanted] = {}
    for program in compiled.programs:
        for wanted in _of_program(program, _captured(compiled, _live(compiled, batches[0])), folder):
            found.setdefault(wanted.label, wanted)
    return list(found.values())


def _live(compiled: CompiledModel, batch: Mapping[str, Any]) -> dict[str, int]:
    return compiled.admission.admit({k: v for k, v in batch.items() if v is not None})


def _of_program(program: Program, extents: Mapping[str, int], folder: Path) -> Iterator[Wanted]:
    known = {s: extents[s] for s in program.space.sympy if s in extents}
    for step in program.pieces:
        try:
            specs = piece_kernels(program, step, known, folder)
        except LoweringError as error:
            yield Wanted(f"{program.name} {step.name} ({origin()})", error=str(error))
            continue
        for spec in specs:
            label = f"{program.name} {spec.label}"
            problem = "" if spec.grid else "Inductor's grid is no expression in the program's symbols"
            yield Wanted(label, replace(spec, label=label), extents, grid_error=problem)
