"""A short convolution as a user might bring it, with a fault: it reads the slot of request r at `state_indices + r`.

That is right for a dense list of slots and wrong for a column of a block table, whose elements are 1+S apart: with the
table [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]] the requests use the slots 10, 11, 12 in place of 10, 20,
30. Everything else is the shipped kernel. The contract is honest: it says that the op needs stride 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from capwise.ops.contract import Contract, Unit, declare
from capwise.ops.launch import block, jit, on_triton, tl
from capwise.ops.search import request_row, rounds
from capwise.ops.short_conv import (
    convolve_tile,
    move_window,
    short_conv_contract,
    short_conv_reference,
    short_conv_state_contract,
    short_conv_state_reference,
)


def _as_read(slots: torch.Tensor) -> torch.Tensor:
    """What a kernel that ignores the stride takes for the slots."""
    return slots.as_strided(slots.shape, (1,))


@jit
def _unit_stride_kernel(
    x_ptr, weight_ptr, state_ptr, starts_ptr, slots_ptr, initial_ptr, y_ptr,
    tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap, slot_stride, state_channel,
    state_column, starts_stride, initial_stride,
    TAPS: tl.constexpr, DILATION: tl.constexpr, ROUNDS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = request_row(token, starts_ptr, starts_stride, requests, ROUNDS).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    convolve_tile(
        token.to(tl.int64), channel.to(tl.int64), row, slot, row * 0, x_ptr, weight_ptr, state_ptr, starts_ptr,
        initial_ptr, y_ptr, tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap,
        slot_stride, state_channel, state_column, starts_stride, initial_stride, TAPS, DILATION,
    )


@jit
def _unit_stride_state_kernel(
    x_ptr, state_ptr, starts_ptr, slots_ptr, initial_ptr,
    tokens, channels, slots, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride, initial_stride,
    LENGTH: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    move_window(
        row, channel, tl.arange(0, BLOCK_L).to(tl.int64), slot, 0, False, x_ptr, state_ptr, starts_ptr, initial_ptr,
        tokens, channels, slots, LENGTH, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride,
        initial_stride, LENGTH,
    )


@torch.library.custom_op("footgun::unit_stride_short_conv", mutates_args=())
def unit_stride_short_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    dilation: int,
) -> torch.Tensor:
    """`capwise::ple_short_conv`, right only where state_indices has stride 1."""
    if not on_triton(x):
        return short_conv_reference(
            x, weight, state, query_start_loc, _as_read(state_indices), has_initial, dilation
        )
    (tokens, channels), requests = x.shape, query_start_loc.shape[0] - 1
    y = x.new_empty(x.shape)
    block_t, block_c = block(tokens, x, gpu=16, cpu=256), block(channels, x, gpu=256, cpu=2048)
    if tokens:
        _unit_stride_kernel[(-(-tokens // block_t), -(-channels // block_c))](
            x,
            weight,
            state,
            query_start_loc,
            state_indices,
            has_initial,
            y,
            tokens,
            channels,
            requests,
            state.shape[0],
            *x.stride(),
            *weight.stride(),
            *state.stride(),
            query_start_loc.stride(0),
            has_initial.stride(0),
            TAPS=weight.shape[1],
            DILATION=dilation,
            ROUNDS=rounds(requests),
            BLOCK_T=block_t,
            BLOCK_C=block_c,
        )
    return y


@unit_stride_short_conv.register_fake
def _(x, weight, state, query_start_loc, state_indices, has_initial, dilation):
    return x.new_empty(x.shape)


@torch.library.custom_op("footgun::unit_stride_short_conv_state_", mutates_args={"state"})
def unit_stride_short_conv_state_(
    x: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    length: int,
) -> None:
    """`capwise::ple_short_conv_state_`, right only where state_indices has stride 1."""
    if not on_triton(x):
        short_conv_state_reference(x, state, query_start_loc, _as_read(state_indices), has_initial, length)
        return
    tokens, channels = x.shape
    block_c = block(channels, x, gpu=128, cpu=2048)
    if tokens:
        _unit_stride_state_kernel[(query_start_loc.shape[0] - 1, -(-channels // block_c))](
            x,
            state,
            query_start_loc,
            state_indices,
            has_initial,
            tokens,
            channels,
            state.shape[0],
            *x.stride(),
            *state.stride(),
            query_start_loc.stride(0),
            has_initial.stride(0),
            LENGTH=length,
            BLOCK_L=1 << (length - 1).bit_length(),
            BLOCK_C=block_c,
        )


@unit_stride_short_conv_state_.register_fake
def _(x, state, query_start_loc, state_indices, has_initial, length):
    return None


def _needs_unit_stride(contract: Contract) -> Contract:
    """The same contract, less the requests that verify: these kernels know none."""
    requests = {n: a for n, a in contract.requests.items() if n not in ("num_accepted", "is_spec")}
    return replace(contract, requests=requests, strides={"state_indices": Unit()})


declare("footgun::unit_stride_short_conv", _needs_unit_stride(short_conv_contract()))
declare("footgun::unit_stride_short_conv_state_", _needs_unit_stride(short_conv_state_contract()))
