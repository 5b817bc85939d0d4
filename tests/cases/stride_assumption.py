"""Public faults of the kind "stride assumption"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops.contract import Axes, Contiguous, Contract, declare
from capwise.ops.contract import Rows as OpRows
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


# ------------------------------------------------------------------------------------------ C76: no stride arguments
@jit
def _matvec_in_storage_order(matrix_ptr, vector_ptr, out_ptr, N: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    vector = tl.load(vector_ptr + token * N + column)
    matrix = tl.load(matrix_ptr + row * N + column)
    tl.store(out_ptr + token * N + tl.arange(0, N), tl.sum(matrix * vector, 1))


class TimesTransposed(nn.Module):
    """The kernel has no stride arguments; its matrix is a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.tensor([[1.0, 2], [3, 4]]))

    def forward(self, vectors):
        operand = self.matrix.t()
        out = torch.empty_like(vectors)
        _matvec_in_storage_order[(vectors.shape[0],)](operand, vectors, out, N=2)
        return out


class TimesTransposedDense(nn.Module):
    """The kernel has no stride arguments; its matrix is a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.tensor([[1.0, 2], [3, 4]]))

    def forward(self, vectors):
        operand = self.matrix.t().contiguous()
        out = torch.empty_like(vectors)
        _matvec_in_storage_order[(vectors.shape[0],)](operand, vectors, out, N=2)
        return out


def _c76(model: nn.Module) -> Case:
    return Case(
        model=model,
        batches=[{"vectors": torch.full((3, 2), 2.0)}, {"vectors": torch.ones(1, 2)}],
        inputs={"vectors": ("T", 2)},
        capacity={"T": 4},
        options={"capture_sizes": (4,)},
        reference=TimesTransposedDense(),
        name="C76 operand in storage order",
    )


# ------------------------------------------------------------------------------------------- C80: width for a stride
@jit
def _blocks_of(map_ptr, out_ptr, row_stride, WIDTH: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    tl.store(out_ptr + request * WIDTH + column, tl.load(map_ptr + request * row_stride + column))


class ReadsMapByWidth(nn.Module):
    """Under a graph the map is the first columns of a wide buffer; run eagerly it is as wide as it is stored."""

    def forward(self, block_map):
        narrow = block_map[:, :2]
        out = narrow.new_empty(narrow.shape[0], 2)
        _blocks_of[(narrow.shape[0],)](narrow, out, narrow.shape[1], WIDTH=2)
        return out


class ReadsMapByStride(nn.Module):
    """Under a graph the map is the first columns of a wide buffer; run eagerly it is as wide as it is stored."""

    def forward(self, block_map):
        narrow = block_map[:, :2]
        out = narrow.new_empty(narrow.shape[0], 2)
        _blocks_of[(narrow.shape[0],)](narrow, out, narrow.stride(0), WIDTH=2)
        return out


def _c80(model: nn.Module) -> Case:
    wide = torch.tensor([[1, 2, 0, 0], [3, 4, 0, 0]], dtype=torch.int32)
    return Case(
        model=model,
        batches=[{"block_map": torch.cat([wide, wide + 4])}, {"block_map": wide}],
        inputs={"block_map": ("R", 4)},
        key=("R",),
        capacity={"R": 4},
        options={"capture_sizes": (4,)},
        reference=ReadsMapByStride(),
        name="C80 width for a stride",
    )


# --------------------------------------------------------------------------- C77: strides of dimensions of one element
@torch.library.custom_op("cases::sum_by_descriptor", mutates_args=())
def sum_by_descriptor(query: torch.Tensor) -> torch.Tensor:
    """The sum over [1, tokens, width], by a memory descriptor that is made of the strides as they are."""
    batch, tokens, width = query.shape
    rows = query.stride(0) // query.stride(1)
    return query.as_strided((rows, width), query.stride()[1:]).sum(0)


sum_by_descriptor.register_fake(lambda query: query.new_empty(query.shape[2]))
declare(
    sum_by_descriptor._opoverload,
    Contract(rows={"query": Axes((1, None, None)), "out": Axes((None,))}, strides={"query": Contiguous(raw=True)}),
)


class SumsSlice(nn.Module):
    """The query is cut out of a padded batch of one: the ordinary test calls it contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("padded", torch.arange(8.0).view(1, 4, 2))

    def forward(self, x):
        query = self.padded[:, :2]
        query = query.contiguous()
        return torch.ops.cases.sum_by_descriptor(query), x + 1


class SumsCanonical(nn.Module):
    """The query is cut out of a padded batch of one: the ordinary test calls it contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("padded", torch.arange(8.0).view(1, 4, 2))

    def forward(self, x):
        query = self.padded[:, :2]
        query = query.clone(memory_format=torch.contiguous_format)
        return torch.ops.cases.sum_by_descriptor(query), x + 1


def _c77(name: str, model: nn.Module, reference: nn.Module | None = None) -> Case:
    return Case(
        model=model,
        batches=[{"x": torch.ones(3)}, {"x": torch.ones(1)}],
        inputs={"x": ("T",)},
        capacity={"T": 4},
        options={"capture_sizes": (4,)},
        reference=reference,
        name=name,
    )


def _took_strides_for_canonical(steps) -> bool:
    """Whether the sum went past the slice, as it does where (8, 2, 1) passes for the strides of a dense (1, 2, 2)."""
    return steps[-1]["output 0"].tolist() != [0.0 + 2, 1.0 + 3]


# ------------------------------------------------------------------------------ C79: a request for dense rows is elided
@torch.library.custom_op("cases::compact", mutates_args=())
def compact(rows: torch.Tensor) -> torch.Tensor:
    kept = rows.clone()
    return kept[:, :3]


@torch.library.custom_op("cases::compact_dense", mutates_args=())
def compact_dense(rows: torch.Tensor) -> torch.Tensor:
    kept = rows.clone()
    return kept[:, :3].contiguous()


for _op in (compact, compact_dense):
    _op.register_fake(lambda rows: rows.new_empty(rows.shape[0], 3))
    declare(_op._opoverload, Contract(rows={"rows": OpRows("T", 4), "out": OpRows("T", 3, write=True)}, locality="row"))


@jit
def _three_columns(x_ptr, out_ptr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < 3
    tl.store(out_ptr + token * 3 + column, tl.load(x_ptr + token * 3 + column, mask=inside), mask=inside)


class ReadsCompacted(nn.Module):
    """What was asked for densely is read densely."""

    compact = compact

    def forward(self, padded):
        dense = self.compact(padded)
        out = padded.new_empty(padded.shape[0], 3)
        _three_columns[(padded.shape[0],)](dense, out, BLOCK=4)
        return out


class ReadsCompactedDense(ReadsCompacted):
    compact = compact_dense


class FirstThree(nn.Module):
    def forward(self, padded):
        return padded[:, :3].clone()


def _c79(model: nn.Module) -> Case:
    rows = torch.tensor([[1.0, 2, 3, -1], [4, 5, 6, -1]])
    return Case(
        model=model,
        batches=[{"padded": torch.cat([rows, rows + 10])}, {"padded": rows}],
        inputs={"padded": ("T", 4)},
        capacity={"T": 4},
        options={"capture_sizes": (4,)},
        reference=FirstThree(),
        name="C79 elided compaction",
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
    Record(
        id="C76",
        ref="vllm-project/vllm#32831",
        kind="stride-assumption",
        title="a kernel without stride arguments reads a transposed operand in storage order",
        group="graph",
        codes=("CW401",),
        expected=[4, 6],
        wrong=[3, 7],
        case=lambda: _c76(TimesTransposed()),
        twin=lambda: _c76(TimesTransposedDense()),
        read=lambda steps: steps[-1]["output 0"][0],
    ),
    Record(
        id="C80",
        ref="alibaba/rtp-llm#1211",
        kind="stride-assumption",
        title="a narrow view of a wide captured map is read with its width for the row stride",
        group="graph",
        codes=("CW401",),
        expected=[3, 4],
        wrong=[0, 0],
        case=lambda: _c80(ReadsMapByWidth()),
        twin=lambda: _c80(ReadsMapByStride()),
        read=lambda steps: steps[-1]["output 0"][1],
    ),
    Record(
        id="C77",
        ref="vllm-project/vllm#32452",
        kind="stride-assumption",
        title="contiguous() leaves the odd stride of a dimension of one element, and a descriptor is made of it",
        group="graph",
        codes=("CW401", "CW402"),
        expected=False,
        wrong=True,
        case=lambda: _c77("C77 raw strides", SumsSlice(), SumsCanonical()),
        twin=lambda: _c77("C77 repaired", SumsCanonical()),
        read=_took_strides_for_canonical,
    ),
    Record(
        id="C79",
        ref="pytorch/pytorch#185862",
        kind="stride-assumption",
        title="a region promises dense rows and returns a view with padded ones",
        group="graph",
        codes=("CW401", "CW402"),
        expected=[4, 5, 6],
        wrong=[-1, 4, 5],
        case=lambda: _c79(ReadsCompacted()),
        twin=lambda: _c79(ReadsCompactedDense()),
        read=lambda steps: steps[-1]["output 0"][1],
        sources=((compact, compact_dense),),
    ),
]
