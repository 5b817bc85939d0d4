"""Opaque ops opened by sample calls, against what is declared; and declarations that a kernel contradicts."""

from __future__ import annotations

import dataclasses

import pytest
import sympy
import torch

import capwise
from capwise.backend import check_case
from capwise.models import demo_cases as cases
from capwise.opening import fit
from capwise.ops import contract as c
from capwise.ops import samples
from capwise.testing import ContractError, check_declared, open_op, opened_contracts, withheld_contracts

LENGTHS = ([12, 3, 5], [16, 4, 1, 9, 2], [9, 1], [16, 16, 2, 8])
OPS = torch.ops.capwise
STATE = torch.ops.footgun.unit_stride_short_conv_state_.default


def _samples(op, name):
    """Calls of the op by the sample of that name, less arguments that only the other op has."""
    known = {a.name for a in op._schema.arguments}
    calls = [samples.sample(name, lengths, seed=i) for i, lengths in enumerate(LENGTHS)]
    return [((), {n: v for n, v in call.items() if n in known}) for call in calls]


def _declared(op):
    return c.all_declared()[op]


def _opened(op, name):
    axes = {n: a.axes for n, a in _declared(op).arguments.items() if not n.startswith("out")}
    named = {n: a for n, a in axes.items() if any(isinstance(label, str) for label in a)}
    with withheld_contracts():
        return open_op(op, _samples(op, name), named)


def _plain(axes):
    """Sizes that no batch changes are numbers where they were read off, and left open where they were declared."""
    return dataclasses.replace(axes, axes=tuple(a if isinstance(a, str) else None for a in axes.axes))


AGREE = {
    OPS.ple_short_conv_state_.default: "ple_short_conv_state_",
    OPS.gdn_conv_state_.default: "gdn_conv_state_",
    OPS.ple_gate.default: "ple_gate",
    OPS.hc_norm.default: "hc_norm",
    OPS.hc_mix.default: "hc_mix",
    OPS.hc_write.default: "hc_write",
    OPS.moe_route.default: "moe_route",
    STATE: "ple_short_conv_state_",
}
# What was not read off the others, and why.
DIFFER = {
    # Searches that are unrolled are no loops any more: the summary does not see boundaries in them.
    OPS.ple_ngram_ids.default: "reads rows of starts_ptr other than the program's own",
    OPS.ple_short_conv.default: "reads rows of starts_ptr other than the program's own",
    OPS.gdn_conv.default: "reads rows of starts_ptr other than the program's own",
    # A program has all heads of several tokens: its rows are quotients.
    OPS.ple_table_gather.default: "is of another row of ids_ptr than the program's own",
    OPS.ple_table_gather_fp8.default: "is of another row of ids_ptr than the program's own",
    # How many tokens a program walks over is read from memory.
    OPS.gdn_scan_.default: "the loop at line",
    # The rows of a tile are what a sort says.
    OPS.moe_experts.default: "rests on a value that is not followed",
    # One launch hands rows to the next.
    OPS.w8a8_linear.default: "the grid does not run over the rows of steps_ptr",
    # One program runs over all requests, in order: no program is a padded one.
    OPS.align_state_shift_.default: "the grid does not run over the rows of sources_ptr",
    OPS.align_state_copy_.default: "the grid does not run over the rows of sources_ptr",
}


# It decides how many columns are written, and is taken for a length: more is asked for than the declaration does, which
# says, by execution, that any tail will do.
TAKEN_FOR_A_LENGTH = {"is_spec": c.Fill(0)}


@pytest.mark.parametrize("op", AGREE, ids=str)
def test_what_is_read_off_the_kernels_is_what_is_declared(op):
    found, said = _opened(op, AGREE[op]), _declared(op)
    assert not found.reasons
    mine = found.contract
    declared = {n: _plain(a) for n, a in said.arguments.items()}
    for name in declared.keys() & TAKEN_FOR_A_LENGTH:
        declared[name] = dataclasses.replace(declared[name], tail=TAKEN_FOR_A_LENGTH[name])
    assert {n: _plain(a) for n, a in mine.arguments.items()} == declared
    for name in ("locality", "strides", "host", "state", "syncs", "allocates", "hidden", "overlap"):
        assert getattr(mine, name) == getattr(said, name), name


@pytest.mark.parametrize("op", DIFFER, ids=str)
def test_what_is_not_understood_says_why(op):
    found = _opened(op, op._schema.name.split("::")[1])
    assert found.contract is None and any(DIFFER[op] in reason for reason in found.reasons)


def test_every_shipped_op_is_one_or_the_other():
    ours = {op for op in c.all_declared() if op.namespace == "capwise"}
    assert ours == {op for op in (*AGREE, *DIFFER) if op.namespace == "capwise"}


def test_an_opened_op_is_captured_and_a_closed_one_is_a_seam():
    case, op = cases.s2_golden(4, "ours"), OPS.ple_short_conv_state_.default
    opened = {op: _opened(op, AGREE[op]).contract}
    with withheld_contracts():
        closed = check_case(case)
        with opened_contracts(opened):
            result = capwise.verify(case)
    assert str(op) in {s.op for s in closed.seams}
    assert result.ok and str(op) not in {s.op for s in result.report.seams}
    assert [said for said in result.report.assumptions if str(op) in said and "sample calls" in said]


# ------------------------------------------------------------------------------------------------------- contradictions
CONTRADICTED = (OPS.ple_ngram_ids.default, OPS.gdn_scan_.default)


@pytest.mark.parametrize("op", [*AGREE, *(o for o in DIFFER if o not in CONTRADICTED)], ids=str)
def test_no_kernel_contradicts_what_is_declared(op):
    check_declared(op, _declared(op), _samples(op, AGREE.get(op) or op._schema.name.split("::")[1]))


def test_a_stride_that_the_kernel_needs_and_the_contract_leaves_open():
    """`capwise::ple_ngram_ids` steps through two of its tables by one element, which its contract does not say."""
    op = OPS.ple_ngram_ids.default
    right = dataclasses.replace(_declared(op), strides={n: c.Unit() for n in ("sizes", "offsets", "multipliers")})
    check_declared(op, right, _samples(op, "ple_ngram_ids"))
    with pytest.raises(ContractError, match=r"ple_ngram_ids.*kernel _ngram_ids_kernel \(line \d+\) needs unit stride"):
        check_declared(op, dataclasses.replace(right, strides={}), _samples(op, "ple_ngram_ids"))


def test_rows_past_the_last_boundary_are_not_known_to_be_nobodys():
    """The last program of the scan clears the rows after the last request, which nothing live needs; all that the
    analysis sees is a store to rows that a boundary names. No other store of a padded program is found."""
    op = OPS.gdn_scan_.default
    with pytest.raises(ContractError) as raised:
        check_declared(op, _declared(op), _samples(op, "gdn_scan_"))
    (found,) = str(raised.value).partition(": ")[2].split("; ")
    assert "_gdn_step_kernel writes state with query_start_loc = last: out_ptr at line" in found
    assert "written at heads*width*max(0, starts_ptr) + heads*width*trip" in found and "requests" in found


def test_a_unit_stride_kernel_that_is_declared_to_honour_strides():
    wrong = dataclasses.replace(_declared(STATE), strides={})
    with pytest.raises(ContractError, match="conv_state_.*kernel _unit_stride_state_kernel.*state_in"):
        check_declared(STATE, wrong, _samples(STATE, AGREE[STATE]))


def test_boundaries_whose_tail_is_declared_to_be_anything():
    said = _declared(STATE)
    wrong = dataclasses.replace(said.requests["query_start_loc"], tail=c.Any())
    broken = dataclasses.replace(said, requests={**said.requests, "query_start_loc": wrong})
    with pytest.raises(ContractError, match=r"_unit_stride_state_kernel .* searches query_start_loc; .* not Last\(\)"):
        check_declared(STATE, broken, _samples(STATE, AGREE[STATE]))


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
