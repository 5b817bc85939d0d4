"""A shift of convolution windows as a user might bring it, with a fault: it copies in place with nothing to order it.

The windows are token-major, [slots, W, C]: a request's shift by b tokens is one copy of (W - b) * C elements to b * C
elements further down. Where source and destination are one slot the two overlap, and a wavefront may store to a place
that another has still to load from. Triton's interpreter and a lockstep schedule never show it; a device sometimes
does. With a barrier between the loads and the stores of a program the same kernel is right: `ordered=True`.

    capwise verify capwise.models.naive_shift:naive --device hip-emulated       differs
    capwise verify capwise.models.naive_shift:repaired --device hip-emulated    is right
"""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops.align_cache import align_shift_contract, align_shift_reference
from capwise.ops.contract import Contract, declare
from capwise.ops.launch import jit, on_triton, tl

SLOTS, WIDTH, CHANNELS = 8, 12, 64


@jit
def _window_copy_kernel(
    state_ptr,
    sources_ptr,
    destinations_ptr,
    biases_ptr,
    slots,
    channels,
    width,
    slot_stride,
    ORDERED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    source = tl.load(sources_ptr + request).to(tl.int64)
    destination = tl.load(destinations_ptr + request).to(tl.int64)
    bias = tl.load(biases_ptr + request)
    element = tl.arange(0, BLOCK)
    owned = (source > 0) & (source < slots) & (destination > 0) & (destination < slots)
    moves = owned & (bias >= 0) & (element < (width - bias) * channels)
    value = tl.load(state_ptr + source * slot_stride + bias * channels + element, mask=moves, other=0.0)
    if ORDERED:
        tl.debug_barrier()
    tl.store(state_ptr + destination * slot_stride + element, value, mask=moves)


def _shift(state, sources, destinations, biases, ordered) -> None:
    if not on_triton(state):
        align_shift_reference(state.transpose(1, 2), sources, destinations, biases)
        return
    slots, width, channels = state.shape
    size = 1 << (width * channels - 1).bit_length()
    _window_copy_kernel[(sources.shape[0],)](
        state, sources, destinations, biases, slots, channels, width, state.stride(0), ORDERED=ordered, BLOCK=size
    )


@torch.library.custom_op("footgun::naive_shift_", mutates_args={"state"})
def naive_shift_(state: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor, biases: torch.Tensor) -> None:
    """`capwise::align_state_shift_` over a dense token-major state [slots, W, C], wrong where a slot is shifted within
    itself."""
    _shift(state, sources, destinations, biases, ordered=False)


@torch.library.custom_op("footgun::barrier_shift_", mutates_args={"state"})
def barrier_shift_(
    state: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor, biases: torch.Tensor
) -> None:
    """The same kernel with a barrier between its loads and its stores: right as long as no request's destination is
    another request's source, which a barrier within a program cannot order."""
    _shift(state, sources, destinations, biases, ordered=True)


@naive_shift_.register_fake
def _(state, sources, destinations, biases):
    return None


@barrier_shift_.register_fake
def _(state, sources, destinations, biases):
    return None


def _contract(overlap: bool) -> Contract:
    ours = align_shift_contract()
    return Contract(ours.rows, ours.requests, ours.locality, state=ours.state, overlap=overlap)


declare("footgun::naive_shift_", _contract(overlap=True))
declare("footgun::barrier_shift_", _contract(overlap=False))


class Shifting(nn.Module):
    """Windows that move on by what each request accepted, within their slots or to new ones."""

    def __init__(self, shift) -> None:
        super().__init__()
        self.shift = shift
        windows = torch.arange(SLOTS * WIDTH * CHANNELS, dtype=torch.float32).view(SLOTS, WIDTH, CHANNELS)
        self.register_buffer("windows", windows)

    def forward(self, x, sources, destinations, biases):
        self.shift(self.windows, sources, destinations, biases)
        return x + 1


def _case(name: str, shift) -> Case:
    def step(tokens, sources, destinations, biases):
        slots = {"sources": sources, "destinations": destinations, "biases": biases}
        return {"x": torch.ones(tokens, 4), **{n: torch.tensor(v, dtype=torch.int32) for n, v in slots.items()}}

    return Case(
        model=Shifting(shift),
        batches=[
            step(6, [1, 2, 3], [1, 2, 4], [2, 1, 0]),
            step(3, [4], [4], [3]),
            step(5, [1, 2, 0, 5], [6, 2, 3, 0], [1, 5, 1, 2]),
        ],
        inputs={"x": ("T", 4), "sources": ("R",), "destinations": ("R",), "biases": ("R",)},
        capacity={"T": 16, "R": 4},
        options={"capture_sizes": (8, 16)},
        name=name,
    )


def naive() -> Case:
    return _case("naive shift", torch.ops.footgun.naive_shift_)


def repaired() -> Case:
    return _case("shift with a barrier", torch.ops.footgun.barrier_shift_)


def ours() -> Case:
    """The shipped op, over the same windows seen channel-major."""

    def shift(state, *slots):
        torch.ops.capwise.align_state_shift_(state.transpose(1, 2), *slots)

    return _case("shift by channel", shift)
