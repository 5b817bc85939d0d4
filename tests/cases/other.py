"""Public faults of the kind "other"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
