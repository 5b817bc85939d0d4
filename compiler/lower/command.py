"""`capwise lower`: kernels compiled for machines that are not here, as a table, as JSON, and as files to launch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capwise.case import Case
from capwise.lower.case_kernels import Wanted, case_kernels, op_kernels
from capwise.lower.differences import mark_differences
from capwise.lower.row import LowerRow
from capwise.lower.targets import Target
from capwise.lower.triton_aot import compile_many, write_artifacts

_COLUMNS = ("registers", "spills", "scratch", "shared", "wave", "bytes")


def lower_ops(targets: Sequence[Target], out: Path | None = None) -> list[LowerRow]:
    """Every kernel of `capwise.ops` for every target; `out` gets the binaries and their manifest."""
    return compile_wanted(op_kernels(), targets, out)


def lower_cases(
    cases: Sequence[tuple[Case, Mapping[str, Any]]], targets: Sequence[Target], out: Path | None = None
) -> list[LowerRow]:
    """Every Triton kernel of some cases, each with its options, for every target; see `case_kernels`.

    Kernels of several cases carry the case's name.
    """
    wanted: list[Wanted] = []
    with tempfile.TemporaryDirectory(prefix="capwise-lower-") as folder:
        for case, options in cases:
            found = case_kernels(case, options, Path(folder), grids=out is not None)
            wanted += [w.named(f"{case.name}: {w.label}") for w in found] if len(cases) > 1 else found
        return compile_wanted(wanted, targets, out)


def compile_wanted(wanted: Sequence[Wanted], targets: Sequence[Target], out: Path | None) -> list[LowerRow]:
    """A row a kernel and target. With `out` a kernel without grid expressions is an error: nobody could launch it.

    Raises:
        OSError: `out` cannot be written.
    """
    specs = [w.spec for w in wanted if w.spec is not None]
    compiled = iter(compile_many(specs, targets) if specs else [])
    rows: list[LowerRow] = []
    for kernel in wanted:
        for target in targets:
            row = LowerRow(kernel.label, target.name, False, wave=target.wave, error=kernel.error)
            rows.append(row if kernel.spec is None else next(compiled))
            if out is not None and kernel.grid_error and rows[-1].ok:
                rows[-1] = replace(rows[-1], ok=False, error=kernel.grid_error)
    if out is not None:
        write_artifacts(rows, out, conditions={w.label: w.conditions() for w in wanted if w.spec is not None})
    return mark_differences(rows)


def table(rows: Sequence[LowerRow]) -> str:
    """The rows as text, a kernel's together, then what differs between targets and what failed."""
    if not rows:
        return "no Triton kernel"
    cells = [["", *_COLUMNS, "matrix", "codes"]]
    names: dict[int, str] = {}
    for before, row in zip([None, *rows], rows):
        if before is None or before.kernel != row.kernel:
            names[len(cells)] = row.kernel
        numbers = [str(getattr(row, c)) if row.ok else "-" for c in _COLUMNS]
        cells.append([f"  {row.target}", *numbers, " ".join(row.matrix) or "-", " ".join(row.codes)])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = []
    for place, line in enumerate(cells):
        lines += [names[place]] if place in names else []
        shown = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:-2], widths[1:-2]))]
        lines.append("  ".join([*shown, line[-2].ljust(widths[-2]), line[-1]]).rstrip())
    return "\n".join([*lines, *_notes(rows)])


def _notes(rows: Sequence[LowerRow]) -> list[str]:
    notes = [f"CW601 {row.kernel} on {row.target}: {note}" for row in rows for note in row.notes if row.ok]
    errors = [f"error {row.kernel} on {row.target}: {row.error}" for row in rows if not row.ok]
    cpu = any("CPU scheduling" in row.kernel for row in rows)
    about = "'Inductor, CPU scheduling': what Inductor writes where there is no GPU, not what a GPU run emits."
    lines = [*notes, *errors, *([about] if cpu else [])]
    return ["", *lines] if lines else []
