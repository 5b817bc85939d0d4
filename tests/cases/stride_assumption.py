"""Public faults of the kind "stride assumption"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops.launch import jit, tl
from tests.cases.harness import Record


# ------------------------------------------------------------------------------------------- C74: row stride ignored
@jit
def _rows_by_width(q_ptr, out_ptr, row_stride, WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    tl.store(out_ptr + token * WIDTH + column, tl.load(q_ptr + token * WIDTH + column))


@jit
def _rows_by_stride(q_ptr, out_ptr, row_stride, WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    tl.store(out_ptr + token * WIDTH + column, tl.load(q_ptr + token * row_stride + column))


class CopiesRows(nn.Module):
    """Queries are the first two columns of a wider projection."""

    kernel = _rows_by_width

    def forward(self, projected):
        q = projected[:, :2]
        out = q.new_empty(q.shape[0], 2)
        self.kernel[(q.shape[0],)](q, out, q.stride(0), WIDTH=2)
        return out


class CopiesRowsByStride(CopiesRows):
    kernel = _rows_by_stride


class Rows(nn.Module):
    def forward(self, projected):
        return projected[:, :2].clone()


def _c74(model: type[CopiesRows]) -> Case:
    burst, step = torch.arange(20.0).view(5, 4) + 50, torch.arange(1.0, 9).view(2, 4)
    return Case(
        model=model(),
        batches=[{"projected": burst}, {"projected": step}],
        inputs={"projected": ("T", 4)},
        capacity={"T": 8},
        options={"capture_sizes": (8,)},
        reference=Rows(),
        name="C74 rows a width apart",
    )


RECORDS = [
    Record(
        id="C74",
        ref="vllm-project/vllm#16658",
        kind="stride-assumption",
        title="a kernel steps from row to row by the width, its operand is a slice of a wider tensor",
        group="graph",
        codes=("CW401",),
        expected=[5, 6],
        wrong=[3, 4],
        case=lambda: _c74(CopiesRows),
        twin=lambda: _c74(CopiesRowsByStride),
        read=lambda steps: steps[-1]["output 0"][1],
        sources=((_rows_by_width, _rows_by_stride),),
    ),
]
