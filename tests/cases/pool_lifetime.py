"""Public faults of the kind "pool lifetime"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
