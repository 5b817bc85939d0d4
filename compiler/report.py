"""Diagnostics and reports: what was found, what was done about it, and on what evidence.

`Report` is the one thing that every stage adds to and every renderer reads. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Verdict = Literal["proved", "refuted", "assumed"]
Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Rule:
    """One row of the code registry: what a code means and its repairs, cheapest first."""

    code: str
    title: str
    repairs: tuple[str, ...]


_RULES = (
    Rule("CW001", "op has no contract", ("seam", "declare or probe a contract")),
    Rule("CW002", "op syncs with the host, or its output size depends on data", ("seam",)),
    Rule("CW003", "op reads hidden inputs", ("seam", "lift to an argument")),
    Rule(
        "CW101",
        "launch, size or loop bound depends on a symbol outside the key",
        ("fill to capacity", "device scalar", "seam", "widen key"),
    ),
    Rule("CW102", "host value frozen at capture", ("device scalar", "key", "seam")),
    Rule("CW103", "work skipped or latched at capture", ("seam", "refresh before replay")),
    Rule("CW104", "random state frozen", ("registered generator", "seam")),
    Rule("CW201", "captured read goes past the live extent: stale tail", ("fill",)),
    Rule("CW202", "padded rows reach live rows or owned state", ("mask or neutral fill", "seam")),
    Rule("CW203", "two consumers need different fills of one buffer", ("second staged copy",)),
    Rule("CW204", "padded rows write persistent state", ("null slot fill", "masked write", "seam")),
    Rule("CW205", "capacity smaller than the padded bucket", ("larger buffer", "cap the bucket", "error")),
    Rule("CW206", "padded rows may index out of range", ("clamp", "in-range fill", "seam")),
    Rule("CW301", "address not stable", ("stage into a static buffer",)),
    Rule("CW302", "optional input absent on some steps", ("fill default each step",)),
    Rule("CW303", "pool memory used after another graph may reuse it", ("persistent copy", "keep alive")),
    Rule("CW304", "read and write of one launch overlap", ("temporary", "ordered kernel", "disjointness guard")),
    Rule("CW305", "undeclared mutation, or a mutation lost through a re-laid-out view", ("copy back", "forbid")),
    Rule("CW306", "host buffer rewritten while a previous step may still read it", ("staging ring with events",)),
    Rule(
        "CW401",
        "consumer assumes a stride the producer does not promise",
        ("pass the stride", "contiguous copy at the border"),
    ),
    Rule("CW402", "strides at replay differ from capture", ("guard: contiguous copy or eager",)),
    Rule("CW403", "offset may overflow 32 bits", ("64-bit offset", "bound guard")),
    Rule("CW501", "piece too small to pay for a launch", ("merge", "run eagerly")),
    Rule("CW502", "one removable seam splits two pieces", ("what would remove it",)),
    Rule("CW601", "target cannot run this kernel the same way", ("per-target variant", "refuse")),
    Rule("CW901", "a pass broke a fact it does not give", ("compiler bug",)),
)
# Matters of cost, not of what is right.
ADVICE = ("CW501", "CW502")
RULES: dict[str, Rule] = {rule.code: rule for rule in _RULES}


@dataclass(frozen=True)
class Span:
    """A place in the user's source: 1-based line, 1-based column, exclusive end column; 0 is unknown."""

    file: str = ""
    line: int = 0
    column: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file or "<unknown>", str(self.line), *([str(self.column)] if self.column else [])])


@dataclass(frozen=True)
class PathStep:
    """One step of the way from source to sink: what the value is there, and where it was written."""

    what: str
    span: Span = Span()

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "file": self.span.file, "line": self.span.line}


@dataclass(frozen=True)
class Diagnostic:
    """One hazard: a place where replay could differ from eager.

    `message` is the title (a fact about the user's program), `label` the local reason shown at the caret, `notes`
    evidence with numbers, `help` at most two remedies, `candidates` the possible repairs with their cost in
    launches a step, `repair` the one that was taken or None.
    """

    code: str
    verdict: Verdict
    node: str
    message: str
    label: str = ""
    span: Span = Span()
    repair: str | None = None
    path: tuple[PathStep, ...] = ()
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    candidates: tuple[tuple[str, float], ...] = ()
    evidence: tuple[tuple[str, str], ...] = ()
    op: str = ""

    def __post_init__(self) -> None:
        if self.code not in RULES:
            raise ValueError(f"code: expected one of {', '.join(RULES)}; got {self.code!r}")

    @property
    def file(self) -> str:
        return self.span.file

    @property
    def line(self) -> int:
        return self.span.line

    @property
    def column(self) -> int:
        return self.span.column

    @property
    def severity(self) -> Severity:
        """error: refuted and not repaired; warning: assumed, or repaired by a seam; note: repaired in place, advice."""
        if self.code in ADVICE:
            return "note"
        if self.repair is None:
            return "error" if self.verdict == "refuted" else "warning"
        return "warning" if self.repair == "seam" else "note"

    def repaired(self, repair: str) -> Diagnostic:
        return replace(self, repair=repair)

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "verdict": self.verdict,
            "severity": self.severity,
            "message": self.message,
            "label": self.label,
            "node": self.node,
            "op": self.op,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_column": self.span.end_column,
            "repair": self.repair,
            "path": [step.to_dict() for step in self.path],
            "notes": list(self.notes),
            "help": list(self.help),
            "candidates": [{"repair": name, "cost": cost} for name, cost in self.candidates],
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True)
class SeamRow:
    """An op that runs eagerly between pieces, and the code that put it there."""

    op: str
    code: str
    file: str
    line: int

    def to_dict(self) -> dict[str, Any]:
        return {"op": self.op, "code": self.code, "file": self.file, "line": self.line}


@dataclass
class Report:
    """What capwise found in one case, over all its programs. Iterates over its diagnostics, worst first."""

    case: str = ""
    pieces: int = 0
    seams: list[SeamRow] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    fills: int = 0
    copies: int = 0
    programs: list[str] = field(default_factory=list)
    timings: list[tuple[str, float]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(sorted(self.diagnostics, key=lambda d: (SEVERITIES.index(d.severity), d.file, d.line, d.code)))

    def __len__(self) -> int:
        return len(self.diagnostics)

    def add(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def count(self, severity: Severity) -> int:
        return sum(d.severity == severity for d in self.diagnostics)

    def codes(self) -> set[str]:
        return {d.code for d in self.diagnostics}

    def merge(self, other: Report) -> None:
        """Adds another program's findings; equal findings are kept once."""
        self.pieces = max(self.pieces, other.pieces)
        self.fills = max(self.fills, other.fills)
        self.copies = max(self.copies, other.copies)
        for name in ("seams", "diagnostics", "assumptions"):
            mine = getattr(self, name)
            mine.extend(item for item in getattr(other, name) if item not in mine)
        self.programs.extend(other.programs)
        self.timings.extend(other.timings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "case": self.case,
            "pieces": self.pieces,
            "seams": [seam.to_dict() for seam in self.seams],
            "diagnostics": [d.to_dict() for d in self],
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        from capwise.render import render

        return render(self, "full")
