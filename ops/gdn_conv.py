"""The short convolution of the gated delta net: causal, depthwise, no bias, SiLU, over [q | k | v] channels.

It is the convolution of ops/short_conv.py at dilation 1, with the same roundings (the sum to x's dtype, then SiLU),
slots, padding and verify rows; K taps keep L = K - 1 tokens, W = L + S columns with S speculative tokens. Its kernels
are the same. Every request says whether it verifies: a step mixes prefills, decodes and verify chunks.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import contract
from capwise.ops.launch import on_triton
from capwise.ops.short_conv import (
    check_extents,
    launch_output,
    launch_state,
    short_conv_contract,
    short_conv_reference,
    short_conv_state_contract,
    short_conv_state_reference,
)

DILATION = 1


@torch.library.custom_op("capwise::gdn_conv", mutates_args=())
def gdn_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    num_accepted: torch.Tensor,
    is_spec: torch.Tensor,
) -> torch.Tensor:
    """Output of the convolution, SiLU included. Strides of every argument are honoured.

    Args:
        x: [T, C], the tokens of all requests, one chunk after another.
        weight: [C, K], oldest tap first.
        state: [slots, C, W], W >= K-1; column 0 is the oldest token.
        query_start_loc: int [R+1].
        state_indices: int [R], the slot of each request; 0 is the null slot.
        has_initial: bool [R], False for a request that starts here: its slot may hold anything.
        num_accepted: int [R], tokens of its last verify chunk that a request keeps, at least 1; read where is_spec.
        is_spec: bool [R], which requests verify drafts.

    Returns:
        [T, C] in x's dtype, dense; 0 for rows of no request and for requests with the null slot.

    Raises:
        ValueError: extents that contradict each other.
    """
    request = query_start_loc, state_indices, has_initial
    check_extents("gdn_conv", x, state, *request, weight.shape[1] - 1, num_accepted, is_spec)
    if not on_triton(x):
        return short_conv_reference(x, weight, state, *request, DILATION, num_accepted, is_spec)
    y = x.new_empty(x.shape)
    if x.shape[0]:
        launch_output(x, weight, state, *request, DILATION, num_accepted, is_spec, y)
    return y


@gdn_conv.register_fake
def _(x, weight, state, query_start_loc, state_indices, has_initial, num_accepted, is_spec):
    return x.new_empty(x.shape)


@torch.library.custom_op("capwise::gdn_conv_state_", mutates_args={"state"})
def gdn_conv_state_(
    x: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    num_accepted: torch.Tensor,
    is_spec: torch.Tensor,
    length: int,
) -> None:
    """Moves each request's window on by its chunk; `gdn_conv` of the same step must have read it before.

    Args:
        state: [slots, C, W]; of non-empty requests columns 0..length-1 are written, of those that verify n tokens
            columns 0..length-2+n.
        length: how many tokens of history a slot holds, K-1.
        x, query_start_loc, state_indices, has_initial, num_accepted, is_spec: as for `gdn_conv`.

    Raises:
        ValueError: extents that contradict each other.
    """
    request = query_start_loc, state_indices, has_initial
    check_extents("gdn_conv_state_", x, state, *request, length, num_accepted, is_spec)
    if not on_triton(x):
        short_conv_state_reference(x, state, *request, length, num_accepted, is_spec)
    elif x.shape[0]:
        launch_state(x, state, *request, length, num_accepted, is_spec)


@gdn_conv_state_.register_fake
def _(x, state, query_start_loc, state_indices, has_initial, num_accepted, is_spec, length):
    return None


# The same argument for argument: only the dilation is fixed here.
contract("capwise::gdn_conv")(short_conv_contract)
contract("capwise::gdn_conv_state_")(short_conv_state_contract)
