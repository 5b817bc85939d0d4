"""Public faults of the kind "int overflow"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops.launch import jit, tl
from tests.cases.harness import Record

TOKENS, HEADS, WIDTH = 65536, 64, 128
PLACES = 16


# ------------------------------------------------------------------------------- C92: a product with a program's number
@jit
def _last_head_32(cache_ptr, out_ptr, tokens, heads, width, places):
    """Of each request, the place of its last head's row; and what stands there, in a cache that ends earlier."""
    request = tl.program_id(0)
    offset = (request * tokens * heads + (heads - 1)) * width
    inside = (offset >= 0) & (offset < places)
    found = tl.load(cache_ptr + offset, mask=inside, other=0)
    tl.store(out_ptr + request, offset + found)


@jit
def _last_head_64(cache_ptr, out_ptr, tokens, heads, width, places):
    """Of each request, the place of its last head's row; and what stands there, in a cache that ends earlier."""
    request = tl.program_id(0).to(tl.int64)
    offset = (request * tokens * heads + (heads - 1)) * width
    inside = (offset >= 0) & (offset < places)
    found = tl.load(cache_ptr + offset, mask=inside, other=0)
    tl.store(out_ptr + request, offset + found)


class LastHead(nn.Module):
    kernel = _last_head_32

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(PLACES, dtype=torch.int64))

    def forward(self, lengths):
        out = torch.empty_like(lengths)
        self.kernel[(lengths.shape[0],)](self.cache, out, TOKENS, HEADS, WIDTH, PLACES)
        return out


class LastHeadWide(LastHead):
    kernel = _last_head_64


def _c92(name: str, model: nn.Module, reference: nn.Module | None = None) -> Case:
    return Case(
        model=model,
        batches=[{"lengths": torch.ones(n, dtype=torch.int64)} for n in (3, 5)],
        inputs={"lengths": ("R",)},
        key=("R",),
        capacity={"R": 8},
        options={"capture_sizes": (8,)},
        reference=reference,
        name=name,
    )


RECORDS = [
    Record(
        id="C92",
        ref="fla-org/flash-linear-attention#1080",
        kind="int-overflow",
        title="an offset is a product with a program's number, in 32 bits",
        group="graph",
        codes=("CW403",),
        expected=2147491712,
        wrong=-2147475584,
        case=lambda: _c92("C92 32-bit offset", LastHead(), LastHeadWide()),
        twin=lambda: _c92("C92 repaired", LastHeadWide()),
        read=lambda steps: steps[-1]["output 0"][4],
        sources=((_last_head_32, _last_head_64),),
    ),
]
