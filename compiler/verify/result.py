"""What a verification saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from capwise.report import Report, Span


@dataclass(frozen=True)
class Place:
    """A graph node and its source line."""

    node: str
    op: str
    span: Span = Span()

    def to_dict(self) -> dict[str, Any]:
        return {"node": self.node, "op": self.op, "file": self.span.file, "line": self.span.line}

    def __str__(self) -> str:
        return f"{self.node} ({self.op})" + (f" at {self.span.file}:{self.span.line}" if self.span.file else "")


@dataclass(frozen=True)
class Mismatch:
    """One difference. what: "output i", "state name", "launch name" or "capture". kind: history (two replays that must
    agree differ), eager, capture. place: the node that it shows at, where that is known at once."""

    step: int
    what: str
    kind: str
    rows: tuple[int, ...] = ()
    expected: Any = None
    got: Any = None
    tolerance: float = 0.0
    place: Place | None = None

    def to_dict(self) -> dict[str, Any]:
        shown = {k: v for k, v in self.__dict__.items() if k != "place"}
        return {**shown, "rows": list(self.rows)}

    def __str__(self) -> str:
        rows = f" rows {list(self.rows[:8])}" if self.rows else ""
        return f"step {self.step}: {self.what} ({self.kind}){rows}: expected {self.expected}, got {self.got}"


@dataclass
class VerifyResult:
    """What a verification saw.

    ok: no mismatch. seen: what each step gave, by "output i" or "state name", if kept. history: the shortest sequence
    of batches (their numbers in the case) found that still fails; adversaries: those without which it does not; first:
    the first node, in execution order, whose values differ then. All empty where nothing failed or on a device.
    unordered: ops of the eager model whose result depends on the order of elements, since they read what they write; it
    is compared with all reads before all writes. opinion: what torch-mlir says of each captured node, where it was
    asked (`opinion.Opinion`).
    """

    case: str
    steps: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    misses: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    history: list[int] = field(default_factory=list)
    adversaries: tuple[str, ...] = ()
    first: Place | None = None
    unordered: list[Place] = field(default_factory=list)
    opinion: Any = None

    @property
    def ok(self) -> bool:
        return not self.mismatches

    def to_dict(self) -> dict[str, Any]:
        mismatches = [m.to_dict() for m in self.mismatches]
        found = {"version": 1, "case": self.case, "steps": self.steps, "ok": self.ok, "mismatches": mismatches}
        if not self.ok:
            first = self.first.to_dict() if self.first is not None else None
            found |= {"history": self.history, "adversaries": list(self.adversaries), "first": first}
        if self.unordered:
            found["unordered"] = [{k: v for k, v in place.to_dict().items() if k != "node"} for place in self.unordered]
        if self.opinion is not None:
            found["mlir"] = self.opinion.to_dict()
        return found

    def __str__(self) -> str:
        head = f"{self.case}: {self.steps} steps, " + ("replay equals eager" if self.ok else "replay differs")
        lines = [head, *[f"  {m}" for m in self.mismatches[:20]]]
        if len(self.mismatches) > 20:
            lines.append(f"  and {len(self.mismatches) - 20} more")
        for place in self.unordered:
            lines.append(f"  order of elements decides what this gives, compared with reads before writes: {place}")
        if self.first is not None:
            lines.append(f"  first differing node: {self.first}")
        if self.history:
            needs = f" (under {', '.join(self.adversaries)})" if self.adversaries else ""
            lines.append(f"  shortest history: batches {self.history}{needs}")
        if self.opinion is not None:
            lines += [f"  {line}" for line in str(self.opinion).splitlines()]
        return "\n".join(lines)
