"""What every shipped op declares, put to the test by execution. Takes a minute: run with the mutants, by its path."""

from __future__ import annotations

import pytest

import capwise.ops  # noqa: F401  registers the ops
from capwise.claims import refuted
from capwise.ops import contract as c
from capwise.ops import samples

OPS = sorted((op for op in c.all_declared() if op.namespace == "capwise"), key=str)
LENGTHS = ([6, 3, 5], [4, 1])


def calls_of(op):
    name = op._schema.name.partition("::")[2]
    return [((), samples.sample(name, lengths, seed=i)) for i, lengths in enumerate(LENGTHS)]


# Sizes of the model, the same at every call: no batch freezes another.
FIXED = {"hc_norm": ["host"], "logits_rows": ["host"]}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op._schema.name.partition("::")[2])
def test_no_claim_of_a_shipped_op_is_refuted(op):
    found = refuted(op, calls_of(op), c.declared(op))
    known = FIXED.get(op._schema.name.partition("::")[2], [])
    assert [one.field for one in found] == known, [str(one) for one in found]
