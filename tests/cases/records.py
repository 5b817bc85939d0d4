"""All records, a module a kind."""

from __future__ import annotations

import importlib

from tests.cases.harness import Record

# Records a kind: the public corpus that the suite reproduces.
KINDS = {
    "stale_tail": 8,
    "padding_pollution": 9,
    "wrong_key": 6,
    "baked_scalar": 7,
    "host_sync": 3,
    "baked_pointer": 6,
    "pool_lifetime": 6,
    "stride_assumption": 5,
    "alias_overlap": 6,
    "int_overflow": 1,
    "numerics": 2,
    "other": 4,
}


def of_kind(kind: str) -> list[Record]:
    """The records of one kind, in order."""
    return list(importlib.import_module(f"tests.cases.{kind}").RECORDS)


def all_records() -> list[Record]:
    return [record for kind in KINDS for record in of_kind(kind)]
