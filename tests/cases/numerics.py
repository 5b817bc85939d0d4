"""Public faults of the kind "numerics across platforms"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
