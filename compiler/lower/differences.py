"""Where targets differ in what a kernel computes or what it costs: CW601."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from capwise.lower.row import LowerRow
from capwise.lower.targets import FNUZ, OCP, Target

_FP8_IN_TTIR = {"f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5", "f8E4M3FNUZ": "fp8e4b8", "f8E5M2FNUZ": "fp8e5b16"}
_ROUNDING = ("arith.addf", "arith.mulf", "arith.subf", "arith.divf")


def mark_differences(rows: Sequence[LowerRow]) -> list[LowerRow]:
    """The rows, each with CW601 and notes iff its target differs from its kernel's others in result or resources."""
    of: dict[str, list[LowerRow]] = {}
    for row in rows:
        of.setdefault(row.kernel, []).append(row)
    return [_mark(row, of[row.kernel]) for row in rows]


def _mark(row: LowerRow, family: Sequence[LowerRow]) -> LowerRow:
    others = [o for o in family if o.ok and o.target != row.target]
    notes = [note for find in (_failure, _fp8, _lanes, _products, _matrix, _spills) for note in find(row, others)]
    return replace(row, notes=tuple(notes), codes=("CW601",) if notes else ())


def _failure(row: LowerRow, others: Sequence[LowerRow]) -> Iterable[str]:
    if not row.ok:
        runs = f"; it does on {', '.join(o.target for o in others)}" if others else ""
        yield f"does not run on {row.target}: {row.error}{runs}"


def _fp8(row: LowerRow, others: Sequence[LowerRow]) -> Iterable[str]:
    used = {kind.lstrip("*") for kind in row.signature.values()} & (OCP | FNUZ)
    used |= {_FP8_IN_TTIR[name] for name in re.findall(r"\b(f8E\w+)", row.asm.get("ttir", "")) if name in _FP8_IN_TTIR}
    native = Target.parse(row.target).fp8
    foreign = sorted(used - native)
    if foreign:
        own = " and ".join(sorted(native)) or "no fp8"
        yield f"{', '.join(foreign)} is not this target's fp8 (it has {own}): converted in software, or refused"


def _lanes(row: LowerRow, others: Sequence[LowerRow]) -> Iterable[str]:
    narrow = [o.target for o in others if o.wave < row.wave]
    if row.ok and narrow and _rounds_across_lanes(row.asm.get("ttir", "")):
        yield f"sums over {row.wave} lanes and rounds in another order than {', '.join(narrow)}"


def _rounds_across_lanes(ttir: str) -> bool:
    """True iff some reduction or scan combines floats by an operation whose result depends on the order."""
    regions = re.findall(r'"tt\.(?:reduce|scan)".*?tt\.(?:reduce|scan)\.return', ttir, re.DOTALL)
    return any(op in region for region in regions for op in _ROUNDING)


def _precisions(row: LowerRow) -> set[str]:
    """The input precisions of the fp32 products."""
    dots = re.findall(r"tt\.dot .*xf32> \* tensor", row.asm.get("ttir", ""))
    return {(re.search(r"inputPrecision = (\w+)", dot) or ["", "ieee"])[1] for dot in dots}


def _products(row: LowerRow, others: Sequence[LowerRow]) -> Iterable[str]:
    mine = _precisions(row)
    unlike = [o.target for o in others if _precisions(o) != mine]
    if row.ok and mine and mine != {"ieee"} and unlike:
        yield f"multiplies fp32 as {', '.join(sorted(mine))}, unlike {', '.join(unlike)}; state input_precision"


def _matrix(row: LowerRow, others: Sequence[LowerRow]) -> Iterable[str]:
    using = [o.target for o in others if o.matrix]
    if row.ok and not row.matrix and using:
        yield f"no matrix instruction here; there is one on {', '.join(using)}"


def _spills(row: LowerRow, others: Sequence[LowerRow]) -> Iterable[str]:
    without = [o.target for o in others if not o.spills]
    if row.ok and row.spills and without:
        yield f"spills {row.spills} registers; none on {', '.join(without)}"
