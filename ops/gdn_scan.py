"""The recurrence of the gated delta net, for prefill chunks, decodes and verify rows of one step.

HK key heads of width DK, HV value heads of width DV; value head j reads key head floor(j / (HV / HK)). Per request and
value head, over its tokens in order, everything in float32, S [DK, DV]:

    k' = k / sqrt(sum k^2 + 1e-6)       q' = q / sqrt(sum q^2 + 1e-6) / sqrt(DK)
    S <- exp(g) S
    S <- S + k' (beta (v - S^T k'))^T
    o  = S^T q'                         rounded to v's dtype

Which slots: with a = num_accepted and n tokens in the chunk, S starts from state[state_table[r, first]] (zero where the
request has no state), first = a - 1 for a request that verifies and 0 for another. A request that does not verify
leaves its state in the slot of column 0; one that verifies leaves the state after token j in the slot of column j, so
that the next step takes the one after the last accepted token. Columns past the table and null slots are not written.
Rows of no request and of requests whose first slot is null are 0.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, Slots, contract

NULL_SLOT = 0
EPS = 1e-6


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def gdn_scan_reference(
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
) -> torch.Tensor:
    """All requests advance together, one token at a time, as many times as there are rows: no host sync, so that a
    recording can hold it. What must not be written is sent to the null slot with the values that it has."""
    tokens, (heads, width), columns = v.shape[0], state.shape[1:3], state_table.shape[1]
    out = torch.zeros(v.shape, dtype=v.dtype, device=v.device)
    if not tokens:
        return out
    repeats = heads // k.shape[1]
    q = _unit(q).repeat_interleave(repeats, 1) * width**-0.5
    k, v = _unit(k).repeat_interleave(repeats, 1), v.float()
    table, spec, starts = state_table.long(), is_spec.bool(), query_start_loc.long()
    table = torch.where((table > NULL_SLOT) & (table < state.shape[0]), table, NULL_SLOT)
    first = torch.where(spec, (num_accepted.long() - 1).clamp(0, columns - 1), 0)
    source, start, count = table.gather(1, first[:, None])[:, 0], starts[:-1], starts.diff()
    live = (source != NULL_SLOT) & (count > 0) & (start >= 0) & (starts[1:] <= tokens)
    running = torch.where((live & has_initial.bool())[:, None, None, None], state[source], 0.0)
    # Row `tokens` of the output takes what is nobody's.
    rows = out.new_zeros((tokens + 1, *v.shape[1:]))
    for j in range(tokens):
        now = live & (j < count)
        at = torch.where(now, start + j, 0)
        s = running * torch.exp(g[at].float())[:, :, None, None]
        error = v[at] - (s * k[at][..., None]).sum(2)
        s = s + k[at][..., None] * (error * beta[at].float()[..., None])[:, :, None]
        rows.index_put_((torch.where(now, at, tokens),), (s * q[at][..., None]).sum(2).to(out.dtype))
        running = torch.where(now[:, None, None, None], s, running)
        if j < columns:
            _leave(state, running, table[:, j], now & spec)
    _leave(state, running, table[:, 0], live & ~spec)
    return out.copy_(rows[:tokens])


def _leave(state: torch.Tensor, running: torch.Tensor, slots: torch.Tensor, writes: torch.Tensor) -> None:
    """running [R, ...] into the slots of the requests that write and have one."""
    slots = torch.where(writes, slots, NULL_SLOT)
    kept = torch.where((slots != NULL_SLOT)[:, None, None, None], running.to(state.dtype), state[NULL_SLOT])
    state.index_put_((slots,), kept)


def _check(q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec) -> None:
    """Raises ValueError where the extents of one call contradict each other."""
    tokens, requests = v.shape[0], query_start_loc.shape[0] - 1
    heads, key_width, width = state.shape[1:]
    key_heads = k.shape[1]
    if not key_heads or heads % key_heads:
        raise ValueError(f"gdn_scan_: k: expected a divisor of the {heads} value heads; got {key_heads} key heads")
    if requests < 1 or state.shape[0] < 1 or not state_table.shape[1]:
        raise ValueError(
            "gdn_scan_: expected query_start_loc [R+1], state [slots, ...], state_table [R, 1+S], R, slots >= 1; "
            f"got {tuple(query_start_loc.shape)}, {tuple(state.shape)}, {tuple(state_table.shape)}"
        )
    for name, tensor, shape in (
        ("q", q, (tokens, key_heads, key_width)),
        ("k", k, (tokens, key_heads, key_width)),
        ("v", v, (tokens, heads, width)),
        ("g", g, (tokens, heads)),
        ("beta", beta, (tokens, heads)),
        ("state_table", state_table, (requests, state_table.shape[1])),
        ("has_initial", has_initial, (requests,)),
        ("num_accepted", num_accepted, (requests,)),
        ("is_spec", is_spec, (requests,)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"gdn_scan_: {name}: expected {shape}; got {tuple(tensor.shape)}")


@torch.library.custom_op("capwise::gdn_scan_", mutates_args={"state"})
def gdn_scan_(
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
) -> torch.Tensor:
    """The gated delta rule over each request's tokens. Strides of every argument are honoured.

    Args:
        q, k: [T, HK, DK], not normalised. v: [T, HV, DV]. HK divides HV.
        g: float32 [T, HV], the logarithm of the decay, at most 0. beta: float32 [T, HV].
        state: float32 [slots, HV, DK, DV], written in the slots that the module text names.
        query_start_loc: int [R+1].
        state_table: int [R, 1+S], the slots of each request, one for each token that a step may reject and one more;
            0 is the null slot.
        has_initial: bool [R], False for a request that starts here: its slot may hold anything.
        num_accepted: int [R], tokens of its last verify chunk that a request keeps, at least 1; read where is_spec.
        is_spec: bool [R], which requests verify drafts.

    Returns:
        [T, HV, DV] in v's dtype, dense.

    Raises:
        ValueError: extents that contradict each other.
    """
    call = q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec
    _check(*call)
    return gdn_scan_reference(*call)


@gdn_scan_.register_fake
def _(q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec):
    return v.new_empty(v.shape)


@contract("capwise::gdn_scan_")
def gdn_scan_contract() -> Contract:
    """With the last boundary repeated, a request past the live ones is empty: nothing of it is read or written."""
    return Contract(
        rows={
            "q": Rows("T", None, None, tail=Any()),
            "k": Rows("T", None, None, tail=Any()),
            "v": Rows("T", None, None, tail=Any()),
            "g": Rows("T", None, tail=Any()),
            "beta": Rows("T", None, tail=Any()),
            "state": Axes((None, None, None, None), write=True),
            "out": Rows("T", None, None, write=True),
        },
        requests={
            "query_start_loc": Boundaries("R+1", tail=Last()),
            "state_table": Slots("R", None, into="state", null=NULL_SLOT, tail=Any()),
            "has_initial": PerRequest("R", tail=Any()),
            "num_accepted": PerRequest("R", tail=Any()),
            "is_spec": PerRequest("R", tail=Any()),
        },
        locality="segment",
        state=("state",),
    )
