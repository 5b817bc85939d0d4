"""Moving cached state when a request crosses a block boundary, or accepts tokens within a block (align cache).

Shift, for each request r with source slot s, destination slot d and bias b, over all channels c:

    state[d, c, i] = old[s, c, i + b]        0 <= i < W - b          columns from W - b on stay as they are

Copy, over every element e of a slot:

    state[d, e] = old[s, e]

`old` is the state before the launch, whatever s and d are: the same slot, another's source or destination, or shared
sources. Several requests must not name one destination. Nothing moves for a request whose source or destination is the
null slot or no slot, or whose bias is negative or at least W.

A program owns some channels (or elements) of *every* slot, and all its loads are over before its first store. So no
order between programs matters, and within one the barrier gives the order. Without the barrier a lane may overwrite
what another has still to read: models/naive_shift.py.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, PerRequest, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl

NULL_SLOT = 0
TILE = 2048  # elements a program moves, where the requests leave a choice


def owned(slots: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return (slots > NULL_SLOT) & (slots < state.shape[0])


def align_shift_reference(
    state: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor, biases: torch.Tensor
) -> None:
    width = state.shape[2]
    moves = owned(sources, state) & owned(destinations, state) & (biases >= 0) & (biases < width)
    source, destination = sources.long()[moves], destinations.long()[moves]
    column = torch.arange(width, device=state.device) + biases.long()[moves, None]
    old = state[source].gather(2, column.clamp(max=width - 1)[:, None, :].expand(-1, state.shape[1], -1))
    state[destination] = torch.where((column < width)[:, None, :], old, state[destination])


def align_copy_reference(state: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    moves = owned(sources, state) & owned(destinations, state)
    state[destinations.long()[moves]] = state[sources.long()[moves]]


@jit
def _slot_pairs(request, sources_ptr, destinations_ptr, requests, slots, sources_stride, destinations_stride):
    """(source, destination, whether both are slots that a request may own) of some requests, int64."""
    row = request.to(tl.int64)
    source = tl.load(sources_ptr + row * sources_stride, mask=request < requests, other=0).to(tl.int64)
    destination = tl.load(destinations_ptr + row * destinations_stride, mask=request < requests, other=0).to(tl.int64)
    return source, destination, (source > 0) & (source < slots) & (destination > 0) & (destination < slots)


@jit
def _align_shift_kernel(
    state_ptr, sources_ptr, destinations_ptr, biases_ptr,
    requests, slots, channels, width, state_slot, state_channel, state_column, sources_stride, destinations_stride,
    biases_stride,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    request = tl.arange(0, BLOCK_R)
    source, destination, owned = _slot_pairs(
        request, sources_ptr, destinations_ptr, requests, slots, sources_stride, destinations_stride
    )
    bias_at = biases_ptr + request.to(tl.int64) * biases_stride
    bias = tl.load(bias_at, mask=request < requests, other=-1).to(tl.int64)[:, None, None]
    channel = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[None, :, None]
    column = tl.arange(0, BLOCK_W).to(tl.int64)[None, None, :]
    moves = owned[:, None, None] & (bias >= 0) & (column < width - bias) & (channel < channels)
    at = channel * state_channel + column * state_column
    old_at = source[:, None, None] * state_slot + at + bias * state_column
    old = tl.load(state_ptr + old_at, mask=moves, other=0.0)
    tl.debug_barrier()
    tl.store(state_ptr + destination[:, None, None] * state_slot + at, old, mask=moves)


@jit
def _align_copy_kernel(
    state_ptr, sources_ptr, destinations_ptr,
    requests, slots, elements, state_slot, state_element, sources_stride, destinations_stride,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):
    request = tl.arange(0, BLOCK_R)
    source, destination, owned = _slot_pairs(
        request, sources_ptr, destinations_ptr, requests, slots, sources_stride, destinations_stride
    )
    element = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    moves = owned[:, None] & (element < elements)[None, :]
    at = (element * state_element)[None, :]
    old = tl.load(state_ptr + source[:, None] * state_slot + at, mask=moves, other=0.0)
    tl.debug_barrier()
    tl.store(state_ptr + destination[:, None] * state_slot + at, old, mask=moves)


def _launch_shift(state, sources, destinations, biases) -> None:
    slots, channels, width = state.shape
    requests = sources.shape[0]
    block_r, block_w = power_of_two(requests), power_of_two(width)
    block_c = block(channels, state, gpu=max(TILE // (block_r * block_w), 1), cpu=1024)
    _align_shift_kernel[(-(-channels // block_c),)](
        state,
        sources,
        destinations,
        biases,
        requests,
        slots,
        channels,
        width,
        *state.stride(),
        sources.stride(0),
        destinations.stride(0),
        biases.stride(0),
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        BLOCK_W=block_w,
    )


def _launch_copy(state, sources, destinations) -> None:
    requests = sources.shape[0]
    slots, elements = state.shape
    block_r = power_of_two(requests)
    block_e = block(elements, state, gpu=max(TILE // block_r, 32), cpu=4096)
    _align_copy_kernel[(-(-elements // block_e),)](
        state,
        sources,
        destinations,
        requests,
        slots,
        elements,
        *state.stride(),
        sources.stride(0),
        destinations.stride(0),
        BLOCK_R=block_r,
        BLOCK_E=block_e,
    )


def _check(op: str, sources: torch.Tensor, **others: torch.Tensor) -> None:
    """Raises ValueError where the per-request arguments disagree on R."""
    for name, value in others.items():
        if sources.dim() != 1 or value.shape != sources.shape:
            got = f"{tuple(sources.shape)} and {tuple(value.shape)}"
            raise ValueError(f"{op}: sources, {name}: expected [R] each; got {got}")


def _flat_slots(state: torch.Tensor) -> torch.Tensor:
    """The state as [slots, elements], without a copy."""
    try:
        return state.view(state.shape[0], -1)
    except RuntimeError as error:
        got = f"{tuple(state.shape)} with strides {state.stride()}"
        raise ValueError(f"align_state_copy_: state: expected slots of evenly spaced elements; got {got}") from error


@torch.library.custom_op("capwise::align_state_shift_", mutates_args={"state"})
def align_state_shift_(
    state: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor, biases: torch.Tensor
) -> None:
    """Shifts convolution windows left by each request's bias, from slot to slot or within one. Strides are honoured.

    Args:
        state: [slots, C, W]; columns 0..W-bias-1 of the destinations are written.
        sources, destinations: int [R], slot numbers; 0 is the null slot. No two requests may have one destination.
        biases: int [R], tokens accepted past the state's last one.

    Raises:
        ValueError: extents that contradict each other.
    """
    _check("align_state_shift_", sources, destinations=destinations, biases=biases)
    if state.dim() != 3:
        raise ValueError(f"align_state_shift_: state: expected [slots, C, W]; got {tuple(state.shape)}")
    if not sources.shape[0] or not state.numel():
        return
    if on_triton(state):
        _launch_shift(state, sources, destinations, biases)
    else:
        align_shift_reference(state, sources, destinations, biases)


@align_state_shift_.register_fake
def _(state, sources, destinations, biases):
    return None


@torch.library.custom_op("capwise::align_state_copy_", mutates_args={"state"})
def align_state_copy_(state: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    """Copies whole slots of a recurrent state.

    Args:
        state: [slots, ...]; the elements of a slot lie evenly spaced (a slot's own stride is free).
        sources, destinations: int [R], slot numbers; 0 is the null slot. No two requests may have one destination.

    Raises:
        ValueError: extents that contradict each other, or slots whose elements do not lie evenly.
    """
    _check("align_state_copy_", sources, destinations=destinations)
    flat = _flat_slots(state)
    if not sources.shape[0] or not state.numel():
        return
    if on_triton(state):
        _launch_copy(flat, sources, destinations)
    else:
        align_copy_reference(flat, sources, destinations)


@align_state_copy_.register_fake
def _(state, sources, destinations):
    return None


def _slots() -> dict[str, Axes]:
    """A request with a null destination moves nothing, whatever its source and bias are."""
    return {
        "sources": Slots("R", into="state", null=NULL_SLOT, tail=Any()),
        "destinations": Slots("R", into="state", null=NULL_SLOT),
    }


@contract("capwise::align_state_shift_")
def align_shift_contract() -> Contract:
    return Contract(
        rows={"state": Axes((None, None, None), write=True)},
        requests={**_slots(), "biases": PerRequest("R", tail=Any())},
        locality="segment",
        state=("state",),
        overlap=False,
    )


@contract("capwise::align_state_copy_")
def align_copy_contract() -> Contract:
    return Contract(
        rows={"state": Axes((None,), write=True)},
        requests=_slots(),
        locality="segment",
        state=("state",),
        overlap=False,
    )
