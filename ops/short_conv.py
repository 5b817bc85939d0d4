"""The short convolution of PLE and the state it keeps: dilated, causal, depthwise, over each request's own tokens.

K taps, dilation D, history L = (K - 1) * D. Token j of a chunk that starts at row s, channel c, slot q of its request:

    in(h)   = state[q, c, h]         h < L and the request has a state      (column 0 is the oldest)
              0                      h < L otherwise
              x[s + h - L, c]        h >= L
    conv    = rnd(sum_k weight[c, k] * in(j + D k))          float32 sums, oldest tap first
    y       = rnd(conv * sigmoid(conv))                      rnd: to x's dtype

y is 0 for rows past the last boundary and for requests whose slot is null. A second launch, after every read of the
first, moves the window: with n tokens in the chunk, state[q, c, i] = in(n + i) for i < L. Columns from L on, slots of
empty requests and the null slot stay as they are. A decode row is a chunk of one token, so one kernel serves both.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, tl
from capwise.ops.search import request_row, request_rows, rounds

NULL_SLOT = 0


def owned(slots: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Which slot numbers name a row of `state` that a request may own."""
    return (slots != NULL_SLOT) & (slots >= 0) & (slots < state.shape[0])


def _history(h, start, slots, has_initial, x, state, length):
    """in(h) of the module text. h, start, slots, has_initial [N] -> float32 [N, C]."""
    readable = owned(slots, state) & has_initial.bool()
    rows = torch.where(owned(slots, state), slots, NULL_SLOT)
    old = torch.where(readable[:, None], state[rows, :, h.clamp(max=length - 1)].float(), 0.0)
    new = x[(start + h - length).clamp(0, x.shape[0] - 1)].float()
    return torch.where((h < length)[:, None], old, new)


def short_conv_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    dilation: int,
) -> torch.Tensor:
    if not x.shape[0]:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    row = request_rows(x.shape[0], query_start_loc)
    starts, token = query_start_loc.long(), torch.arange(x.shape[0], device=x.device)
    slots, has, start = state_indices.long()[row], has_initial[row], starts[row]
    position, length = (token - start).clamp(min=0), (weight.shape[1] - 1) * dilation
    total = torch.zeros(x.shape, device=x.device)
    for k in range(weight.shape[1]):
        total = total + weight[:, k].float() * _history(position + dilation * k, start, slots, has, x, state, length)
    conv = total.to(x.dtype).float()
    y = (conv / (1.0 + torch.exp(-conv))).to(x.dtype)
    live = owned(slots, state) & (token < starts[-1]) & (start >= 0) & (start <= token)
    return torch.where(live[:, None], y, 0.0)


def short_conv_state_reference(
    x: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    length: int,
) -> None:
    if not x.shape[0]:
        return
    starts, slots = query_start_loc.long(), state_indices.long()
    start, tokens = starts[:-1], starts.diff()
    writes = owned(slots, state) & (tokens > 0) & (start >= 0) & (starts[1:] <= x.shape[0])
    columns = [_history(tokens.clamp(min=0) + i, start, slots, has_initial, x, state, length) for i in range(length)]
    # What must not be written is sent to the null slot with the values that it has: no host sync, no change.
    rows = torch.where(writes, slots, NULL_SLOT)
    window = torch.where(writes[:, None, None], torch.stack(columns, 2).to(state.dtype), state[rows, :, :length])
    state[:, :, :length].index_put_((rows,), window)


@jit
def convolve_tile(
    token, channel, row, slot, x_ptr, weight_ptr, state_ptr, starts_ptr, initial_ptr, y_ptr,
    tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap, slot_stride, state_channel,
    state_column, starts_stride, initial_stride,
    TAPS: tl.constexpr, DILATION: tl.constexpr,
):
    """y for some tokens (with their rows and slots) and channels, all int64."""
    LENGTH: tl.constexpr = (TAPS - 1) * DILATION
    start = tl.load(starts_ptr + row * starts_stride).to(tl.int64)
    end = tl.load(starts_ptr + requests.to(tl.int64) * starts_stride).to(tl.int64)
    initial = tl.load(initial_ptr + row * initial_stride) != 0
    mine = (slot > 0) & (slot < slots) & (token < end) & (token < tokens) & (start >= 0) & (start <= token)
    inside = (channel < channels)[None, :]
    position = token - start
    total = tl.zeros((token.shape[0], channel.shape[0]), dtype=tl.float32)
    remembers = mine & initial & (position < LENGTH)
    # The taps before the chunk are the older ones: they come first, and most tiles have none.
    if tl.max(remembers.to(tl.int32), 0) > 0:
        state_at = slot[:, None] * slot_stride + channel[None, :] * state_channel
        for k in tl.static_range(TAPS):
            h = position + DILATION * k
            tap = tl.load(weight_ptr + channel * weight_channel + k * weight_tap, mask=channel < channels, other=0.0)
            old = (remembers & (h < LENGTH))[:, None] & inside
            value = tl.load(state_ptr + state_at + h[:, None] * state_column, mask=old, other=0.0)
            total += tap.to(tl.float32)[None, :] * value.to(tl.float32)
    for k in tl.static_range(TAPS):
        back = (TAPS - 1 - k) * DILATION
        tap = tl.load(weight_ptr + channel * weight_channel + k * weight_tap, mask=channel < channels, other=0.0)
        new = (mine & (position >= back))[:, None] & inside
        x_at = (token - back)[:, None] * x_row + channel[None, :] * x_channel
        value = tl.load(x_ptr + x_at, mask=new, other=0.0)
        total += tap.to(tl.float32)[None, :] * value.to(tl.float32)
    conv = total.to(y_ptr.dtype.element_ty).to(tl.float32)
    y = tl.where(mine[:, None], conv / (1.0 + tl.exp(-conv)), 0.0)
    y_at = token[:, None] * channels + channel[None, :]
    tl.store(y_ptr + y_at, y.to(y_ptr.dtype.element_ty), mask=(token < tokens)[:, None] & inside)


@jit
def move_window(
    row, channel, column, slot, x_ptr, state_ptr, starts_ptr, initial_ptr,
    tokens, channels, slots, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride, initial_stride,
    LENGTH: tl.constexpr,
):
    """The new window of one request's slot, for some channels; column covers 0..LENGTH-1."""
    start = tl.load(starts_ptr + row * starts_stride).to(tl.int64)
    count = tl.load(starts_ptr + (row + 1) * starts_stride).to(tl.int64) - start
    initial = tl.load(initial_ptr + row * initial_stride) != 0
    mine = (slot > 0) & (slot < slots) & (count > 0) & (start >= 0) & (start + count <= tokens)
    new = mine & (column < LENGTH)[:, None] & (channel < channels)[None, :]
    h = (count + column)[:, None]
    state_at = slot * slot_stride + channel[None, :] * state_channel
    x_at = (start + h - LENGTH) * x_row + channel[None, :] * x_channel
    before = tl.load(state_ptr + state_at + h * state_column, mask=new & initial & (h < LENGTH), other=0.0)
    now = tl.load(x_ptr + x_at, mask=new & (h >= LENGTH), other=0.0)
    value = tl.where(h < LENGTH, before.to(tl.float32), now.to(tl.float32))
    # The window moves within its own row: every load of this program must be over before its first store.
    tl.debug_barrier()
    tl.store(state_ptr + state_at + column[:, None] * state_column, value.to(state_ptr.dtype.element_ty), mask=new)


@jit
def _short_conv_kernel(
    x_ptr, weight_ptr, state_ptr, starts_ptr, slots_ptr, initial_ptr, y_ptr,
    tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap, slot_stride, state_channel,
    state_column, starts_stride, slots_stride, initial_stride,
    TAPS: tl.constexpr, DILATION: tl.constexpr, ROUNDS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = request_row(token, starts_ptr, starts_stride, requests, ROUNDS).to(tl.int64)
    slot = tl.load(slots_ptr + row * slots_stride).to(tl.int64)
    convolve_tile(
        token.to(tl.int64), channel.to(tl.int64), row, slot, x_ptr, weight_ptr, state_ptr, starts_ptr, initial_ptr,
        y_ptr, tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap, slot_stride,
        state_channel, state_column, starts_stride, initial_stride, TAPS, DILATION,
    )


@jit
def _short_conv_state_kernel(
    x_ptr, state_ptr, starts_ptr, slots_ptr, initial_ptr,
    tokens, channels, slots, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride, slots_stride,
    initial_stride,
    LENGTH: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    slot = tl.load(slots_ptr + row * slots_stride).to(tl.int64)
    move_window(
        row, channel, tl.arange(0, BLOCK_L).to(tl.int64), slot, x_ptr, state_ptr, starts_ptr, initial_ptr, tokens,
        channels, slots, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride, initial_stride,
        LENGTH,
    )


def _launch_output(x, weight, state, query_start_loc, state_indices, has_initial, dilation, y) -> None:
    tokens, channels = x.shape
    requests = query_start_loc.shape[0] - 1
    block_t, block_c = block(tokens, x, gpu=16, cpu=256), block(channels, x, gpu=256, cpu=2048)
    _short_conv_kernel[(-(-tokens // block_t), -(-channels // block_c))](
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
        state_indices.stride(0),
        has_initial.stride(0),
        TAPS=weight.shape[1],
        DILATION=dilation,
        ROUNDS=rounds(requests),
        BLOCK_T=block_t,
        BLOCK_C=block_c,
    )


def _launch_state(x, state, query_start_loc, state_indices, has_initial, length) -> None:
    tokens, channels = x.shape
    block_c = block(channels, x, gpu=128, cpu=2048)
    _short_conv_state_kernel[(query_start_loc.shape[0] - 1, -(-channels // block_c))](
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
        state_indices.stride(0),
        has_initial.stride(0),
        LENGTH=length,
        BLOCK_L=1 << (length - 1).bit_length(),
        BLOCK_C=block_c,
    )


def check_extents(op, x, state, query_start_loc, state_indices, has_initial, length) -> None:
    """Raises ValueError where the extents of one call contradict each other."""
    requests, channels = query_start_loc.shape[0] - 1, x.shape[1]
    if (requests < 1 and x.shape[0]) or (requests,) != state_indices.shape or (requests,) != has_initial.shape:
        raise ValueError(
            f"{op}: expected query_start_loc [R+1], state_indices [R], has_initial [R], R >= 1; got "
            f"{tuple(query_start_loc.shape)}, {tuple(state_indices.shape)}, {tuple(has_initial.shape)}"
        )
    if state.shape[1] != channels or state.shape[2] < length or state.shape[0] < 1:
        got = tuple(state.shape)
        raise ValueError(f"{op}: state: expected [slots, {channels}, at least {length}], slots >= 1; got {got}")


@torch.library.custom_op("capwise::ple_short_conv", mutates_args=())
def ple_short_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    dilation: int,
) -> torch.Tensor:
    """Output of the short convolution. Strides of every argument are honoured.

    Args:
        x: [T, C], the tokens of all requests, one chunk after another.
        weight: [C, K], oldest tap first.
        state: [slots, C, W], W >= (K-1) * dilation; column 0 is the oldest token.
        query_start_loc: int [R+1].
        state_indices: int [R], the slot of each request; 0 is the null slot.
        has_initial: bool [R], False for a request that starts here: its slot may hold anything.

    Returns:
        [T, C] in x's dtype, dense; 0 for rows of no request and for requests with the null slot.

    Raises:
        ValueError: extents that contradict each other.
    """
    length = (weight.shape[1] - 1) * dilation
    check_extents("ple_short_conv", x, state, query_start_loc, state_indices, has_initial, length)
    if not on_triton(x):
        return short_conv_reference(x, weight, state, query_start_loc, state_indices, has_initial, dilation)
    y = x.new_empty(x.shape)
    if x.shape[0]:
        _launch_output(x, weight, state, query_start_loc, state_indices, has_initial, dilation, y)
    return y


@ple_short_conv.register_fake
def _(x, weight, state, query_start_loc, state_indices, has_initial, dilation):
    return x.new_empty(x.shape)


@torch.library.custom_op("capwise::ple_short_conv_state_", mutates_args={"state"})
def ple_short_conv_state_(
    x: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    length: int,
) -> None:
    """Moves each request's window on by its chunk; `ple_short_conv` of the same step must have read it before.

    Args:
        state: [slots, C, W], W >= length; columns 0..length-1 of the slots of non-empty requests are written.
        length: how many tokens of history a slot holds, (K-1) * dilation.
        x, query_start_loc, state_indices, has_initial: as for `ple_short_conv`.

    Raises:
        ValueError: extents that contradict each other.
    """
    check_extents("ple_short_conv_state_", x, state, query_start_loc, state_indices, has_initial, length)
    if not on_triton(x):
        short_conv_state_reference(x, state, query_start_loc, state_indices, has_initial, length)
    elif x.shape[0]:
        _launch_state(x, state, query_start_loc, state_indices, has_initial, length)


@ple_short_conv_state_.register_fake
def _(x, state, query_start_loc, state_indices, has_initial, length):
    return None


def _requests() -> dict[str, Axes]:
    """With the last boundary repeated, a request past the live ones is empty: it is read by no live token and writes
    nothing, whatever slot it names."""
    return {
        "query_start_loc": Boundaries("R+1", tail=Last()),
        "state_indices": Slots("R", into="state", null=NULL_SLOT, tail=Any()),
        "has_initial": PerRequest("R", tail=Any()),
    }


@contract("capwise::ple_short_conv")
def short_conv_contract() -> Contract:
    return Contract(
        rows={
            "x": Rows("T", None, tail=Any()),
            "weight": Axes((None, None)),
            "state": Axes((None, None, None)),
            "out": Rows("T", None, write=True),
        },
        requests=_requests(),
        locality="segment",
    )


@contract("capwise::ple_short_conv_state_")
def short_conv_state_contract() -> Contract:
    return Contract(
        rows={"x": Rows("T", None, tail=Any()), "state": Axes((None, None, None), write=True)},
        requests=_requests(),
        locality="segment",
        state=("state",),
    )
