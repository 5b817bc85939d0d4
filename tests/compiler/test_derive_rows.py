"""Which rows a kernel's accesses are of: quotients, lanes, a dimension that is not the first; and padded tokens that a
search finds nothing for. Each kernel has a twin that differs in one place and is not understood, or not proved."""

import pytest
import torch

from capwise.models import kernel_cases as k
from capwise.ops import contract as c
from capwise.ops.search import request_row, rounds
from capwise.testing import open_op

tl = k.tl
HEADS, SLOTS, WIDTH = 3, 9, 4
EXTENTS = ([20, 3], [9, 5], [12, 2], [31, 4])


@k.jit
def quotient_kernel(x_ptr, out_ptr, tokens, heads, OFF: tl.constexpr, B: tl.constexpr):
    place = tl.program_id(0) * B + tl.arange(0, B)
    token, head = (place + OFF) // heads, (place + OFF) % heads
    x = tl.load(x_ptr + token * heads + head, mask=token < tokens, other=0.0)
    tl.store(out_ptr + place, x, mask=place < tokens * heads)


@torch.library.custom_op("rows_test::quotient", mutates_args=())
def quotient(x: torch.Tensor, off: int) -> torch.Tensor:
    out = torch.empty_like(x)
    quotient_kernel[(-(-x.numel() // 4),)](x, out, x.shape[0], HEADS, OFF=off, B=4)
    return out


@k.jit
def lanes_kernel(
    x_ptr, state_ptr, idx_ptr, requests, stride, x_stride, NULL: tl.constexpr, R: tl.constexpr, W: tl.constexpr
):
    row = tl.arange(0, R)
    slot = tl.load(idx_ptr + row, mask=row < requests, other=0)
    column = tl.arange(0, W)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_stride + column, mask=(row < requests)[:, None], other=0.0)
    writes = ((slot > NULL) & (row < requests))[:, None]
    tl.store(state_ptr + slot[:, None].to(tl.int64) * stride + column, x, mask=writes)


@torch.library.custom_op("rows_test::lanes", mutates_args={"state"})
def lanes(x: torch.Tensor, state: torch.Tensor, idx: torch.Tensor, null: int) -> None:
    requests = idx.shape[0]
    block = 1 << (requests - 1).bit_length()
    lanes_kernel[(1,)](x, state, idx, requests, state.stride(0), x.stride(0), NULL=null, R=block, W=WIDTH)


@k.jit
def second_kernel(x_ptr, out_ptr, tokens, axis_stride, token_stride, AHEAD: tl.constexpr, B: tl.constexpr):
    token = tl.program_id(0) * B + tl.arange(0, B)
    at = (token + AHEAD)[:, None] * token_stride + tl.arange(0, 2)[None, :] * axis_stride
    x = tl.load(x_ptr + at, mask=(token + AHEAD < tokens)[:, None], other=0)
    tl.store(out_ptr + token, tl.sum(x, 1), mask=token < tokens)


@torch.library.custom_op("rows_test::second", mutates_args=())
def second(x: torch.Tensor, ahead: int) -> torch.Tensor:
    out = x.new_empty(x.shape[1])
    second_kernel[(-(-x.shape[1] // 4),)](x, out, x.shape[1], *x.stride(), AHEAD=ahead, B=4)
    return out


@k.jit
def found_kernel(
    starts_ptr, idx_ptr, state_ptr, requests, stride, CHECK: tl.constexpr, ROUNDS: tl.constexpr, B: tl.constexpr
):
    token = tl.program_id(0) * B + tl.arange(0, B)
    row = request_row(token, starts_ptr, 1, requests, ROUNDS).to(tl.int64)
    slot = tl.load(idx_ptr + row).to(tl.int64)
    start = tl.load(starts_ptr + row)
    end = tl.load(starts_ptr + row + 1)
    mine = (slot > 0) & (token >= start)
    if CHECK:
        mine = mine & (token < end)
    tl.store(state_ptr + slot * stride, token, mask=mine)


@torch.library.custom_op("rows_test::found", mutates_args={"state"})
def found(x: torch.Tensor, starts: torch.Tensor, idx: torch.Tensor, state: torch.Tensor, check: bool) -> None:
    requests = idx.shape[0]
    grid = (-(-x.shape[0] // 4),)
    found_kernel[grid](starts, idx, state, requests, state.stride(0), CHECK=check, ROUNDS=rounds(requests), B=4)


AXES = {"x": ("T", None), "idx": ("R",), "starts": ("R+1",)}
OPS = torch.ops.rows_test


def opened(packet, axes=AXES, **more):
    calls = []
    for tokens, requests in EXTENTS:
        starts, idx = torch.linspace(0, tokens, requests + 1).int(), torch.ones(requests, dtype=torch.int32)
        made = {"x": torch.zeros(tokens, HEADS), "state": torch.zeros(SLOTS, WIDTH), "starts": starts, "idx": idx}
        made |= {n: value(tokens, requests) if callable(value) else value for n, value in more.items()}
        names = {a.name for a in packet.default._schema.arguments}
        calls.append(((), {n: v for n, v in made.items() if n in names}))
    return open_op(packet.default, calls, {n: a for n, a in axes.items() if n in calls[0][1]})


def test_an_element_is_of_the_row_of_its_group():
    known = opened(OPS.quotient, off=0)
    assert not known.reasons and known.contract.locality == "row"
    shifted = opened(OPS.quotient, off=1)
    assert any("of another row of x_ptr" in reason for reason in shifted.reasons)


def test_rows_may_be_lanes_of_one_program():
    x = {"x": lambda tokens, requests: torch.zeros(requests, WIDTH)}
    axes = {**AXES, "x": ("R", None)}
    known = opened(OPS.lanes, axes, null=0, **x)
    assert not known.reasons
    assert known.contract.requests["idx"] == c.Axes(("R",), c.Fill(0), into="state", null=0)
    # Padded lanes may hold any slot but a negative one: no value of theirs is told apart that the kernel skips.
    unchecked = opened(OPS.lanes, axes, null=-9, **x)
    assert any("padded programs may write state_ptr" in reason for reason in unchecked.reasons)


def test_rows_may_stand_along_another_dimension():
    x = {"x": lambda tokens, requests: torch.zeros(2, tokens, dtype=torch.int32)}
    axes = {"x": (2, "T")}
    known = opened(OPS.second, axes, ahead=0, **x)
    assert not known.reasons and known.contract.rows["x"].axes == (2, "T") and known.contract.locality == "row"
    ahead = opened(OPS.second, axes, ahead=1, **x)
    assert any("of another row of x_ptr" in reason for reason in ahead.reasons)


@pytest.mark.parametrize("check", [True, False])
def test_a_token_past_the_last_boundary_is_in_no_chunk(check):
    known = opened(OPS.found, check=check)
    if check:
        assert not known.reasons and isinstance(known.contract.requests["idx"].tail, c.Any)
    else:
        assert any("padded programs may write state_ptr" in reason for reason in known.reasons)
