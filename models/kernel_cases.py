"""Models that call Triton kernels of their own, with nothing declared: what is found is read off the kernels.

Each class is a program as a user might write it; `case(model, ...)` gives it a history in which a burst of requests
leaves its tails to the steps after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from capwise.case import Case
from capwise.labels import Input
from capwise.ops.launch import jit, tl

SLOTS, WIDTH = 16, 8


@jit
def slot_unit_kernel(state_ptr, idx_ptr, out_ptr, stride_state, stride_out, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    h = tl.arange(0, H)
    tl.store(out_ptr + r * stride_out + h, tl.load(state_ptr + slot * stride_state + h))


@jit
def slot_passed_kernel(state_ptr, idx_ptr, out_ptr, stride_idx, stride_state, stride_out, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r * stride_idx).to(tl.int64)
    h = tl.arange(0, H)
    tl.store(out_ptr + r * stride_out + h, tl.load(state_ptr + slot * stride_state + h))


@jit
def search_kernel(starts_ptr, out_ptr, num_reqs):
    t = tl.program_id(0)
    lo = 0
    hi = num_reqs
    while lo < hi:
        mid = (lo + hi) // 2
        if tl.load(starts_ptr + mid + 1) <= t:
            lo = mid + 1
        else:
            hi = mid
    tl.store(out_ptr + t, lo)


@jit
def search_row_kernel(starts_ptr, scale_ptr, out_ptr, num_reqs, CLAMP: tl.constexpr):
    t = tl.program_id(0)
    lo = 0
    hi = num_reqs
    while lo < hi:
        mid = (lo + hi) // 2
        if tl.load(starts_ptr + mid + 1) <= t:
            lo = mid + 1
        else:
            hi = mid
    row = tl.minimum(lo, num_reqs - 1) if CLAMP else lo
    tl.store(out_ptr + t, tl.load(scale_ptr + row))


@jit
def write_checked_kernel(x_ptr, state_ptr, idx_ptr, stride_x, stride_state, NULL: tl.constexpr, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    if slot == NULL:
        return
    h = tl.arange(0, H)
    tl.store(state_ptr + slot * stride_state + h, tl.load(x_ptr + r * stride_x + h))


@jit
def write_kernel(x_ptr, state_ptr, idx_ptr, stride_x, stride_state, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    h = tl.arange(0, H)
    tl.store(state_ptr + slot * stride_state + h, tl.load(x_ptr + r * stride_x + h))


@jit
def shift_kernel(state_ptr, idx_ptr, stride_state, n, B: tl.constexpr):
    slot = tl.load(idx_ptr + tl.program_id(0)).to(tl.int64)
    o = tl.program_id(1) * B + tl.arange(0, B)
    p = state_ptr + slot * stride_state
    x = tl.load(p + o + 1, mask=(slot > 0) & (o + 1 < n), other=0.0)
    tl.store(p + o, x, mask=(slot > 0) & (o < n))


@jit
def rows_32_kernel(state_ptr, idx_ptr, out_ptr, stride_state, H: tl.constexpr):
    r = tl.program_id(0)
    slot = tl.load(idx_ptr + r)
    h = tl.arange(0, H)
    tl.store(out_ptr + r.to(tl.int64) * H + h, tl.load(state_ptr + slot * stride_state + h))


@jit
def scale_kernel(x_ptr, out_ptr, tokens, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    inside = (t < tokens)[:, None]
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside, other=0.0) * 2, mask=inside)


@jit
def divide_kernel(x_ptr, out_ptr, tokens, H: tl.constexpr):
    at = tl.program_id(0) * H + tl.arange(0, H)
    tl.store(out_ptr + at, tl.load(x_ptr + at) / tokens)


@jit
def centre_kernel(x_ptr, out_ptr, tokens, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    at = t[:, None] * H + tl.arange(0, H)[None, :]
    inside = (t < tokens)[:, None]
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, x - tl.sum(x, 0)[None, :], mask=inside)


@jit
def total_kernel(x_ptr, out_ptr, tokens, H: tl.constexpr):
    h = tl.arange(0, H)
    total = tl.zeros([H], tl.float32)
    for t in range(tokens):
        total += tl.load(x_ptr + t * H + h)
    tl.store(out_ptr + h, total)


@jit
def next_kernel(x_ptr, out_ptr, tokens, H: tl.constexpr, AHEAD: tl.constexpr):
    t = tl.program_id(0)
    h = tl.arange(0, H)
    there = (t + AHEAD >= 0) & (t < tokens - AHEAD) if AHEAD > 0 else t + AHEAD >= 0
    tl.store(out_ptr + t * H + h, tl.load(x_ptr + (t + AHEAD) * H + h, mask=there, other=0.0))


def _state() -> torch.Tensor:
    return torch.arange(SLOTS * WIDTH, dtype=torch.float32).view(SLOTS, WIDTH)


class Gathers(nn.Module):
    """Rows of a state, by column 0 of a block table: right only where the kernel is passed its stride of 4.

    passed: for each of two launches, whether it is the right kernel. dense: what the unit kernel is made right by.
    """

    def __init__(self, *passed: bool, dense: bool = False) -> None:
        super().__init__()
        self.passed, self.dense = passed, dense
        self.register_buffer("state", _state())

    def forward(self, x, table):
        slots = table[:, 0].contiguous() if self.dense else table[:, 0]
        outs = []
        for passed in self.passed:
            out = self.state.new_empty(slots.shape[0], WIDTH)
            if passed:
                slot_passed_kernel[(slots.shape[0],)](
                    self.state, slots, out, slots.stride(0), self.state.stride(0), out.stride(0), H=WIDTH
                )
            else:
                slot_unit_kernel[(slots.shape[0],)](
                    self.state, slots, out, self.state.stride(0), out.stride(0), H=WIDTH
                )
            outs.append(out)
        return x + 1, *outs


class Searches(nn.Module):
    """The request of every token, by a search over a number of requests that a recording freezes."""

    def forward(self, x, starts):
        out = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
        search_kernel[(x.shape[0],)](starts, out, starts.shape[0] - 1)
        return out


class Scales(nn.Module):
    """A value of every token's request; a padded token has none. clamp: it takes the last one's."""

    def __init__(self, clamp: bool) -> None:
        super().__init__()
        self.clamp = clamp

    def forward(self, x, starts, slots):
        out = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
        search_row_kernel[(x.shape[0],)](starts, slots, out, slots.shape[0], CLAMP=self.clamp)
        return out


class Writes(nn.Module):
    """One row of a state a request. null: the slot that the kernel leaves alone; None if it writes them all."""

    def __init__(self, null: int | None) -> None:
        super().__init__()
        self.null = null
        self.register_buffer("state", _state())

    def forward(self, x, rows, slots):
        grid = (slots.shape[0],)
        if self.null is None:
            write_kernel[grid](rows, self.state, slots, rows.stride(0), self.state.stride(0), H=WIDTH)
        else:
            write_checked_kernel[grid](
                rows, self.state, slots, rows.stride(0), self.state.stride(0), NULL=self.null, H=WIDTH
            )
        return x + 1


class Shifts(nn.Module):
    """A state shifted in place by one element, a slot by one program or by several."""

    def __init__(self, programs: int) -> None:
        super().__init__()
        self.programs = programs
        self.register_buffer("state", _state())

    def forward(self, x, slots):
        block = WIDTH // self.programs
        shift_kernel[(slots.shape[0], self.programs)](self.state, slots, self.state.stride(0), WIDTH, B=block)
        return x + 1


class Narrow(nn.Module):
    """A slot times a row size, in 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", _state())

    def forward(self, x, slots):
        out = self.state.new_empty(slots.shape[0], WIDTH)
        rows_32_kernel[(slots.shape[0],)](self.state, slots, out, self.state.stride(0), H=WIDTH)
        return x + 1, out


class Tokens(nn.Module):
    """One launch over the tokens: "scale", "divide", "centre", "total", "next" or "previous"."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x):
        tokens = x.shape[0]
        out = x.new_zeros(WIDTH) if self.what == "total" else torch.empty_like(x)
        if self.what == "scale":
            scale_kernel[lambda meta: (-(-tokens // meta["B"]),)](x, out, tokens, B=4, H=WIDTH)
        elif self.what == "divide":
            divide_kernel[(tokens,)](x, out, tokens, H=WIDTH)
        elif self.what == "centre":
            centre_kernel[(-(-tokens // 16),)](x, out, tokens, B=16, H=WIDTH)
        elif self.what == "total":
            total_kernel[(1,)](x, out, tokens, H=WIDTH)
        else:
            next_kernel[(tokens,)](x, out, tokens, H=WIDTH, AHEAD=1 if self.what == "next" else -1)
        return out


def _rows(count: int) -> torch.Tensor:
    return torch.arange(1, count * WIDTH + 1, dtype=torch.float32).view(count, WIDTH) / 8


def _step(starts: Sequence[int], slots: Sequence[int]) -> dict[str, torch.Tensor]:
    table = torch.tensor([[s, s + 1, s + 2, s + 3] for s in slots], dtype=torch.int32)
    return {
        "x": _rows(starts[-1]),
        "rows": _rows(len(slots)) * len(slots),
        "starts": torch.tensor(starts, dtype=torch.int32),
        "slots": torch.tensor(slots, dtype=torch.int32),
        "table": table,
    }


_AXES: dict[str, Any] = {
    "x": ("T", WIDTH), "rows": ("R", WIDTH), "starts": ("R+1",), "slots": ("R",), "table": ("R", 4)
}  # fmt: skip


def case(model: nn.Module, *names: str, null: int | None = None, reference: nn.Module | None = None) -> Case:
    """A burst of four requests, then steps of few, at one bucket.

    Args:
        names: the arguments that the model takes, of x, rows, starts, slots, table. null: the slots' null row.
    """
    steps = [_step([0, 1, 2, 4, 6], [3, 5, 7, 9]), _step([0, 5], [3]), _step([0, 2, 7], [9, 12])]
    inputs = {name: _AXES[name] for name in names}
    if null is not None:
        inputs["slots"] = Input("R", null=null)
    return Case(
        model=model,
        batches=[{name: step[name] for name in names} for step in steps],
        inputs=inputs,
        capacity={"T": 16, "R": 4},
        options={"capture_sizes": (8, 16)},
        reference=reference,
        name=f"{type(model).__name__}",
    )
