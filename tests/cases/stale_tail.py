"""Public faults of the kind "stale tail"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
