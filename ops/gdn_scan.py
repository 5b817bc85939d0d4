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

Two ways to the same numbers. One kernel walks token by token with the state in registers: decodes, verify rows and
short chunks, where the state's own traffic is what takes time. Chunks of more than `chunk` / 4 tokens go `chunk` tokens
at a time, by products of matrices (Yang, Kautz, Hatamizadeh 2024, gated delta networks, section 3.3). With G_i the sum
of g over the tokens 1..i, and S the state before the first,

    (I + L) U = beta (V - exp(G) K S)          L_ij = beta_i exp(G_i - G_j) k_i . k_j          for j < i
    O = exp(G) Q S + P U                       P_ij = exp(G_i - G_j) q_i . k_j                 for j <= i
    S <- exp(G_n) S + K^T (exp(G_n - G) U)

The inverse of I + L does not need S: one launch finds it for all chunks at once, by forward substitution. Chunks are
counted from the start of a request: what stands beside it in the batch changes no bit of its result. The way depends on
a request's own tokens alone, which are read on the device; all launches are made whatever the batch is, for as many
long chunks as there can be of its tokens, except that fewer tokens than a long chunk has need no launch for them.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Boundaries, Contract, Last, PerRequest, Rows, Slots, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl

NULL_SLOT = 0
EPS = 1e-6
# Tokens that go through products of matrices together.
CHUNK = 32
# Not all targets have matrix instructions for float32: what is unrolled in their place is kept small.
CHUNK_FLOAT32 = 16
# Columns of the state a program, warps, and chunks on their way. One H200, 48 heads of 128 columns in bfloat16: 8192
# tokens of 16 requests, or of one, take 745 or 932 us so, 1612 or 1875 us with the tile of float32, and 1848 or 2268 us
# with chunks of 64 tokens.
CHUNK_TILE, CHUNK_TILE_FLOAT32 = (64, 8, 2), (32, 4, 1)


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


@jit
def _request(
    row, starts_ptr, table_ptr, initial_ptr, accepted_ptr, spec_ptr,
    tokens, slots, columns, starts_stride, table_row, table_column, initial_stride, accepted_stride, spec_stride,
):
    """What is read of one request, row int64: its first token and the one past its last, the slot that it starts from,
    whether it is live, has a state, verifies."""
    start = tl.load(starts_ptr + row * starts_stride).to(tl.int64)
    end = tl.load(starts_ptr + (row + 1) * starts_stride).to(tl.int64)
    verifies = tl.load(spec_ptr + row * spec_stride) != 0
    accepted = tl.load(accepted_ptr + row * accepted_stride).to(tl.int64)
    first = tl.where(verifies, tl.minimum(tl.maximum(accepted - 1, 0), columns - 1), 0)
    slot = tl.load(table_ptr + row * table_row + first * table_column).to(tl.int64)
    live = (slot > 0) & (slot < slots) & (end > start) & (start >= 0) & (end <= tokens)
    initial = tl.load(initial_ptr + row * initial_stride) != 0
    return start, end, slot, live, initial, verifies


@jit
def _gdn_step_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, starts_ptr, table_ptr, initial_ptr, accepted_ptr, spec_ptr,
    out_ptr,
    tokens, requests, slots, columns, heads, key_width, width, scale,
    q_row, q_head, q_column, k_row, k_head, k_column, v_row, v_head, v_column, g_row, g_head, beta_row, beta_head,
    state_slot, state_head, state_key, state_column, starts_stride, table_row, table_column, initial_stride,
    accepted_stride, spec_stride,
    REPEATS: tl.constexpr, LONG: tl.constexpr, EPS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):
    """Token by token: some columns of one head's state of one request. LONG: requests of more tokens are not ours."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BLOCK_K).to(tl.int64)
    j = (tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    start, end, slot, live, initial, verifies = _request(
        row, starts_ptr, table_ptr, initial_ptr, accepted_ptr, spec_ptr, tokens, slots, columns, starts_stride,
        table_row, table_column, initial_stride, accepted_stride, spec_stride,
    )
    elsewhere = live & (LONG > 0) & (end - start > LONG) & (verifies == 0)
    state_at = head * state_head + i[:, None] * state_key + j[None, :] * state_column
    inside = (i < key_width)[:, None] & (j < width)[None, :]
    held = inside & live & initial & (elsewhere == 0)
    # A step passes over more states than a cache holds: kept there, they would only push each other out (a decode of 64
    # requests on one H200 takes 119 us so, 132 us otherwise).
    s = tl.load(state_ptr + slot * state_slot + state_at, mask=held, other=0.0, eviction_policy="evict_first")
    # The state is written where it was read: every load of this program must be over before its first store.
    tl.debug_barrier()
    out_at = head * width + j
    last = tl.where(elsewhere, start, tl.minimum(end, tokens))
    for t in range(tl.maximum(start, 0), last):
        key_at = (head // REPEATS) * k_head + t * k_row + i * k_column
        query_at = (head // REPEATS) * q_head + t * q_row + i * q_column
        k = tl.load(k_ptr + key_at, mask=i < key_width, other=0.0).to(tl.float32)
        q = tl.load(q_ptr + query_at, mask=i < key_width, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + t * v_row + head * v_head + j * v_column, mask=j < width, other=0.0).to(tl.float32)
        beta = tl.load(beta_ptr + t * beta_row + head * beta_head).to(tl.float32)
        decay = tl.exp(tl.load(g_ptr + t * g_row + head * g_head).to(tl.float32))
        k = k * (1.0 / tl.sqrt(tl.sum(k * k, 0) + EPS))
        q = q * (1.0 / tl.sqrt(tl.sum(q * q, 0) + EPS)) * scale
        s = s * decay
        error = v - tl.sum(s * k[:, None], 0)
        s += k[:, None] * (error * beta)[None, :]
        o = tl.where(live, tl.sum(s * q[:, None], 0), 0.0)
        tl.store(out_ptr + t * heads * width + out_at, o.to(out_ptr.dtype.element_ty), mask=j < width)
        if live & (verifies | (t == end - 1)):
            column = tl.where(verifies, t - start, 0)
            there = column < columns
            to = tl.load(table_ptr + row * table_row + column * table_column, mask=there, other=0).to(tl.int64)
            owned = (to > 0) & (to < slots)
            to_at = to * state_slot + state_at
            tl.store(state_ptr + to_at, s, mask=inside & owned, eviction_policy="evict_first")
    if row == requests - 1:
        # Padded tokens come after the last request, whether it is a padded one or not.
        for t in range(tl.maximum(end, 0), tokens):
            tl.store(out_ptr + t * heads * width + out_at, (j * 0).to(out_ptr.dtype.element_ty), mask=j < width)


@jit
def _unit_rows(ptr, at, there, EPS: tl.constexpr):
    """Rows over their length, float32; rows that are not there are 0."""
    x = tl.load(ptr + at, mask=there, other=0.0).to(tl.float32)
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 1) + EPS))[:, None]


@jit
def _decays(g_ptr, at, live):
    """The sum of g up to each token, and up to the last."""
    g = tl.load(g_ptr + at, mask=live, other=0.0).to(tl.float32)
    return tl.cumsum(g, 0), tl.sum(g, 0)


@jit
def _product(a, b):
    """a b in float32; exact products of float32, which tensor cores would shorten."""
    return tl.dot(a, b, input_precision="ieee")


@jit
def _long_requests(
    starts_ptr, spec_ptr, tokens, requests, starts_stride, spec_stride,
    LEAST: tl.constexpr, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr,
):
    """[BLOCK_R] of all requests: number, first token, one past the last, whether it is long. Its chunks are numbered
    from `begin` to `end` - 1, after those of the long requests before it."""
    r = tl.arange(0, BLOCK_R)
    at, there = starts_ptr + r.to(tl.int64) * starts_stride, r < requests
    first = tl.load(at, mask=there, other=0).to(tl.int64)
    past = tl.load(at + starts_stride, mask=there, other=0).to(tl.int64)
    verifies = tl.load(spec_ptr + r.to(tl.int64) * spec_stride, mask=there, other=0) != 0
    long = there & (past - first >= LEAST) & (verifies == 0) & (first >= 0) & (past <= tokens)
    chunks = tl.where(long, (past - first + CHUNK - 1) // CHUNK, 0)
    end = tl.cumsum(chunks, 0)
    return r, first, past, long, end - chunks, end


@jit
def _gdn_solve_kernel(
    k_ptr, g_ptr, beta_ptr, starts_ptr, spec_ptr, inverse_ptr,
    tokens, requests, heads, key_width, k_row, k_head, k_column, g_row, g_head, beta_row, beta_head, starts_stride,
    spec_stride,
    REPEATS: tl.constexpr, LEAST: tl.constexpr, EPS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The inverse of I + L of one chunk and head."""
    number, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    _r, firsts, past, _long, begin, after = _long_requests(
        starts_ptr, spec_ptr, tokens, requests, starts_stride, spec_stride, LEAST, CHUNK, BLOCK_R
    )
    mine = (begin <= number) & (number < after)
    if tl.sum(mine.to(tl.int32), 0) > 0:
        first = tl.sum(tl.where(mine, firsts + (number - begin) * CHUNK, 0), 0)
        end = tl.sum(tl.where(mine, past, 0), 0)
        i = tl.arange(0, CHUNK)
        t, d = first + i, tl.arange(0, BLOCK_K)
        live = t < end
        there = live[:, None] & (d < key_width)[None, :]
        key_at = (head // REPEATS) * k_head + t[:, None] * k_row + d[None, :] * k_column
        k = _unit_rows(k_ptr, key_at, there, EPS).to(k_ptr.dtype.element_ty)
        decay, _ = _decays(g_ptr, t * g_row + head * g_head, live)
        beta = tl.load(beta_ptr + t * beta_row + head * beta_head, mask=live, other=0.0).to(tl.float32)
        pairs = _product(k, tl.trans(k)) * beta[:, None]
        lower = tl.where(i[:, None] > i[None, :], pairs * tl.exp(decay[:, None] - decay[None, :]), 0.0)
        inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
        for n in range(1, CHUNK):
            mix = tl.sum(tl.where(i[:, None] == n, lower, 0.0), 0)
            change = tl.sum(mix[:, None] * inverse, 0)
            inverse = tl.where(i[:, None] == n, inverse - change[None, :], inverse)
        at = ((number.to(tl.int64) * heads + head) * CHUNK + i[:, None]) * CHUNK + i[None, :]
        tl.store(inverse_ptr + at, inverse.to(inverse_ptr.dtype.element_ty))


@jit
def _gdn_chunk_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, starts_ptr, table_ptr, initial_ptr, accepted_ptr, spec_ptr,
    inverse_ptr, out_ptr,
    tokens, requests, slots, columns, heads, key_width, width, scale,
    q_row, q_head, q_column, k_row, k_head, k_column, v_row, v_head, v_column, g_row, g_head, beta_row, beta_head,
    state_slot, state_head, state_key, state_column, starts_stride, table_row, table_column, initial_stride,
    accepted_stride, spec_stride,
    REPEATS: tl.constexpr, LEAST: tl.constexpr, EPS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):
    """Chunk by chunk: some columns of one head's state of one request, the n-th of those that are long."""
    n, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    r, _first, _past, long, begin, _after = _long_requests(
        starts_ptr, spec_ptr, tokens, requests, starts_stride, spec_stride, LEAST, CHUNK, BLOCK_R
    )
    mine = long & (tl.cumsum(long.to(tl.int32), 0) == n + 1)
    row = tl.sum(tl.where(mine, r, 0), 0).to(tl.int64)
    start, end, slot, live, initial, _verifies = _request(
        row, starts_ptr, table_ptr, initial_ptr, accepted_ptr, spec_ptr, tokens, slots, columns, starts_stride,
        table_row, table_column, initial_stride, accepted_stride, spec_stride,
    )
    if live & (tl.sum(mine.to(tl.int32), 0) > 0):
        i, d = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K).to(tl.int64)
        j = (tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
        inside = (d < key_width)[:, None] & (j < width)[None, :]
        state_at = slot * state_slot + head * state_head + d[:, None] * state_key + j[None, :] * state_column
        s = tl.load(state_ptr + state_at, mask=inside & initial, other=0.0)
        # The state is written where it was read: every load of this program must be over before its first store.
        tl.debug_barrier()
        kind = k_ptr.dtype.element_ty
        number = tl.sum(tl.where(mine, begin, 0), 0)
        for first in range(start, end, CHUNK):
            t = first + i
            live_t = t < end
            there = live_t[:, None] & (d < key_width)[None, :]
            key_at = (head // REPEATS) * k_head + t[:, None] * k_row + d[None, :] * k_column
            query_at = (head // REPEATS) * q_head + t[:, None] * q_row + d[None, :] * q_column
            k = _unit_rows(k_ptr, key_at, there, EPS).to(kind)
            value_at = t[:, None] * v_row + head * v_head + j[None, :] * v_column
            there_v = live_t[:, None] & (j < width)[None, :]
            v = tl.load(v_ptr + value_at, mask=there_v, other=0.0).to(tl.float32)
            beta = tl.load(beta_ptr + t * beta_row + head * beta_head, mask=live_t, other=0.0).to(tl.float32)
            decay, whole = _decays(g_ptr, t * g_row + head * g_head, live_t)
            inverse_at = ((number * heads + head) * CHUNK + i[:, None]) * CHUNK + i[None, :]
            inverse = tl.load(inverse_ptr + inverse_at)
            old, since = s.to(kind), tl.exp(decay)[:, None]
            right = beta[:, None] * (v - since * _product(k, old))
            u = _product(inverse, right.to(kind))
            left = (u * tl.exp(whole - decay)[:, None]).to(kind)
            s = s * tl.exp(whole) + tl.trans(_product(tl.trans(left), k))
            q = (_unit_rows(q_ptr, query_at, there, EPS) * scale).to(kind)
            pairs = _product(q, tl.trans(k))
            pairs = tl.where(i[:, None] >= i[None, :], pairs * tl.exp(decay[:, None] - decay[None, :]), 0.0)
            o = since * _product(q, old) + _product(pairs.to(kind), u.to(kind))
            out_at = t[:, None] * heads * width + head * width + j[None, :]
            tl.store(out_ptr + out_at, o.to(out_ptr.dtype.element_ty), mask=there_v)
            number += 1
        tl.store(state_ptr + state_at, s, mask=inside)


def _launch(
    q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec, chunk, out
) -> None:
    tokens, requests = v.shape[0], query_start_loc.shape[0] - 1
    slots, heads, key_width, width = state.shape
    chunk = min(chunk, CHUNK_FLOAT32) if k.dtype == torch.float32 else chunk
    long = chunk // 4
    request = state_table.stride(), has_initial.stride(0), num_accepted.stride(0), is_spec.stride(0)
    table_row, table_column, *per_request = *request[0], *request[1:]
    tensors = q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec
    sizes = slots, state_table.shape[1], heads, key_width, width, key_width**-0.5
    strides = (
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *g.stride(),
        *beta.stride(),
        *state.stride(),
        query_start_loc.stride(0),
        table_row,
        table_column,
        *per_request,
    )
    fixed = {"REPEATS": heads // k.shape[1], "EPS": EPS}
    block_v = block(width, v, gpu=32, cpu=256)
    _gdn_step_kernel[(requests, heads, -(-width // block_v))](
        *tensors,
        out,
        tokens,
        requests,
        *sizes,
        *strides,
        **fixed,
        LONG=long,
        BLOCK_K=power_of_two(key_width),
        BLOCK_V=block_v,
    )
    if not chunk or tokens <= long:
        return
    fixed |= {"LEAST": long + 1, "CHUNK": chunk, "BLOCK_R": power_of_two(requests)}
    block_v, warps, stages = CHUNK_TILE_FLOAT32 if k.dtype == torch.float32 else CHUNK_TILE
    block_k, block_v = max(power_of_two(key_width), 16), max(block(width, v, gpu=block_v, cpu=256), 16)
    most = min(requests, tokens // (long + 1))
    chunks = tokens // chunk + most
    inverse = k.new_empty(chunks, heads, chunk, chunk)
    _gdn_solve_kernel[(chunks, heads)](
        k,
        g,
        beta,
        query_start_loc,
        is_spec,
        inverse,
        tokens,
        requests,
        heads,
        key_width,
        *k.stride(),
        *g.stride(),
        *beta.stride(),
        query_start_loc.stride(0),
        is_spec.stride(0),
        **fixed,
        BLOCK_K=block_k,
        num_warps=1,
    )
    _gdn_chunk_kernel[(most, heads, -(-width // block_v))](
        *tensors,
        inverse,
        out,
        tokens,
        requests,
        *sizes,
        *strides,
        **fixed,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        num_warps=warps,
        num_stages=stages,
    )


def check_extents(
    op, q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec
) -> None:
    """Raises ValueError where the extents of one call of `op` contradict each other."""
    tokens, requests = v.shape[0], query_start_loc.shape[0] - 1
    heads, key_width, width = state.shape[1:]
    key_heads = k.shape[1]
    if not key_heads or heads % key_heads:
        raise ValueError(f"{op}: k: expected a divisor of the {heads} value heads; got {key_heads} key heads")
    if requests < 1 or state.shape[0] < 1 or not state_table.shape[1]:
        raise ValueError(
            f"{op}: expected query_start_loc [R+1], state [slots, ...], state_table [R, 1+S], R, slots >= 1; "
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
            raise ValueError(f"{op}: {name}: expected {shape}; got {tuple(tensor.shape)}")


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
    chunk: int = CHUNK,
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
        chunk: tokens that go through products of matrices together, a power of two, at least 16; 0 for none. Of
            float32 no more than 16.

    Returns:
        [T, HV, DV] in v's dtype, dense.

    Raises:
        ValueError: extents that contradict each other.
    """
    call = q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec
    check_extents("gdn_scan_", *call)
    if chunk and (chunk < 16 or chunk & (chunk - 1)):
        raise ValueError(f"gdn_scan_: chunk: expected 0 or a power of two of at least 16; got {chunk}")
    if not on_triton(v):
        return gdn_scan_reference(*call)
    out = v.new_empty(v.shape)
    if v.shape[0]:
        _launch(*call, chunk, out)
    return out


@gdn_scan_.register_fake
def _(q, k, v, g, beta, state, query_start_loc, state_table, has_initial, num_accepted, is_spec, chunk=CHUNK):
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
