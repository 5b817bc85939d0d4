"""What every shipped op declares, put to the test by execution. Takes a minute: run with the mutants, by its path."""

from __future__ import annotations

import itertools
from dataclasses import replace

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


# What persists, and is found by row numbers.
POOLS = {axes.into for op in OPS for axes in c.declared(op).arguments.values()} - {None}
# Rows that are looked at: a null one, and two that lie on no null page.
ROWS = (0, 5, 9)
# On a CPU the reference runs, which asks the host for nothing.
ON_DEVICE = {"gdn_chunked_": {"syncs"}}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op._schema.name.partition("::")[2])
def test_no_claim_of_a_shipped_op_is_weaker_than_samples_ask_for(op):
    held, name = c.declared(op), op._schema.name.partition("::")[2]
    calls = list(calls_of(op))
    stronger = {flag: replace(held, **{flag: False}) for flag in ("syncs", "hidden", "overlap") if getattr(held, flag)}
    results = [axes for n, axes in held.rows.items() if n.startswith("out")]
    if any("T" in axes.axes for axes in results):
        weaker = c.LOCALITIES[: c.LOCALITIES.index(held.locality)]
        stronger |= {f"locality {one}": replace(held, locality=one) for one in weaker if one in ("row", "segment")}
    if all(isinstance(axes.tail, c.Any) for axes in results):
        stronger |= {
            f"tail of {n}": replace(held, rows={**held.rows, n: replace(axes, tail=c.Any())})
            for n, axes in held.rows.items()
            if not isinstance(axes.tail, c.Any)
        }
    known = {one.field for one in refuted(op, calls, held)}
    for what, one in stronger.items():
        assert what in ON_DEVICE.get(name, ()) or {f.field for f in refuted(op, calls, one)} - known, what


@pytest.mark.parametrize("op", OPS, ids=lambda op: op._schema.name.partition("::")[2])
def test_a_result_is_written(op):
    outs = [n for n in c.declared(op).arguments if n not in {a.name for a in op._schema.arguments}]
    assert all(c.declared(op).arguments[n].write for n in outs)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op._schema.name.partition("::")[2])
def test_a_contract_says_which_arguments_are_row_numbers(op):
    """With a row number for all of its values an op writes, or sees, that row of a tensor alone, and no row with the
    null one: the contract says so, with the number. A row may span the first dimensions."""
    held = c.declared(op)
    for _, call in calls_of(op):
        pools = [n for n in call if n in POOLS and n not in held.requests]
        for (name, axes), into, lead in itertools.product(held.arguments.items(), pools, (1, 2)):
            given = call.get(name)
            if given is None or given.dtype not in (torch.int32, torch.int64) or call[into].dim() <= lead:
                continue
            if isinstance(axes.tail, c.Last):
                continue
            for touched in (_rows_written, _rows_seen):
                rows = {n: touched(op, {**call, name: torch.full_like(given, n)}, into, lead) for n in (-1, *ROWS)}
                nulls = [n for n in (0, -1) if not rows[n]]
                if all(rows[n] == {n} for n in ROWS[1:]) and nulls:
                    assert axes.into in POOLS and axes.null in nulls, name


def _results(op, call):
    mine = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    out = op(**mine)
    outs = out if isinstance(out, tuple) else () if out is None else (out,)
    return mine, [*outs, *(mine[n] for n in c.declared(op).state)]


def _rows_written(op, call, into, lead):
    after, _ = _results(op, call)
    changed = (after[into] != call[into]).flatten(lead).any(lead).flatten()
    return set(changed.nonzero().flatten().tolist())


def _rows_seen(op, call, into, lead):
    """Of ROWS, those whose content shows in results and in other rows."""
    _, base = _results(op, call)
    seen = set()
    for row in ROWS:
        other = call[into].clone()
        other.flatten(0, lead - 1)[row] = (other.flatten(0, lead - 1)[row].float() + 1).to(other.dtype)
        _, got = _results(op, {**call, into: other})
        kept = [g.flatten(0, lead - 1).clone() if g.shape == other.shape else g.flatten() for g in got]
        want = [b.flatten(0, lead - 1).clone() if b.shape == other.shape else b.flatten() for b in base]
        for g, w in zip(kept, want):
            if g.dim() > 1:
                g[row] = w[row]
        seen |= {row} if any(not torch.equal(g, w) for g, w in zip(kept, want)) else set()
    return seen
