"""Public faults of the kind "host sync or host read": the host takes part in the step, a replay leaves it out."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.ops import contract as c
from tests.cases.harness import Record


def _opaque(name: str, body, fake, contract: c.Contract | None = None):
    made = torch.library.custom_op(f"host_sync::{name}", body, mutates_args=())
    made.register_fake(fake)
    if contract is not None:
        c.declare(made._opoverload, contract)


# ------------------------------------------------------------ C51: an integer out of an op
def _half(length: torch.Tensor) -> int:
    """A length that the op decides from what is in memory."""
    return int(length.numpy()[0]) // 2


_opaque("half", _half, lambda length: torch.library.get_ctx().new_dynamic_size(min=0, max=6))


class FirstHalf(nn.Module):
    def forward(self, x, length):
        n = torch.ops.host_sync.half(length)
        return x[:n] + 1


class FirstHalfMasked(nn.Module):
    """Rows past the half are zero."""

    def forward(self, x, length):
        n = length // 2
        return torch.where(torch.arange(6) < n, x + 1, 0)


def _c51(model: type[nn.Module]) -> Case:
    batches = [{"x": torch.arange(1, 7), "length": torch.tensor([n])} for n in (4, 6)]
    return Case(model(), batches, inputs={"x": (6,), "length": (1,)}, name="C51 a size out of an op")


# ------------------------------------------------------------ C54: host work in the region
def _handshake(x: torch.Tensor) -> torch.Tensor:
    """The host doubles what the device hands over."""
    return torch.from_numpy(x.numpy() * 2)


def _native(x: torch.Tensor) -> torch.Tensor:
    """The host doubles what the device hands over."""
    return x * 2


ROW_WISE = c.Contract(locality="row")
_opaque("handshake", _handshake, lambda x: torch.empty_like(x), ROW_WISE)
_opaque("native", _native, lambda x: torch.empty_like(x), ROW_WISE)


class Doubles(nn.Module):
    double = torch.ops.host_sync.handshake

    def forward(self, x):
        return self.double(x)


class DoublesNatively(Doubles):
    double = torch.ops.host_sync.native


def _c54(model: type[Doubles]) -> Case:
    batches = [{"x": torch.tensor([v])} for v in (2, 5)]
    return Case(model(), batches, inputs={"x": (1,)}, name="C54 host work inside the region")


# ------------------------------------------------------------ C55: a recorded host address
_block = torch.zeros(2, dtype=torch.int64)


def _gather_pieces(pieces: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Pieces in an order that goes to the device through a pinned block of the allocator's."""
    _block.numpy()[:] = order.numpy()
    return pieces[_block.clone()].flatten()


def _gather_by_input(pieces: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Pieces in an order that goes to the device through a pinned block of the allocator's."""
    return pieces[order.clone()].flatten()


GATHERS = c.Contract(rows={"pieces": c.Rows("T", 2)}, locality="global")


def _pair(pieces, order):
    return pieces.new_empty(4)


_opaque("gather_pieces", _gather_pieces, _pair, GATHERS)
_opaque("gather_by_input", _gather_by_input, _pair, GATHERS)


class Pieces(nn.Module):
    gather = torch.ops.host_sync.gather_pieces

    def forward(self, pieces, order):
        return self.gather(pieces, order)


class PiecesByInput(Pieces):
    gather = torch.ops.host_sync.gather_by_input


class Indexed(nn.Module):
    def forward(self, pieces, order):
        return pieces[order].flatten()


def _c55(model: type[Pieces]) -> Case:
    """A decode, a prefill of another size that takes the block over, the decode again."""
    short, long = torch.tensor([[1, 2], [3, 4]]), torch.arange(8).view(4, 2)
    orders = (torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([0, 1]))
    batches = [{"pieces": p, "order": o} for p, o in zip((short, long, short), orders)]
    return Case(
        model(), batches, inputs={"pieces": ("T", 2), "order": (2,)}, capacity={"T": 4}, reference=Indexed(),
        options={"capture_sizes": (2, 4)}, name="C55 the address of a recycled host block",
    )  # fmt: skip


RECORDS = [
    Record(
        id="C51",
        ref="pytorch/pytorch#172728",
        kind="host-sync-or-host-read",
        title="a size that an op returns is a constant of the recording",
        group="graph",
        codes=("CW002",),
        expected=[2, 3, 4],
        wrong=[2, 3],
        case=lambda: _c51(FirstHalf),
        twin=lambda: _c51(FirstHalfMasked),
        read=lambda steps: steps[-1]["output 0"][:3],
    ),
    Record(
        id="C54",
        ref="FlashML-org/FreeToken#350",
        kind="host-sync-or-host-read",
        title="the host does part of the work; a replay takes the result of capture",
        group="graph",
        codes=("CW002",),
        expected=10,
        wrong=4,
        case=lambda: _c54(Doubles),
        twin=lambda: _c54(DoublesNatively),
        read=lambda steps: steps[-1]["output 0"][0],
        sources=((_handshake, _native),),
    ),
    Record(
        id="C55",
        ref="microsoft/onnxruntime#32121",
        kind="host-sync-or-host-read",
        title="a copy holds the address of a host block that its allocator gave away",
        group="runtime",
        codes=("CW306", "CW103"),
        expected=[1, 2, 3, 4],
        wrong=[3, 4, 3, 4],
        case=lambda: _c55(Pieces),
        twin=lambda: _c55(PiecesByInput),
        sources=((_gather_pieces, _gather_by_input),),
    ),
]
