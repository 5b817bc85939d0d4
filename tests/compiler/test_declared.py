"""Declared contracts held against kernels: what a kernel contradicts is refused, by both names; what it bears out is
not."""

import pytest
import torch

from capwise.models import kernel_cases as k
from capwise.ops import contract as c
from capwise.ops.search import request_row, rounds
from capwise.testing import ContractError, check_declared, open_op

SIZES = ([5, 3], [9, 2], [3, 4])


@torch.library.custom_op("declared_test::gather", mutates_args=())
def gather(state: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    out = state.new_empty(idx.shape[0], k.WIDTH)
    k.slot_passed_kernel[(idx.shape[0],)](state, idx, out, idx.stride(0), state.stride(0), out.stride(0), H=k.WIDTH)
    return out


@torch.library.custom_op("declared_test::write", mutates_args={"state"})
def write(x: torch.Tensor, state: torch.Tensor, idx: torch.Tensor, null: int) -> None:
    k.write_checked_kernel[(idx.shape[0],)](x, state, idx, x.stride(0), state.stride(0), NULL=null, H=k.WIDTH)


@torch.library.custom_op("declared_test::hidden_write", mutates_args=())
def hidden_write(x: torch.Tensor, state: torch.Tensor, idx: torch.Tensor, null: int) -> None:
    k.write_checked_kernel[(idx.shape[0],)](x, state, idx, x.stride(0), state.stride(0), NULL=null, H=k.WIDTH)


@torch.library.custom_op("declared_test::shift", mutates_args={"state"})
def shift(state: torch.Tensor, idx: torch.Tensor) -> None:
    k.shift_kernel[(idx.shape[0], 1)](state, idx, state.stride(0), k.WIDTH, B=8)


@torch.library.custom_op("declared_test::neighbour", mutates_args=())
def neighbour(x: torch.Tensor, ahead: int) -> torch.Tensor:
    out = torch.empty_like(x)
    k.next_kernel[(x.shape[0],)](x, out, x.shape[0], H=k.WIDTH, AHEAD=ahead)
    return out


@k.jit
def rows_kernel(starts_ptr, out_ptr, tokens, requests, ROUNDS: k.tl.constexpr, BLOCK: k.tl.constexpr):
    token = k.tl.program_id(0) * BLOCK + k.tl.arange(0, BLOCK)
    row = request_row(token, starts_ptr, 1, requests, ROUNDS)
    k.tl.store(out_ptr + token, row, mask=token < tokens)


@torch.library.custom_op("declared_test::rows", mutates_args=())
def rows(x: torch.Tensor, starts: torch.Tensor, fewer: int) -> torch.Tensor:
    requests = starts.shape[0] - 1
    out = torch.empty(x.shape[0], dtype=torch.int32)
    settled = rounds(requests) - fewer
    rows_kernel[(-(-x.shape[0] // 2),)](starts, out, x.shape[0], requests, ROUNDS=settled, BLOCK=2)
    return out


def calls(**fixed):
    out = []
    for tokens, requests in SIZES:
        starts = torch.linspace(0, tokens, requests + 1).int()
        made = {"x": torch.zeros(requests, k.WIDTH), "state": torch.zeros(k.SLOTS, k.WIDTH), "starts": starts,
                "idx": torch.ones(requests, dtype=torch.int32)}  # fmt: skip
        out.append({**made, **fixed})
    return out


def samples(*names, tokens=False, **fixed):
    made = calls(**fixed)
    if tokens:
        made = [{**one, "x": torch.zeros(size, k.WIDTH)} for one, (size, _) in zip(made, SIZES)]
    return [((), {n: one[n] for n in (*names, *fixed)}) for one in made]


STATE = c.Axes((None, None), write=True)
X = c.PerRequest("R", None)


def contract(rows, requests=(), **more):
    """These kernels take their arguments to be dense."""
    requests = dict(requests)
    return c.Contract(rows=rows, requests=requests, strides=dict.fromkeys([*rows, *requests], c.Contiguous()), **more)


def gathers(tail):
    return contract({"state": c.Axes((None, None))}, {"idx": c.PerRequest("R", tail=tail)})


def writes(tail):
    slots = c.Slots("R", into="state", null=-1, tail=tail)
    return contract({"state": STATE}, {"idx": slots, "x": X}, state=("state",))


def shifts(overlap):
    slots = c.Slots("R", into="state", null=0)
    return contract({"state": STATE}, {"idx": slots}, state=("state",), overlap=overlap)


def neighbours(locality):
    return contract({"x": c.Rows("T", None)}, locality=locality)


OPS = torch.ops.declared_test
IDX = samples("state", "idx")
NULL = samples("x", "state", "idx", null=-1)
# op, its calls, a contract that the kernel contradicts, one that it bears out, and what is said of the first.
PAIRS = {
    "a row number whose tail may be anything": (
        OPS.gather, IDX, gathers(c.Any()), gathers(c.Fill(0)), r"slot_passed_kernel .*any value of idx for a row of"
    ),
    "a null slot that the kernel does not know": (
        OPS.write, NULL, writes(c.Fill(0)), writes(c.Fill(-1)), r"write_checked_kernel writes state with idx = 0"
    ),
    "a launch that reads what it writes": (
        OPS.shift, IDX, shifts(False), shifts(True), r"shift_kernel .*reads and writes state out of order"
    ),
    "rows that are not alone": (
        OPS.neighbour, samples("x", tokens=True, ahead=-1), neighbours("row"), neighbours("prefix"),
        r"next_kernel reads other rows than its own; the contract says row by row"
    ),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_what_a_kernel_contradicts_is_refused_and_what_it_bears_out_is_not(pair):
    packet, made, wrong, right, said = PAIRS[pair]
    check_declared(packet.default, right, made)
    with pytest.raises(ContractError, match=rf"contract of {packet.default}: .*{said}"):
        check_declared(packet.default, wrong, made)


def test_a_write_that_mutates_args_leaves_out():
    check_declared(OPS.write.default, writes(c.Fill(-1)), NULL)
    with pytest.raises(ContractError, match=r"write_checked_kernel \(line \d+\) writes state, which mutates_args"):
        check_declared(OPS.hidden_write.default, writes(c.Fill(-1)), NULL)


@pytest.mark.parametrize("fewer", [0, 1])
def test_a_search_with_too_few_rounds_for_its_samples_gives_no_contract(fewer):
    made = samples("x", "starts", tokens=True, fewer=fewer)
    found = open_op(OPS.rows.default, made, {"x": ("T", None), "starts": ("R+1",)})
    if fewer:
        assert found.contract is None and any("has 2 rounds, too few for 4 rows" in reason for reason in found.reasons)
    else:
        assert not found.reasons and isinstance(found.contract.requests["starts"].tail, c.Last)
