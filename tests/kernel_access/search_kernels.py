"""Searches of boundaries in the ways that kernels write them, and searches that look like one and are none.

Each kernel stores to `out + row`, row r with qsl[r] <= t < qsl[r + 1] for program t, so that the address says what was
found.
"""

import triton
import triton.language as tl


@triton.jit
def closed_below(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n - 1
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if tl.load(qsl_ptr + mid) <= t:
            lo = mid
        else:
            hi = mid - 1
    tl.store(out_ptr + lo, t)


@triton.jit
def open_ends(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    while lo < hi:
        mid = (lo + hi) // 2
        if t < tl.load(qsl_ptr + mid + 1):
            hi = mid
        else:
            lo = mid + 1
    tl.store(out_ptr + lo, t)


@triton.jit
def apart(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    while hi - lo > 1:
        mid = (lo + hi) // 2
        if tl.load(qsl_ptr + mid) <= t:
            lo = mid
        else:
            hi = mid
    tl.store(out_ptr + lo, t)


@triton.jit
def written_out(qsl_ptr, out_ptr, n, stride, ROUNDS: tl.constexpr):
    t = tl.program_id(0)
    lo = 1
    hi = 1 + n
    for _ in tl.static_range(ROUNDS):
        mid = (lo + hi) // 2
        before = tl.load(qsl_ptr + mid * stride, mask=mid <= n, other=0) <= t
        lo = tl.where(before, mid + 1, lo)
        hi = tl.where(before, hi, mid)
    tl.store(out_ptr + lo - 1, t)


@triton.jit
def walks(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    row = 0
    while row < n - 1 and tl.load(qsl_ptr + row + 1) <= t:
        row += 1
    tl.store(out_ptr + row, t)


@triton.jit
def counts(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    row = 0
    for i in range(1, n):
        row += tl.where(tl.load(qsl_ptr + i) <= t, 1, 0)
    tl.store(out_ptr + row, t)


# none ----------------------------------------------------------------------------------------------------------------


@triton.jit
def skips_a_row(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    while lo < hi:
        mid = (lo + hi) // 2
        if tl.load(qsl_ptr + mid + 1) <= t:
            lo = mid + 1
        else:
            hi = mid - 1
    tl.store(out_ptr + lo, t)


@triton.jit
def stops_early(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    while lo + 1 < hi:
        mid = (lo + hi) // 2
        if tl.load(qsl_ptr + mid + 1) <= t:
            lo = mid + 1
        else:
            hi = mid
    tl.store(out_ptr + lo, t)


@triton.jit
def does_not_halve(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    for _ in range(3):
        mid = (3 * lo + hi) // 4
        live = lo < hi
        before = tl.load(qsl_ptr + mid + 1, mask=live, other=0) <= t
        lo = tl.where(live & before, mid + 1, lo)
        hi = tl.where(live & (before == 0), mid, hi)
    tl.store(out_ptr + lo, t)


@triton.jit
def other_way_round(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    while lo < hi:
        mid = (lo + hi) // 2
        if tl.load(qsl_ptr + mid + 1) >= t:
            lo = mid + 1
        else:
            hi = mid
    tl.store(out_ptr + lo, t)


@triton.jit
def reads_beyond(qsl_ptr, out_ptr, n, ROUNDS: tl.constexpr):
    t = tl.program_id(0)
    lo = 1
    hi = 1 + n
    for _ in tl.static_range(ROUNDS):
        mid = (lo + hi) // 2
        before = tl.load(qsl_ptr + mid, mask=mid < n, other=0) <= t
        lo = tl.where(before, mid + 1, lo)
        hi = tl.where(before, hi, mid)
    tl.store(out_ptr + lo - 1, t)


@triton.jit
def writes_what_it_searches(qsl_ptr, out_ptr, n):
    t = tl.program_id(0)
    lo = 0
    hi = n
    while lo < hi:
        mid = (lo + hi) // 2
        if tl.load(qsl_ptr + mid + 1) <= t:
            lo = mid + 1
        else:
            hi = mid
    tl.store(qsl_ptr + lo, t)
