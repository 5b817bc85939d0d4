"""Which request a token belongs to: an upper-bound search over the request boundaries.

row(t) = #{i in 1..R : query_start_loc[i] <= t}, cut at R - 1, for a monotone list of boundaries.

What counts is the search, not the formula: bit_length(R) rounds of bisection over 1..R, where an index past R reads
as 0. A stale tail makes the list non-monotone, and then the two differ: [0, 8, 2, 12, 16, 20, 24, 28, 32] sends the
tokens 0..7 to the rows 0, 0, 2, 2, 2, 2, 2, 2 where counting would say row 1. With a tail that repeats the last live
boundary every live token finds its own row whatever R is, and rows of zero length are skipped.
"""

from __future__ import annotations

import torch

from capwise.ops.launch import jit, tl


def rounds(requests: int) -> int:
    """How many halvings settle the search over `requests` rows."""
    return requests.bit_length()


def request_rows(tokens: int, query_start_loc: torch.Tensor) -> torch.Tensor:
    """The request row of each of the tokens 0..T-1. query_start_loc int[R+1], R >= 1 -> int64[T]."""
    requests = query_start_loc.shape[0] - 1
    starts = query_start_loc.long()
    token = torch.arange(tokens, device=starts.device)
    low, high = torch.ones_like(token), torch.full_like(token, requests + 1)
    for _ in range(rounds(requests)):
        middle = (low + high) // 2
        start = torch.where(middle <= requests, starts[middle.clamp(max=requests)], 0)
        low, high = torch.where(start <= token, middle + 1, low), torch.where(start <= token, high, middle)
    return (low - 1).clamp(max=requests - 1)


@jit
def request_row(token, starts_ptr, starts_stride, requests, ROUNDS: tl.constexpr):
    """The same search in a kernel. token int32[BLOCK] -> int32[BLOCK]."""
    low = token * 0 + 1
    high = low + requests
    for _ in tl.static_range(ROUNDS):
        middle = (low + high) // 2
        offset = middle.to(tl.int64) * starts_stride
        start = tl.load(starts_ptr + offset, mask=middle <= requests, other=0)
        before = start <= token
        low = tl.where(before, middle + 1, low)
        high = tl.where(before, high, middle)
    return tl.minimum(low - 1, requests - 1)
