"""Public faults of the kind "baked scalar": a number of the host that a recording keeps."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.labels import Live
from capwise.ops import contract as c
from tests.cases.harness import Record

# What the declared ops of these cases say: one row in, one row out. Their bodies are read all the same.
ROW_WISE = c.Contract(locality="row")
FIXED = {"capture_sizes": (2,)}


def _opaque(name: str, body, fake, mutates: tuple[str, ...] = ()):
    """A custom op with a contract: what is found then is found in its body."""
    made = torch.library.custom_op(f"baked_scalar::{name}", body, mutates_args=mutates)
    made.register_fake(fake)
    c.declare(made._opoverload, ROW_WISE)
    return made


# ------------------------------------------------------------ C39: a round counter by value
_rounds = {"count": 0}


def _all_reduce(
    peer: torch.Tensor, local: torch.Tensor, flag: torch.Tensor, landed: torch.Tensor, rounds: torch.Tensor
) -> torch.Tensor:
    """The peer's data lands unless the flag of this round is up already."""
    _rounds["count"] += 1
    number = _rounds["count"]
    landed.copy_(torch.where(flag != number, peer, landed))
    flag.fill_(number)
    return local + landed


def _all_reduce_on_device(
    peer: torch.Tensor, local: torch.Tensor, flag: torch.Tensor, landed: torch.Tensor, rounds: torch.Tensor
) -> torch.Tensor:
    """The peer's data lands unless the flag of this round is up already."""
    rounds += 1
    number = rounds.clone()
    landed.copy_(torch.where(flag != number, peer, landed))
    flag.copy_(number)
    return local + landed


_STATE = ("flag", "landed", "rounds")
_opaque("all_reduce", _all_reduce, lambda peer, local, *_: torch.empty_like(local), _STATE)
_opaque("all_reduce_on_device", _all_reduce_on_device, lambda peer, local, *_: torch.empty_like(local), _STATE)


class AllReduce(nn.Module):
    reduce = torch.ops.baked_scalar.all_reduce

    def __init__(self):
        super().__init__()
        # Workspace of the library, not the model's state: the number in the flag is nobody's result.
        self.flag, self.landed, self.rounds = (torch.zeros(1, dtype=torch.int64) for _ in _STATE)

    def forward(self, peer, local):
        return self.reduce(peer, local, self.flag, self.landed, self.rounds)


class AllReduceOnDevice(AllReduce):
    reduce = torch.ops.baked_scalar.all_reduce_on_device


class Sum(nn.Module):
    def forward(self, peer, local):
        return local + peer


def _c39(model: type[AllReduce]) -> Case:
    batches = [{"peer": torch.tensor([p]), "local": torch.tensor([v])} for p, v in ((5, 1), (9, 2))]
    inputs = {"peer": (1,), "local": (1,)}
    return Case(model(), batches, inputs=inputs, reference=Sum(), name="C39 a round counter passed by value")


# ------------------------------------------------------------ C40: a row stride of the host
class ReadsByLongest(nn.Module):
    """Row i of a flat buffer starts at i times the longest sequence of the batch."""

    def forward(self, flat, row, longest):
        at = row[:, None] * longest + torch.arange(2)
        return flat[at]


class ReadsByWidest(nn.Module):
    def forward(self, flat, row, longest):
        at = row[:, None] * 4 + torch.arange(2)
        return flat[at]


def _c40(model: type[nn.Module], flat: list[int]) -> Case:
    row = torch.tensor([1])
    batches = [
        {"flat": torch.tensor([1, 2, 0, 0, 9, 9, 0, 0]), "row": row, "longest": 4},
        {"flat": torch.tensor(flat), "row": row, "longest": 2},
    ]
    inputs = {"flat": (8,), "row": ("T",), "longest": "L"}
    return Case(
        model(), batches, inputs=inputs, capacity={"T": 2, "L": 4}, options=FIXED, name="C40 a row stride baked in"
    )


# ------------------------------------------------------------ C41: a grid of segments
def _scale_segments(x: torch.Tensor, weights: torch.Tensor, segment: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """One launch a segment of the batch."""
    out = torch.zeros_like(x)
    for i in range(int(count.numpy()[0])):
        out[i] = x[i] * weights.index_select(0, segment[i : i + 1])[0]
    return out


def _scale_all(x: torch.Tensor, weights: torch.Tensor, segment: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """One launch a segment of the buffer; those past the count are neutral."""
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * weights.index_select(0, segment[i : i + 1])[0] * (count[0] > i)
    return out


_opaque("scale_segments", _scale_segments, lambda x, *_: torch.empty_like(x))
_opaque("scale_all", _scale_all, lambda x, *_: torch.empty_like(x))


class Adapters(nn.Module):
    scale = torch.ops.baked_scalar.scale_segments

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.tensor([1, 10, 100]))

    def forward(self, x, segment, count):
        return self.scale(x, self.weights, segment, count)


class AdaptersOfBuffer(Adapters):
    scale = torch.ops.baked_scalar.scale_all


def _c41(model: type[Adapters]) -> Case:
    x = torch.ones(3, dtype=torch.int64)
    batches = [
        {"x": x, "segment": torch.tensor([0, 0, 0]), "count": torch.tensor([1])},
        {"x": x, "segment": torch.tensor([0, 1, 2]), "count": torch.tensor([3])},
    ]
    inputs = {"x": (3,), "segment": (3,), "count": (1,)}
    return Case(model(), batches, inputs=inputs, name="C41 as many programs as segments at capture")


# ------------------------------------------------------------ C44: a plan of the warm-up
_workspace: dict[str, torch.Tensor] = {}


def _attend(lengths: torch.Tensor) -> torch.Tensor:
    """Tokens attended a row: what the plan's tiles cover."""
    _workspace["tiles"] = torch.tensor(lengths.tolist())
    return torch.minimum(lengths, _workspace["tiles"])


def _attend_planned(lengths: torch.Tensor) -> torch.Tensor:
    """Tokens attended a row: what the plan's tiles cover."""
    tiles = lengths.clone()
    return torch.minimum(lengths, tiles)


_opaque("attend", _attend, lambda lengths: torch.empty_like(lengths))
_opaque("attend_planned", _attend_planned, lambda lengths: torch.empty_like(lengths))


class Attention(nn.Module):
    attend = torch.ops.baked_scalar.attend

    def forward(self, lengths):
        return self.attend(lengths)


class PlannedAttention(Attention):
    attend = torch.ops.baked_scalar.attend_planned


def _c44(model: type[Attention]) -> Case:
    batches = [{"lengths": torch.tensor(n)} for n in ([8, 1], [3, 6])]
    return Case(model(), batches, inputs={"lengths": (2,)}, name="C44 a plan that no replay refreshes")


# ------------------------------------------------------------ C45: two builders
class Verifies(nn.Module):
    """Query rows of request 1. The first step builds boundaries from accepted lengths, later ones by a uniform step."""

    def __init__(self):
        super().__init__()
        self.warm = False

    def forward(self, q, accepted):
        steps = accepted.clone()
        if self.warm:
            steps = torch.full_like(accepted, 2)
        self.warm = True
        start = steps.cumsum(0)[0]
        return q[start + torch.arange(2)]


class VerifiesUniformly(nn.Module):
    """Query rows of request 1. The first step builds boundaries from accepted lengths, later ones by a uniform step."""

    def __init__(self):
        super().__init__()
        self.warm = False

    def forward(self, q, accepted):
        steps = torch.full_like(accepted, 2)
        start = steps.cumsum(0)[0]
        return q[start + torch.arange(2)]


def _c45(model: type[nn.Module]) -> Case:
    q, accepted = torch.tensor([10, 11, 20, 21]), torch.tensor([1, 2])
    inputs = {"q": (4,), "accepted": (2,)}
    return Case(model(), [{"q": q, "accepted": accepted}] * 2, inputs=inputs, name="C45 capture and replay build apart")


# ------------------------------------------------------------ C48: a table read by Python
TILES = {8: 16, 2048: 128}


class TiledByPython(nn.Module):
    def forward(self, x, rows):
        tile = TILES[8 if x.shape[0] <= 8 else 2048]
        return torch.full_like(x, tile)


class TiledByDevice(nn.Module):
    def forward(self, x, rows):
        tile = torch.where(rows <= 8, TILES[8], TILES[2048])
        return torch.zeros_like(x) + tile


def _c48(model: type[nn.Module]) -> Case:
    batches = [{"x": torch.zeros(t, dtype=torch.int64), "rows": torch.tensor(t)} for t in (2048, 8)]
    inputs = {"x": ("T",), "rows": Live("T")}
    options = {"capture_sizes": (8, 2048)}
    return Case(model(), batches, inputs=inputs, options=options, name="C48 a tile chosen while tracing")


# ------------------------------------------------------------ C49: a seed
_generator = torch.Generator()


def _draw(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """A toy generator whose seed the user sets on the host, its offset on the device."""
    _generator.manual_seed(seed.numpy()[0].item())
    return (_generator.initial_seed() * 7 + offset) % 10


def _draw_on_device(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """A toy generator whose seed the user sets on the host, its offset on the device."""
    return (seed * 7 + offset) % 10


_opaque("draw", _draw, lambda seed, offset: torch.empty_like(offset))
_opaque("draw_on_device", _draw_on_device, lambda seed, offset: torch.empty_like(offset))


class Draws(nn.Module):
    draw = torch.ops.baked_scalar.draw

    def forward(self, seed, offset):
        return self.draw(seed, offset)


class DrawsOnDevice(Draws):
    draw = torch.ops.baked_scalar.draw_on_device


def _c49(model: type[Draws]) -> Case:
    batches = [{"seed": torch.tensor([s]), "offset": torch.tensor([0])} for s in (1, 2)]
    return Case(model(), batches, inputs={"seed": (1,), "offset": (1,)}, name="C49 a seed set after capture")


def _first(steps):
    return steps[-1]["output 0"][0]


RECORDS = [
    Record(
        id="C39",
        ref="ROCm/aiter#3928",
        kind="baked-scalar",
        title="a round counter of the host is passed by value; the wait of the next replay is over before it begins",
        group="graph",
        codes=("CW103",),
        expected=[6, 11],
        wrong=[6, 7],
        case=lambda: _c39(AllReduce),
        twin=lambda: _c39(AllReduceOnDevice),
        read=lambda steps: [int(s["output 0"]) for s in steps],
        sources=((_all_reduce, _all_reduce_on_device),),
    ),
    Record(
        id="C40",
        ref="vllm-project/vllm#41834",
        kind="baked-scalar",
        title="rows of a flat buffer are as far apart as the longest sequence of the batch at capture",
        group="runner",
        codes=("CW102",),
        expected=[3, 4],
        wrong=[9, 9],
        case=lambda: _c40(ReadsByLongest, [1, 2, 3, 4, 9, 9, 9, 9]),
        twin=lambda: _c40(ReadsByWidest, [1, 2, 0, 0, 3, 4, 0, 0]),
        read=_first,
    ),
    Record(
        id="C41",
        ref="sgl-project/sglang#28371",
        kind="baked-scalar",
        title="a launch has as many programs as the batch at capture had segments",
        group="graph",
        codes=("CW101", "CW002"),
        expected=[1, 10, 100],
        wrong=[1, 0, 0],
        case=lambda: _c41(Adapters),
        twin=lambda: _c41(AdaptersOfBuffer),
        sources=((_scale_segments, _scale_all),),
    ),
    Record(
        id="C44",
        ref="NVIDIA/TensorRT-LLM#18769",
        kind="baked-scalar",
        title="the tile schedule is planned inside forward, which a replay never enters",
        group="runner",
        codes=("CW103",),
        expected=[3, 6],
        wrong=[3, 1],
        case=lambda: _c44(Attention),
        twin=lambda: _c44(PlannedAttention),
        sources=((_attend, _attend_planned),),
    ),
    Record(
        id="C45",
        ref="sgl-project/sglang#21987",
        kind="baked-scalar",
        title="capture and replay build the boundaries of one layout by different rules",
        group="runner",
        codes=("CW103",),
        expected=[20, 21],
        wrong=[11, 20],
        case=lambda: _c45(Verifies),
        twin=lambda: _c45(VerifiesUniformly),
    ),
    Record(
        id="C48",
        ref="vllm-project/vllm#54243",
        kind="baked-scalar",
        title="a table is read in Python while tracing, so that one tile serves every size",
        group="graph",
        codes=("CW102",),
        expected=16,
        wrong=128,
        case=lambda: _c48(TiledByPython),
        twin=lambda: _c48(TiledByDevice),
        read=_first,
        unshown="a trace keeps Dynamo's guards, also unsafe: each side of the branch is a program",
    ),
    Record(
        id="C49",
        ref="pytorch/pytorch#84614",
        kind="baked-scalar",
        title="the seed is part of the recording; setting it afterwards changes nothing",
        group="runtime",
        codes=("CW104",),
        expected=4,
        wrong=7,
        case=lambda: _c49(Draws),
        twin=lambda: _c49(DrawsOnDevice),
        read=_first,
        sources=((_draw, _draw_on_device),),
    ),
]
