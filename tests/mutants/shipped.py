"""What every shipped op declares, put to the test by execution. Takes a minute: run with the mutants, by its path."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

import capwise.models.unit_stride_conv  # noqa: F401  registers ops
import capwise.ops  # noqa: F401  registers the ops
from capwise.claims import refuted
from capwise.ops import contract as c
from capwise.ops import samples

OPS = sorted((op for op in c.all_declared() if op.namespace in ("capwise", "footgun")), key=str)
LENGTHS = ([6, 3, 5], [4, 1])


def calls_of(op):
    """Calls as the contract admits them: a variant of a shipped op takes its arguments, at the strides it asks for."""
    name = op._schema.name.partition("::")[2]
    if name == "all_reduce":
        yield from (((), {"x": torch.randn(sum(lengths), 3), "group": "0"}) for lengths in LENGTHS)
        return
    names = [one.name for one in op._schema.arguments]
    for seed, lengths in enumerate(LENGTHS):
        like = name.replace("unit_stride", "ple").replace("gdn_chunked", "gdn_scan")
        call = samples.sample(like, lengths, seed=seed)
        dense = {n: call[n].contiguous() for n in c.declared(op).strides}
        yield (), {n: v for n, v in {**call, **dense}.items() if n in names}


@pytest.fixture(autouse=True, scope="module")
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Sizes of the model, the same at every call: no batch freezes another.
FIXED = {"hc_norm": ["host"], "logits_rows": ["host"]}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op._schema.name.partition("::")[2])
def test_no_claim_of_a_shipped_op_is_refuted(op):
    found = refuted(op, list(calls_of(op)), c.declared(op))
    known = FIXED.get(op._schema.name.partition("::")[2], [])
    assert [one.field for one in found] == known, [str(one) for one in found]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op._schema.name.partition("::")[2])
def test_a_contract_says_which_arguments_are_row_numbers(op):
    """With a row number for all of its values an op writes that row of its state alone, and nothing with the null one:
    the contract says so, with the number."""
    held = c.declared(op)
    for _, call in calls_of(op):
        for name, into in itertools.product(held.requests, held.state):
            given = call[name]
            if given.dtype not in (torch.int32, torch.int64) or isinstance(held.requests[name].tail, c.Last):
                continue
            written = [_rows_written(op, call, name, into, row) for row in (0, 1, 2)]
            if written == [set(), {1}, {2}]:
                assert (held.requests[name].into, held.requests[name].null) == (into, 0), name


def _rows_written(op, call, name, into, row):
    given = {**call, into: call[into].clone(), name: torch.full_like(call[name], row)}
    op(**given)
    changed = (given[into] != call[into]).flatten(1).any(1)
    return set(changed.nonzero().flatten().tolist())
