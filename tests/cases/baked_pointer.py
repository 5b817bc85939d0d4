"""Public faults of the kind "baked pointer or address"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
