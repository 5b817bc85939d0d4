"""The gated delta rule of ops/gdn_scan.py, its long chunks by the kernels of flash-linear-attention (`fla`).

    pip install 'capwise[fla]'

Equations, slots, roundings and what stays 0 are those of ops/gdn_scan.py. Requests of more than `long` tokens that do
not verify go through `fla.ops.gated_delta_rule.chunk_gated_delta_rule` (Yang, Kautz, Hatamizadeh 2024): their states
are gathered from column 0 of their slots (zeros where a request has none), and put back there. Decodes, verify rows and
short chunks, whose states that library has no slots for, stay with gdn_scan_. So one op serves a step of any mix, and
which way a request goes depends on its own tokens alone.

That library makes its grids of boundaries that the host has read: no graph can hold this op. Its contract says so, and
the op runs between graphs; gdn_scan_ is what a graph holds. A CPU tensor takes the reference.

The library's states are [DK, DV] a head, as ours: its option `state_v_first` is off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch

from capwise.ops.contract import Contract, contract
from capwise.ops.gdn_scan import NULL_SLOT, check_extents, gdn_scan_, gdn_scan_contract, gdn_scan_reference
from capwise.ops.launch import on_triton

# Tokens of a chunk of the library: a request of fewer has nothing that its chunks could do at once.
LONG = 64


class _Request(NamedTuple):
    """What the host knows of a request that has tokens: row of the tables, tokens start..end-1, slot of column 0."""

    row: int
    start: int
    end: int
    slot: int
    verifies: bool

    @property
    def tokens(self) -> int:
        return self.end - self.start


def library() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """flash-linear-attention's chunked gated delta rule, imported when it is first asked for.

    Raises:
        ImportError: it cannot be imported; says why, and which extra installs it.
    """
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        raise ImportError(
            f"gdn_chunked_: expected flash-linear-attention; got {error}. Did you forget pip install 'capwise[fla]'?"
        ) from error
    return chunk_gated_delta_rule


def _requests(tokens, slots, query_start_loc, state_table, is_spec) -> list[_Request]:
    """The requests that have tokens and a slot to start from; one copy to the host, which waits for the device."""
    starts = query_start_loc.long()
    read = torch.stack([starts[:-1], starts[1:], state_table[:, 0].long(), is_spec.long()], 1).tolist()
    found = (_Request(row, start, end, slot, bool(spec)) for row, (start, end, slot, spec) in enumerate(read))
    # A request that verifies may start from the slot of another column.
    return [r for r in found if 0 <= r.start < r.end <= tokens and (r.verifies or NULL_SLOT < r.slot < slots)]


def _runs(requests: Sequence[_Request]) -> list[tuple[int, int]]:
    """Their rows, as few ranges as there are."""
    runs: list[tuple[int, int]] = []
    for one in requests:
        first = runs.pop()[0] if runs and runs[-1][1] == one.start else one.start
        runs.append((first, one.end))
    return runs


def _rows(tensor: torch.Tensor, runs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Some ranges of rows, dense."""
    return torch.cat([tensor[start:end] for start, end in runs])


def _put(out: torch.Tensor, runs: Sequence[tuple[int, int]], rows: torch.Tensor) -> torch.Tensor:
    """The rows back to where `_rows` took such rows from."""
    for (start, end), part in zip(runs, rows.split([end - start for start, end in runs])):
        out[start:end] = part
    return out


def _starts(requests: Sequence[_Request]) -> torch.Tensor:
    """Their boundaries when their rows stand together: int64 [N+1] on the host."""
    return torch.tensor([0, *accumulate(one.tokens for one in requests)], dtype=torch.int64)


def _by_library(
    requests: Sequence[_Request], rows: Sequence[torch.Tensor], state: torch.Tensor, has_initial: torch.Tensor
) -> torch.Tensor:
    """rows: q, k, v, g, beta of these requests; has_initial: of all -> [T, HV, DV]; their slots move on."""
    which, slots = torch.tensor([[one.row, one.slot] for one in requests], device=state.device).unbind(1)
    initial = torch.where(has_initial[which].bool()[:, None, None, None], state.index_select(0, slots), 0.0)
    # The library keeps its tables of chunks by the identity of these two, whatever they hold: new ones at each call.
    starts = _starts(requests)
    out, final = library()(
        *(part[None] for part in rows),
        scale=state.shape[2] ** -0.5,
        initial_state=initial,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=starts.to(state.device),
        cu_seqlens_cpu=starts,
    )
    state.index_copy_(0, slots, final.to(state.dtype))
    return out[0].to(rows[2].dtype)


def _by_scan(
    requests: Sequence[_Request], rows: Sequence[torch.Tensor], state: torch.Tensor, tables: Sequence[torch.Tensor]
) -> torch.Tensor:
    """rows: q, k, v, g, beta of these requests; tables: by request, of all -> [T, HV, DV]; their slots move on."""
    which = torch.tensor([one.row for one in requests], device=state.device)
    return gdn_scan_(*rows, state, _starts(requests).to(state.device), *(table[which] for table in tables))


@torch.library.custom_op("capwise::gdn_chunked_", mutates_args={"state"})
def gdn_chunked_(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_table: torch.Tensor,
    has_initial: torch.Tensor,
    num_accepted: torch.Tensor,
    is_spec: torch.Tensor,
    long: int = LONG,
) -> torch.Tensor:
    """The gated delta rule over each request's tokens. Strides of every argument are honoured. Waits for the device.

    Args:
        long: requests of more tokens go through flash-linear-attention; at least 0.
        the others: as for `gdn_scan_`; q, k and v of one dtype, DK at most 256.

    Returns:
        [T, HV, DV] in v's dtype, dense.

    Raises:
        ValueError: extents that contradict each other; a negative `long`.
        ImportError: a request is long, the tensors are on a device, and flash-linear-attention cannot be imported.
    """
    call = q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec
    check_extents("gdn_chunked_", *call)
    if long < 0:
        raise ValueError(f"gdn_chunked_: long: expected at least 0; got {long}")
    if not on_triton(v):
        return gdn_scan_reference(*call)
    tokens = v.shape[0]
    requests = _requests(tokens, state.shape[0], query_start_loc, state_table, is_spec)
    chunked = [one for one in requests if one.tokens > long and not one.verifies]
    others = [one for one in requests if one.tokens <= long or one.verifies]
    if not chunked:
        return gdn_scan_(*call)
    runs = _runs(chunked)
    part = _by_library(chunked, [_rows(tensor, runs) for tensor in call[:5]], state, has_initial)
    if runs == [(0, tokens)]:
        return part
    out = _put(v.new_zeros(v.shape), runs, part)
    if others:
        runs = _runs(others)
        part = _by_scan(others, [_rows(tensor, runs) for tensor in call[:5]], state, call[7:])
        _put(out, runs, part)
    return out


@gdn_chunked_.register_fake
def _(q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec, long=LONG):
    return v.new_empty(v.shape)


@contract("capwise::gdn_chunked_")
def gdn_chunked_contract() -> Contract:
    """As gdn_scan_, but for what the host reads: by that the op syncs, and its launches are of one batch."""
    read = ("query_start_loc", "state_table", "is_spec", "long")
    return replace(gdn_scan_contract(), host=read, syncs=True)
