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

Verify rows. A chunk of draft tokens may be cut when some are rejected, so the slot of a request that verifies keeps
the inputs of the whole chunk, in W = L + S columns, and the next step says how many tokens were accepted, a >= 1: its
history starts at column a - 1. With first = a - 1 (at most W - L) where the request verifies and 0 elsewhere,

    in(h) = state[q, c, first + h]   for h < L, the rest as above
    after a verify chunk: state[q, c, i] = in(1 + i) for i < L - 1 + n, in columns that the slot has
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl
from capwise.ops.search import request_row, request_rows, rounds

NULL_SLOT = 0


def owned(slots: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Which slot numbers name a row of `state` that a request may own."""
    return (slots != NULL_SLOT) & (slots >= 0) & (slots < state.shape[0])


def first_column(num_accepted, is_spec, like, room):
    """Where the history of each request starts in its slot: int64 [R], at most `room`."""
    if is_spec is None:
        return torch.zeros(like.shape, dtype=torch.int64, device=like.device)
    return torch.where(is_spec.bool(), (num_accepted.long() - 1).clamp(0, room), 0)


def _history(h, start, slots, has_initial, first, x, state, length):
    """in(h) of the module text. h, start, slots, has_initial, first [N] -> float32 [N, C]."""
    readable = owned(slots, state) & has_initial.bool()
    rows = torch.where(owned(slots, state), slots, NULL_SLOT)
    old = torch.where(readable[:, None], state[rows, :, first + h.clamp(max=length - 1)].float(), 0.0)
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
    num_accepted: torch.Tensor | None = None,
    is_spec: torch.Tensor | None = None,
) -> torch.Tensor:
    if not x.shape[0]:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    row = request_rows(x.shape[0], query_start_loc)
    starts, token = query_start_loc.long(), torch.arange(x.shape[0], device=x.device)
    slots, has, start = state_indices.long()[row], has_initial[row], starts[row]
    position, length = (token - start).clamp(min=0), (weight.shape[1] - 1) * dilation
    first = first_column(num_accepted, is_spec, state_indices, state.shape[2] - length)[row]
    total = torch.zeros(x.shape, device=x.device)
    for k in range(weight.shape[1]):
        value = _history(position + dilation * k, start, slots, has, first, x, state, length)
        total = total + weight[:, k].float() * value
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
    num_accepted: torch.Tensor | None = None,
    is_spec: torch.Tensor | None = None,
) -> None:
    if not x.shape[0]:
        return
    starts, slots = query_start_loc.long(), state_indices.long()
    start, tokens, width = starts[:-1], starts.diff().clamp(min=0), state.shape[2]
    writes = owned(slots, state) & (tokens > 0) & (start >= 0) & (starts[1:] <= x.shape[0])
    first = first_column(num_accepted, is_spec, state_indices, width - length)
    verifies = torch.zeros_like(writes) if is_spec is None else is_spec.bool()
    shift, count = torch.where(verifies, 1, tokens), torch.where(verifies, length - 1 + tokens, length)
    columns = range(length if is_spec is None else width)
    window = [_history(shift + i, start, slots, has_initial, first, x, state, length) for i in columns]
    # What must not be written is sent to the null slot with the values that it has: no host sync, no change.
    rows = torch.where(writes, slots, NULL_SLOT)
    new = writes[:, None, None] & (torch.arange(len(columns), device=x.device) < count[:, None])[:, None, :]
    window = torch.where(new, torch.stack(window, 2).to(state.dtype), state[rows, :, : len(columns)])
    state[:, :, : len(columns)].index_put_((rows,), window)


@jit
def verify_columns(row, room, accepted_ptr, spec_ptr, accepted_stride, spec_stride):
    """Whether the requests verify, and the column where their history starts. row int64 -> bool, int64."""
    verifies = tl.load(spec_ptr + row * spec_stride) != 0
    accepted = tl.load(accepted_ptr + row * accepted_stride).to(tl.int64)
    first = tl.minimum(tl.maximum(accepted - 1, 0), room)
    return verifies, tl.where(verifies, first, 0)


@jit
def convolve_tile(
    token, channel, row, slot, first, x_ptr, weight_ptr, state_ptr, starts_ptr, initial_ptr, y_ptr,
    tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap, slot_stride, state_channel,
    state_column, starts_stride, initial_stride,
    TAPS: tl.constexpr, DILATION: tl.constexpr,
):
    """y for some tokens (with their rows, slots and first columns) and channels, all int64."""
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
            tap_at = channel * weight_channel + tl.full([], k, tl.int64) * weight_tap
            tap = tl.load(weight_ptr + tap_at, mask=channel < channels, other=0.0)
            old = (remembers & (h < LENGTH))[:, None] & inside
            value = tl.load(state_ptr + state_at + (first + h)[:, None] * state_column, mask=old, other=0.0)
            total += tap.to(tl.float32)[None, :] * value.to(tl.float32)
    for k in tl.static_range(TAPS):
        back = (TAPS - 1 - k) * DILATION
        tap_at = channel * weight_channel + tl.full([], k, tl.int64) * weight_tap
        tap = tl.load(weight_ptr + tap_at, mask=channel < channels, other=0.0)
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
    row, channel, column, slot, first, verifies, x_ptr, state_ptr, starts_ptr, initial_ptr,
    tokens, channels, slots, width, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride,
    initial_stride,
    LENGTH: tl.constexpr,
):
    """The new window of one request's slot, for some channels; column covers every column that may be written."""
    start = tl.load(starts_ptr + row * starts_stride).to(tl.int64)
    count = tl.load(starts_ptr + (row + 1) * starts_stride).to(tl.int64) - start
    initial = tl.load(initial_ptr + row * initial_stride) != 0
    mine = (slot > 0) & (slot < slots) & (count > 0) & (start >= 0) & (start + count <= tokens)
    shift = tl.where(verifies, 1, count)
    kept = tl.minimum(tl.where(verifies, LENGTH - 1 + count, LENGTH), width)
    new = mine & (column < kept)[:, None] & (channel < channels)[None, :]
    h = (shift + column)[:, None]
    state_at = slot * slot_stride + channel[None, :] * state_channel
    x_at = (start + h - LENGTH) * x_row + channel[None, :] * x_channel
    old_at = state_at + (first + h) * state_column
    before = tl.load(state_ptr + old_at, mask=new & initial & (h < LENGTH), other=0.0)
    now = tl.load(x_ptr + x_at, mask=new & (h >= LENGTH), other=0.0)
    value = tl.where(h < LENGTH, before.to(tl.float32), now.to(tl.float32))
    # The window moves within its own row: every load of this program must be over before its first store.
    tl.debug_barrier()
    tl.store(state_ptr + state_at + column[:, None] * state_column, value.to(state_ptr.dtype.element_ty), mask=new)


@jit
def _short_conv_kernel(
    x_ptr, weight_ptr, state_ptr, starts_ptr, slots_ptr, initial_ptr, accepted_ptr, spec_ptr, y_ptr,
    tokens, channels, requests, slots, width, x_row, x_channel, weight_channel, weight_tap, slot_stride, state_channel,
    state_column, starts_stride, slots_stride, initial_stride, accepted_stride, spec_stride,
    TAPS: tl.constexpr, DILATION: tl.constexpr, SPEC: tl.constexpr, ROUNDS: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = request_row(token, starts_ptr, starts_stride, requests, ROUNDS).to(tl.int64)
    slot = tl.load(slots_ptr + row * slots_stride).to(tl.int64)
    first = row * 0
    if SPEC:
        room = width - (TAPS - 1) * DILATION
        _, first = verify_columns(row, room, accepted_ptr, spec_ptr, accepted_stride, spec_stride)
    convolve_tile(
        token.to(tl.int64), channel.to(tl.int64), row, slot, first, x_ptr, weight_ptr, state_ptr, starts_ptr,
        initial_ptr, y_ptr, tokens, channels, requests, slots, x_row, x_channel, weight_channel, weight_tap,
        slot_stride, state_channel, state_column, starts_stride, initial_stride, TAPS, DILATION,
    )


@jit
def _short_conv_state_kernel(
    x_ptr, state_ptr, starts_ptr, slots_ptr, initial_ptr, accepted_ptr, spec_ptr,
    tokens, channels, slots, width, x_row, x_channel, slot_stride, state_channel, state_column, starts_stride,
    slots_stride, initial_stride, accepted_stride, spec_stride,
    LENGTH: tl.constexpr, SPEC: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    slot = tl.load(slots_ptr + row * slots_stride).to(tl.int64)
    verifies, first = False, 0
    if SPEC:
        verifies, first = verify_columns(
            row, width - LENGTH, accepted_ptr, spec_ptr, accepted_stride, spec_stride
        )
    move_window(
        row, channel, tl.arange(0, BLOCK_L).to(tl.int64), slot, first, verifies, x_ptr, state_ptr, starts_ptr,
        initial_ptr, tokens, channels, slots, width, x_row, x_channel, slot_stride, state_channel, state_column,
        starts_stride, initial_stride, LENGTH,
    )


def launch_output(
    x, weight, state, query_start_loc, state_indices, has_initial, dilation, num_accepted, is_spec, y
) -> None:
    tokens, channels = x.shape
    requests = query_start_loc.shape[0] - 1
    block_t, block_c = block(tokens, x, gpu=16, cpu=256), block(channels, x, gpu=256, cpu=2048)
    # Arguments that are absent are not read: any pointer stands for them.
    accepted, spec = (has_initial, has_initial) if is_spec is None else (num_accepted, is_spec)
    _short_conv_kernel[(-(-tokens // block_t), -(-channels // block_c))](
        x,
        weight,
        state,
        query_start_loc,
        state_indices,
        has_initial,
        accepted,
        spec,
        y,
        tokens,
        channels,
        requests,
        state.shape[0],
        state.shape[2],
        *x.stride(),
        *weight.stride(),
        *state.stride(),
        query_start_loc.stride(0),
        state_indices.stride(0),
        has_initial.stride(0),
        accepted.stride(0),
        spec.stride(0),
        TAPS=weight.shape[1],
        DILATION=dilation,
        SPEC=is_spec is not None,
        ROUNDS=rounds(requests),
        BLOCK_T=block_t,
        BLOCK_C=block_c,
    )


def launch_state(x, state, query_start_loc, state_indices, has_initial, length, num_accepted, is_spec) -> None:
    tokens, channels = x.shape
    block_c = block(channels, x, gpu=128, cpu=2048)
    columns = length if is_spec is None else state.shape[2]
    accepted, spec = (has_initial, has_initial) if is_spec is None else (num_accepted, is_spec)
    _short_conv_state_kernel[(query_start_loc.shape[0] - 1, -(-channels // block_c))](
        x,
        state,
        query_start_loc,
        state_indices,
        has_initial,
        accepted,
        spec,
        tokens,
        channels,
        state.shape[0],
        state.shape[2],
        *x.stride(),
        *state.stride(),
        query_start_loc.stride(0),
        state_indices.stride(0),
        has_initial.stride(0),
        accepted.stride(0),
        spec.stride(0),
        LENGTH=length,
        SPEC=is_spec is not None,
        BLOCK_L=power_of_two(columns),
        BLOCK_C=block_c,
    )


def check_extents(
    op, x, state, query_start_loc, state_indices, has_initial, length, num_accepted=None, is_spec=None
) -> None:
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
    if (num_accepted is None) != (is_spec is None):
        raise ValueError(f"{op}: num_accepted, is_spec: expected both or neither; got one")
    for name, value in (("num_accepted", num_accepted), ("is_spec", is_spec)):
        if value is not None and tuple(value.shape) != (requests,):
            raise ValueError(f"{op}: {name}: expected [R] = ({requests},); got {tuple(value.shape)}")


@torch.library.custom_op("capwise::ple_short_conv", mutates_args=())
def ple_short_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    dilation: int,
    num_accepted: torch.Tensor | None = None,
    is_spec: torch.Tensor | None = None,
) -> torch.Tensor:
    """Output of the short convolution. Strides of every argument are honoured.

    Args:
        x: [T, C], the tokens of all requests, one chunk after another.
        weight: [C, K], oldest tap first.
        state: [slots, C, W], W >= (K-1) * dilation; column 0 is the oldest token.
        query_start_loc: int [R+1].
        state_indices: int [R], the slot of each request; 0 is the null slot.
        has_initial: bool [R], False for a request that starts here: its slot may hold anything.
        num_accepted: int [R], tokens of its last verify chunk that a request keeps; read where is_spec.
        is_spec: bool [R], which requests verify drafts. Absent, with num_accepted: none does.

    Returns:
        [T, C] in x's dtype, dense; 0 for rows of no request and for requests with the null slot.

    Raises:
        ValueError: extents that contradict each other.
    """
    length = (weight.shape[1] - 1) * dilation
    request = query_start_loc, state_indices, has_initial
    check_extents("ple_short_conv", x, state, *request, length, num_accepted, is_spec)
    if not on_triton(x):
        return short_conv_reference(x, weight, state, *request, dilation, num_accepted, is_spec)
    y = x.new_empty(x.shape)
    if x.shape[0]:
        launch_output(x, weight, state, *request, dilation, num_accepted, is_spec, y)
    return y


@ple_short_conv.register_fake
def _(x, weight, state, query_start_loc, state_indices, has_initial, dilation, num_accepted=None, is_spec=None):
    return x.new_empty(x.shape)


@torch.library.custom_op("capwise::ple_short_conv_state_", mutates_args={"state"})
def ple_short_conv_state_(
    x: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial: torch.Tensor,
    length: int,
    num_accepted: torch.Tensor | None = None,
    is_spec: torch.Tensor | None = None,
) -> None:
    """Moves each request's window on by its chunk; `ple_short_conv` of the same step must have read it before.

    Args:
        state: [slots, C, W], W >= length; columns 0..length-1 of the slots of non-empty requests are written, of
            requests that verify n tokens columns 0..length-2+n.
        length: how many tokens of history a slot holds, (K-1) * dilation.
        x, query_start_loc, state_indices, has_initial, num_accepted, is_spec: as for `ple_short_conv`.

    Raises:
        ValueError: extents that contradict each other.
    """
    request = query_start_loc, state_indices, has_initial
    check_extents("ple_short_conv_state_", x, state, *request, length, num_accepted, is_spec)
    if not on_triton(x):
        short_conv_state_reference(x, state, *request, length, num_accepted, is_spec)
    elif x.shape[0]:
        launch_state(x, state, *request, length, num_accepted, is_spec)


@ple_short_conv_state_.register_fake
def _(x, state, query_start_loc, state_indices, has_initial, length, num_accepted=None, is_spec=None):
    return None


def request_axes() -> dict[str, Axes]:
    """With the last boundary repeated, a request past the live ones is empty: it is read by no live token and writes
    nothing, whatever slot it names."""
    return {
        "query_start_loc": Boundaries("R+1", tail=Last()),
        "state_indices": Slots("R", into="state", null=NULL_SLOT, tail=Any()),
        "has_initial": PerRequest("R", tail=Any()),
        "num_accepted": PerRequest("R", tail=Any()),
        "is_spec": PerRequest("R", tail=Any()),
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
        requests=request_axes(),
        locality="segment",
    )


@contract("capwise::ple_short_conv_state_")
def short_conv_state_contract() -> Contract:
    return Contract(
        rows={"x": Rows("T", None, tail=Any()), "state": Axes((None, None, None), write=True)},
        requests=request_axes(),
        locality="segment",
        state=("state",),
    )
