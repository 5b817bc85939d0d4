"""Opaque ops opened by sample calls, against what is declared; and declarations that a kernel contradicts."""

from __future__ import annotations

import dataclasses

import pytest
import sympy
import torch

import capwise
from capwise.backend import check_case
from capwise.declared import labels_of
from capwise.models import demo_cases as cases
from capwise.opening import fit
from capwise.ops import contract as c
from capwise.ops import samples
from capwise.testing import ContractError, check_declared, open_op, opened_contracts, withheld_contracts

LENGTHS = ([12, 3, 5], [16, 4, 1, 9, 2], [9, 1], [16, 16, 2, 8])
# For tiles of many tokens.
MANY = ([120, 30, 50], [160, 40, 10, 90, 20], [90, 1], [160, 160, 20, 80])
LONG = dict.fromkeys(("ple_predecessors", "token_requests", "slot_mapping", "w8a8_linear"), MANY)
SIZES = dataclasses.replace(samples.SMALL, attention=dataclasses.replace(samples.SMALL.attention, table=100, pages=801))
OPS = torch.ops.capwise
STATE = torch.ops.footgun.unit_stride_short_conv_state_.default
# Ops that take the calls of another.
BORROWED = {STATE: "ple_short_conv_state_"}


def _samples(op):
    """Calls of the op by its sample, less arguments that only the op it is borrowed from has."""
    name = BORROWED.get(op) or op._schema.name.split("::")[1]
    known = {a.name for a in op._schema.arguments}
    sizes = SIZES if name in LONG else samples.SMALL
    calls = [samples.sample(name, lengths, sizes, seed=i) for i, lengths in enumerate(LONG.get(name, LENGTHS))]
    return [((), {n: v for n, v in call.items() if n in known}) for call in calls]


def _declared(op):
    return c.all_declared()[op]


def _opened(op):
    calls = _samples(op)
    axes = {n: a for n, a in _declared(op).arguments.items() if n in calls[0][1]}
    named = {n: labels_of(a, n, calls) for n, a in axes.items() if any(isinstance(label, str) for label in a.axes)}
    with withheld_contracts():
        return open_op(op, calls, named)


FIELDS = ("locality", "strides", "host", "state", "syncs", "allocates", "hidden", "overlap", "offset_bits")


def _fields(contract):
    """What a contract says, field by field. Sizes that no batch changes are numbers where they were read off and are
    left open where they were declared; what the tail of a result holds is a promise, which no kernel is asked for."""
    found = {name: getattr(contract, name) for name in FIELDS}
    for name, axes in contract.arguments.items():
        labels = tuple(a if isinstance(a, str) else None for a in axes.axes)
        tail = c.Any() if name.startswith("out") else axes.tail
        found[name] = dataclasses.replace(axes, axes=labels, tail=tail)
    return found


COLUMNS = {"offset_bits": (32, "columns times their stride in 32 bits: enough for rows below 2**31 elements")}
# Ops whose contracts are read off their kernels, with every field that differs from the declared one: what was read
# off, and why it is not what was declared.
DERIVED: dict[torch._ops.OpOverload, dict[str, tuple[object, str]]] = {
    OPS.ple_ngram_ids.default: {},
    OPS.ple_predecessors.default: {},
    OPS.ple_ngram_hash.default: {},
    OPS.ple_table_gather.default: {},
    OPS.ple_table_gather_fp8.default: {},
    OPS.ple_gate.default: COLUMNS,
    OPS.hc_norm.default: COLUMNS,
    OPS.hc_mix.default: COLUMNS,
    OPS.hc_write.default: COLUMNS,
    OPS.moe_route.default: COLUMNS,
    OPS.mrope.default: COLUMNS,
    OPS.mrope_kv_write_.default: COLUMNS
    | {
        "slot_mapping": (
            c.Slots("T", into="kv_cache", null=0),
            "slots of the null page are skipped as well as negative ones, and 0 is taken where it will do",
        )
    },
    OPS.w8a8_linear.default: COLUMNS,
    OPS.qsa_commit_.default: COLUMNS | {"locality": ("row", "a token goes to the place of its own position")},
    OPS.ple_short_conv.default: {},
    OPS.ple_short_conv_state_.default: {},
    OPS.gdn_conv.default: {},
    OPS.gdn_conv_state_.default: {},
    OPS.logits_rows.default: {},
    OPS.token_requests.default: {"like": (None, "no kernel is given it: its extent is all that is used")},
    OPS.align_state_shift_.default: {
        "locality": ("row", "a request moves by its own numbers; declared wider: a source may be a destination"),
    },
    OPS.align_state_copy_.default: {
        "locality": ("row", "as for the shift"),
        "state": (c.Axes((None, None), write=True), "the launcher flattens what stands in a slot to one dimension"),
    },
    STATE: {},
}
NO_KERNEL = "its body launches no Triton kernel"
# What is not read off the others, and why.
UNKNOWN = {
    # What the branch that any token takes reads is not bounded by that token's own condition.
    OPS.qsa_compress_.default: "has no bound",
    # Which request comes next, how many blocks were chosen, and where one is stored come of reductions and scans.
    OPS.qsa_scores.default: "rests on a value that is not followed",
    OPS.sparse_attention.default: "rests on a value that is not followed",
    OPS.top_blocks.default: "rests on a value that is not followed",
    # How many tokens a program walks over is read from memory.
    OPS.gdn_scan_.default: "the loop at line",
    # The rows of a tile are what a sort says.
    OPS.moe_experts.default: "rests on a value that is not followed",
    # A request number is told from one past the live ones by a count that a recording freezes: that no live token has
    # one of those is known of its caller only.
    OPS.slot_mapping.default: "requests must not be frozen",
}


@pytest.mark.parametrize("op", DERIVED, ids=str)
def test_what_is_read_off_the_kernels_is_what_is_declared(op):
    found = _opened(op)
    assert not found.reasons
    mine, said = _fields(found.contract), _fields(_declared(op))
    differ = {n: mine.get(n) for n in mine.keys() | said.keys() if mine.get(n) != said.get(n)}
    assert differ == {name: value for name, (value, _) in DERIVED[op].items()}


@pytest.mark.parametrize("op", UNKNOWN, ids=str)
def test_what_is_not_understood_says_why(op):
    found = _opened(op)
    assert found.contract is None and any(UNKNOWN[op] in reason for reason in found.reasons)


def test_every_shipped_op_is_one_or_the_other():
    # A collective is torch's own, long chunks are another library's: they launch nothing that could be opened.
    others = {torch.ops.capwise.all_reduce.default, torch.ops.capwise.gdn_chunked_.default}
    ours = {op for op in c.all_declared() if op.namespace == "capwise"} - others
    assert ours == {op for op in (*DERIVED, *UNKNOWN) if op.namespace == "capwise"}


def test_an_opened_op_is_captured_and_a_closed_one_is_a_seam():
    case, op = cases.s2_golden(4, "ours"), OPS.ple_short_conv_state_.default
    opened = {op: _opened(op).contract}
    with withheld_contracts():
        closed = check_case(case)
        with opened_contracts(opened):
            result = capwise.verify(case)
    assert str(op) in {s.op for s in closed.seams}
    assert result.ok and str(op) not in {s.op for s in result.report.seams}
    assert [said for said in result.report.assumptions if str(op) in said and "sample calls" in said]


# ------------------------------------------------------------------------------------------------------- contradictions
READABLE = [*DERIVED, *(op for op, why in UNKNOWN.items() if why != NO_KERNEL and op != OPS.gdn_scan_.default)]


@pytest.mark.parametrize("op", READABLE, ids=str)
def test_no_kernel_contradicts_what_is_declared(op):
    check_declared(op, _declared(op), _samples(op))


def test_rows_past_the_last_boundary_are_not_known_to_be_nobodys():
    """The last program of the scan clears the rows after the last request, which nothing live needs; all that the
    analysis sees is a store to rows that a boundary names. No other store of a padded program is found."""
    op = OPS.gdn_scan_.default
    with pytest.raises(ContractError) as raised:
        check_declared(op, _declared(op), _samples(op))
    (found,) = str(raised.value).partition(": ")[2].split("; ")
    assert "_gdn_step_kernel writes state with query_start_loc = last: out_ptr at line" in found
    assert "written at heads*width*max(0, starts_ptr) + heads*width*trip" in found and "requests" in found


def test_a_unit_stride_kernel_that_is_declared_to_honour_strides():
    wrong = dataclasses.replace(_declared(STATE), strides={})
    with pytest.raises(ContractError, match="conv_state_.*kernel _unit_stride_state_kernel.*state_in"):
        check_declared(STATE, wrong, _samples(STATE))


def test_boundaries_whose_tail_is_declared_to_be_anything():
    said = _declared(STATE)
    wrong = dataclasses.replace(said.requests["query_start_loc"], tail=c.Any())
    broken = dataclasses.replace(said, requests={**said.requests, "query_start_loc": wrong})
    with pytest.raises(ContractError, match=r"_unit_stride_state_kernel .* searches query_start_loc; .* not Last\(\)"):
        check_declared(STATE, broken, _samples(STATE))


def test_an_op_without_a_body_is_not_opened():
    with pytest.raises(ValueError, match="expected an op with a Python body"):
        open_op(torch.ops.aten.add.Tensor, [], {})


# -------------------------------------------------------------------------------------------------------------- fitting
def test_numbers_are_fitted_to_the_one_extent_that_explains_them():
    extents = [{"T": 17, "R": 3}, {"T": 36, "R": 5}, {"T": 41, "R": 2}]
    t, r = (sympy.Symbol(n, integer=True, positive=True) for n in "TR")
    assert fit([4, 4, 4], extents) == 4
    assert fit([34, 72, 82], extents) == 2 * t
    assert fit([4, 6, 3], extents) == r + 1
    assert fit([2, 3, 3], extents).free_symbols == {t}
    assert fit([7, 1, 5], extents) is None
