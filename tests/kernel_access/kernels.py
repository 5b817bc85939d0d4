"""Kernels with hazards, and their repaired twins; nothing stands around them."""

import triton
import triton.language as tl


@triton.jit
def slot_unit(state_ptr, idx_ptr, out_ptr, stride_state, stride_out, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    o = tl.arange(0, H)
    tl.store(out_ptr + r * stride_out + o, tl.load(state_ptr + slot * stride_state + o))


@triton.jit
def slot_passed(state_ptr, idx_ptr, out_ptr, stride_idx, stride_state, stride_out, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r * stride_idx).to(tl.int64)
    o = tl.arange(0, H)
    tl.store(out_ptr + r * stride_out + o, tl.load(state_ptr + slot * stride_state + o))


@triton.jit
def search(qsl_ptr, out_ptr, num_reqs):
    t = tl.program_id(0)
    lo = 0
    hi = num_reqs
    while lo < hi:
        mid = (lo + hi) // 2
        if tl.load(qsl_ptr + mid + 1) <= t:
            lo = mid + 1
        else:
            hi = mid
    tl.store(out_ptr + t, lo)


@triton.jit
def search_linear(qsl_ptr, out_ptr, num_reqs):
    t = tl.program_id(0)
    found = 0
    for i in range(num_reqs):
        found += tl.where(tl.load(qsl_ptr + i + 1) <= t, 1, 0)
    tl.store(out_ptr + t, found)


@triton.jit
def search_lanes(qsl_ptr, out_ptr, num_reqs, n, B: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    lo = tl.zeros([B], tl.int32)
    hi = tl.zeros([B], tl.int32) + num_reqs
    for _ in range(8):
        mid = (lo + hi) // 2
        live = lo < hi
        right = tl.load(qsl_ptr + mid + 1, mask=live, other=0) <= t
        lo = tl.where(live & right, mid + 1, lo)
        hi = tl.where(live & (right == 0), mid, hi)
    tl.store(out_ptr + t, lo, mask=t < n)


@triton.jit
def boundaries(x_ptr, qsl_ptr, out_ptr, stride_x, stride_out, H: tl.constexpr):
    r = tl.program_id(0)
    start = tl.load(qsl_ptr + r).to(tl.int64)
    end = tl.load(qsl_ptr + r + 1).to(tl.int64)
    o = tl.arange(0, H)
    total = tl.zeros([H], tl.float32)
    for t in range(start, end):
        total += tl.load(x_ptr + t * stride_x + o)
        tl.store(out_ptr + t * stride_out + o, total)


@triton.jit
def state_checked(x_ptr, state_ptr, idx_ptr, stride_x, stride_state, NULL: tl.constexpr, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    if slot == NULL:
        return
    o = tl.arange(0, H)
    tl.store(state_ptr + slot * stride_state + o, tl.load(x_ptr + r * stride_x + o))


@triton.jit
def state_unchecked(x_ptr, state_ptr, idx_ptr, stride_x, stride_state, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    o = tl.arange(0, H)
    tl.store(state_ptr + slot * stride_state + o, tl.load(x_ptr + r * stride_x + o))


@triton.jit
def state_masked(x_ptr, state_ptr, idx_ptr, n, stride_x, stride_state, B: tl.constexpr, H: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    slots = tl.load(idx_ptr + rows, mask=rows < n, other=-1).to(tl.int64)
    o = tl.arange(0, H)
    x = tl.load(x_ptr + rows[:, None] * stride_x + o[None, :], mask=(rows < n)[:, None], other=0.0)
    tl.store(state_ptr + slots[:, None] * stride_state + o[None, :], x, mask=(slots >= 0)[:, None])


@triton.jit
def state_two_ways(x_ptr, state_ptr, idx_ptr, flag_ptr, stride_state, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r).to(tl.int64)
    flag = tl.load(flag_ptr + r)
    if flag == 0:
        if slot < 0:
            return
    o = tl.arange(0, H)
    tl.store(state_ptr + slot * stride_state + o, tl.load(x_ptr + o))


@triton.jit
def shift_alone(state_ptr, idx_ptr, stride_state, W: tl.constexpr, H: tl.constexpr):
    slot = tl.load(idx_ptr + tl.program_id(0)).to(tl.int64)
    w = tl.arange(0, W)[:, None]
    o = tl.arange(0, H)[None, :]
    p = state_ptr + slot * stride_state
    x = tl.load(p + (w + 1) * H + o, mask=w + 1 < W, other=0.0)
    tl.store(p + w * H + o, x)


@triton.jit
def shift_blocks(state_ptr, idx_ptr, stride_state, n, B: tl.constexpr):
    slot = tl.load(idx_ptr + tl.program_id(0)).to(tl.int64)
    o = tl.program_id(1) * B + tl.arange(0, B)
    p = state_ptr + slot * stride_state
    x = tl.load(p + o + 1, mask=o + 1 < n, other=0.0)
    tl.store(p + o, x, mask=o < n)


@triton.jit
def shift_barrier(state_ptr, stride_state, H: tl.constexpr):
    o = tl.arange(0, H)
    p = state_ptr + tl.program_id(0).to(tl.int64) * stride_state
    x = tl.load(p + o + 1, mask=o + 1 < H, other=0.0)
    tl.debug_barrier()
    tl.store(p + o, x)


@triton.jit
def shift_by_passed(state_ptr, idx_ptr, stride_state, stride_w, W: tl.constexpr, H: tl.constexpr):
    slot = tl.load(idx_ptr + tl.program_id(0)).to(tl.int64)
    w = tl.arange(0, W)[:, None]
    o = tl.arange(0, H)[None, :]
    p = state_ptr + slot * stride_state
    x = tl.load(p + (w + 1) * stride_w + o, mask=w + 1 < W, other=0.0)
    tl.store(p + w * stride_w + o, x)


@triton.jit
def moved_slots(state_ptr, from_ptr, to_ptr, stride_state, H: tl.constexpr):
    r = tl.program_id(0)
    o = tl.arange(0, H)
    x = tl.load(state_ptr + tl.load(from_ptr + r).to(tl.int64) * stride_state + o)
    tl.store(state_ptr + tl.load(to_ptr + r).to(tl.int64) * stride_state + o, x)


@triton.jit
def in_place(x_ptr, stride, H: tl.constexpr):
    o = tl.arange(0, H)
    p = x_ptr + tl.program_id(0).to(tl.int64) * stride + o
    x = tl.load(p)
    tl.store(p, x / tl.sum(x))


@triton.jit
def halves(x_ptr, n):
    o = tl.arange(0, 16)
    for i in range(0, n, 16):
        x = tl.load(x_ptr + i + o, mask=i + o < n, other=0.0)
        tl.store(x_ptr + n + i + o, x, mask=i + o < n)


@triton.jit
def rows_32(x_ptr, idx_ptr, out_ptr, stride_x, H: tl.constexpr):
    r = tl.program_id(0)
    slot = tl.load(idx_ptr + r)
    o = tl.arange(0, H)
    tl.store(out_ptr + r.to(tl.int64) * H + o, tl.load(x_ptr + slot * stride_x + o))


@triton.jit
def rows_32_late(x_ptr, idx_ptr, out_ptr, H: tl.constexpr):
    r = tl.program_id(0)
    slot = (tl.load(idx_ptr + r) * H).to(tl.int64)
    o = tl.arange(0, H)
    tl.store(out_ptr + r.to(tl.int64) * H + o, tl.load(x_ptr + slot + o))


@triton.jit
def masked_copy(src_ptr, dst_ptr, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(dst_ptr + o, tl.load(src_ptr + o, mask=o < n, other=0.0), mask=o < n)


@triton.jit
def columns(x_ptr, out_ptr, stride_x, n_cols, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, B)
    x = tl.load(x_ptr + r * stride_x + o, mask=o < n_cols, other=0.0)
    tl.store(out_ptr + r, tl.sum(x))


@triton.jit
def shift_blocks_barrier(state_ptr, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(state_ptr + o + 1, mask=o + 1 < n, other=0.0)
    tl.debug_barrier()
    tl.store(state_ptr + o, x, mask=o < n)


@triton.jit
def shared_cell(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)


@triton.jit
def scatter(x_ptr, out_ptr, slot_ptr, n, stride_out, P: tl.constexpr, B: tl.constexpr):
    t = tl.program_id(0)
    slot = tl.load(slot_ptr + t)
    if slot < 0:
        return
    o = tl.arange(0, B)
    p = out_ptr + (slot // P).to(tl.int64) * stride_out + slot % P
    tl.store(p + o * P, tl.load(x_ptr + t * n + o, mask=o < n, other=0.0), mask=o < n)


@triton.jit
def state_by_program(state_ptr, len_ptr, stride, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, H)
    x = tl.load(state_ptr + r * stride + o)
    tl.store(state_ptr + r * stride + o, x + tl.load(len_ptr + r), mask=o < tl.load(len_ptr + r))


@triton.jit
def tail_masked_load(x_ptr, idx_ptr, state_ptr, n, stride, H: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    slot = tl.load(idx_ptr + r, mask=r < n, other=0)
    o = tl.arange(0, H)
    if slot >= 0:
        tl.store(state_ptr + slot * stride + o, tl.load(x_ptr + o))


@triton.jit
def float_slot(w_ptr, state_ptr, stride, H: tl.constexpr):
    w = tl.load(w_ptr + tl.program_id(0))
    if w > 0.5:
        tl.store(state_ptr + tl.arange(0, H), w)


@triton.jit
def search_and_store(qsl_ptr, state_ptr, num_reqs, stride):
    r = tl.program_id(0)
    lo = 0
    while lo < num_reqs and tl.load(qsl_ptr + lo) < tl.load(qsl_ptr + r):
        lo += 1
    if lo > 0:
        tl.store(state_ptr + lo * stride, r)


@triton.jit
def shared_by_heads(idx_ptr, out_ptr, stride):
    h = tl.program_id(0)
    slot = tl.load(idx_ptr + tl.program_id(1))
    tl.store(out_ptr + h * stride, slot)
