"""Summary against interpreter: does every proved offset equal the address that is touched?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from capwise.kernel_access.access import Access
from capwise.kernel_access.evaluate import Memory, NotFollowed, Numbers, bound, evaluate
from capwise.kernel_access.follow import Followed
from capwise.kernel_access.interpret import Touch, record
from capwise.kernel_access.summary import ArgumentAccess, KernelSummary


@dataclass(frozen=True)
class Finding:
    """One argument: equal (same elements), enclosed (conditions are not followed; touched elements lie within),
    contradiction, or skipped, with the detail. `touched` counts elements over all programs."""

    arg: str
    outcome: Literal["equal", "enclosed", "contradiction", "skipped"]
    touched: int
    detail: str = ""


def compare(
    kernel: Any,
    summary: KernelSummary,
    grid: Sequence[int],
    scalars: Mapping[str, float],
    memory: Memory,
    programs: Sequence[tuple[int, int, int]],
) -> list[Finding]:
    """Run the programs in the interpreter and compare every proved argument with the summary's own addresses.

    Raises: what the interpreter raises on kernels it cannot run."""
    seen: dict[str, int] = {}

    def watched(arg: str, where: Numbers) -> Numbers:
        values = memory(arg, where)
        seen[arg] = max(seen.get(arg, 0), int(np.max(values, initial=0)))
        return values

    touches = record(kernel, summary.signature, summary.constexprs, grid, scalars, watched, programs)
    whole = {name: int(value) for name, value in scalars.items() if float(value).is_integer()}
    judge = _Judge(summary, grid, whole, memory, touches, seen)
    return [judge.argument(row, programs) for row in summary.arguments if row.verdict == "proved"]


@dataclass
class _Judge:
    summary: KernelSummary
    grid: Sequence[int]
    scalars: Mapping[str, int]
    memory: Memory
    touches: Sequence[Touch]
    largest: Mapping[str, int]

    def argument(self, row: ArgumentAccess, programs: Sequence[tuple[int, int, int]]) -> Finding:
        """Every program and kind of access of one argument."""
        total = 0
        try:
            for pid in programs:
                for kind in row.access:
                    expected = self._expected(row, kind, pid)
                    got = self._got(row.arg, kind, pid)
                    total += got.size
                    wrong = self._wrong(row, kind, expected, got)
                    if wrong:
                        return Finding(row.arg, "contradiction", total, f"{kind} of program {pid}: {wrong}")
        except NotFollowed as error:
            return Finding(row.arg, "skipped", total, str(error))
        return Finding(row.arg, "equal" if row.exact else "enclosed", total)

    def _wrong(self, row: ArgumentAccess, kind: str, expected: Numbers, got: Numbers) -> str:
        extra = np.setdiff1d(got, expected)
        if extra.size:
            return f"touches {extra[:4].tolist()}, which the summary does not have"
        missing = np.setdiff1d(expected, got)
        if row.exact and missing.size:
            return f"does not touch {missing[:4].tolist()}, which the summary has"
        limit = self._limit(row, kind)
        if got.size and limit is not None and int(got.max()) >= limit:
            return f"touches {int(got.max())}, past the extent {limit}"
        return ""

    def _limit(self, row: ArgumentAccess, kind: str) -> int | None:
        highs = [h for a, h in zip(row.accesses, row.extents, strict=True) if a.kind == kind and h is not None]
        try:
            return max(bound(h, self.grid, self.scalars, self.largest, self.summary.loops) for h in highs)
        except (KeyError, ValueError):
            return None

    def _expected(self, row: ArgumentAccess, kind: str, pid: tuple[int, int, int]) -> Numbers:
        written = frozenset(a.arg for a in self.summary.accesses if a.kind != "load" and a.arg)
        follow = Followed(self.summary.loops, written)
        parts = [self._one(a, pid, follow) for a in row.accesses if a.kind == kind]
        return np.unique(np.concatenate(parts))

    def _one(self, access: Access, pid: tuple[int, int, int], follow: Followed) -> Numbers:
        keep = lambda condition: follow.nodes(condition.leaves)
        return evaluate(access, pid, self.grid, self.scalars, self.memory, keep)

    def _got(self, arg: str, kind: str, pid: tuple[int, int, int]) -> Numbers:
        parts = [t.offsets for t in self.touches if t.arg == arg and t.kind == kind and t.pid == pid]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
