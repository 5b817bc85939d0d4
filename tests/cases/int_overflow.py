"""Public faults of the kind "int overflow"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
