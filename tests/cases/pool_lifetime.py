"""Public faults of the kind "pool lifetime": memory of a recording is read when another recording owns it.

The tape's pool hands the memory of one recording to the next, as a device's graph pool does; a naive engine lets an
attribute look into it.
"""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from tests.cases.harness import Record

CW303 = ("CW303",)


def _case(model: nn.Module, name: str, *batches: tuple[object, ...], width: int = 2) -> Case:
    """Batches as (what to do, numbers)."""
    given = [{"x": torch.tensor(x), "do": do} for do, x in batches]
    return Case(model, given, inputs={"x": (width,)}, name=name)


# ------------------------------------------------------------ C65: the target's output, read after the drafter
class TargetAndDrafter(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(2, dtype=torch.int64)

    def forward(self, x, do):
        if do == "target":
            self.hidden = x * 1
        if do == "score":
            return self.hidden + 0
        return x * 9


class TargetAndDrafterApart(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(2, dtype=torch.int64)

    def forward(self, x, do):
        if do == "target":
            self.hidden.copy_(x * 1)
        if do == "score":
            return self.hidden + 0
        return x * 9


def _c65(model: type[nn.Module]) -> Case:
    steps = (("target", [1, 2]), ("draft", [1, 1]), ("score", [0, 0]))
    return _case(model(), "C65 log-probabilities after the drafter ran", *steps)


# ------------------------------------------------------------ C66: what an eager break is handed
class HandsOver(nn.Module):
    """Rows of one size are handed to an eager break, which reads them later; rows of another size pass."""

    def __init__(self):
        super().__init__()
        self.handed = torch.zeros(1, dtype=torch.int64)

    def forward(self, x, do):
        if do == "break":
            self.handed = x[:1] * 5
            return x
        if do == "resume":
            return self.handed + 0
        return x * 2


class HandsOverOwned(nn.Module):
    """Rows of one size are handed to an eager break, which reads them later; rows of another size pass."""

    def __init__(self):
        super().__init__()
        self.handed = torch.zeros(1, dtype=torch.int64)

    def forward(self, x, do):
        if do == "break":
            self.handed.copy_(x[:1] * 5)
            return x
        if do == "resume":
            return self.handed + 0
        return x * 2


def _c66(model: type[nn.Module]) -> Case:
    """Bucket A, then bucket B in the same block, then A again."""
    steps = (("pass", [1]), ("break", [1, 1]), ("pass", [1]), ("resume", [1]))
    given = [{"x": torch.tensor(x), "do": do} for do, x in steps]
    options = {"capture_sizes": (1, 2)}
    return Case(
        model(), given, inputs={"x": ("T",)}, capacity={"T": 2}, options=options, name="C66 a block of two buckets"
    )


# ------------------------------------------------------------ C67: a workspace born inside a capture
class SplitK(nn.Module):
    """The last of two arrivals adds the parts up; a semaphore counts them and is put back to where it was."""

    def __init__(self):
        super().__init__()
        self.semaphore = torch.ones(1, dtype=torch.int64)

    def forward(self, x, do):
        if do == "first use":
            self.semaphore = x.new_zeros(1)
            return x
        return _reduce(self.semaphore, x, x[:1] + 6)


class SplitKOutside(nn.Module):
    """The last of two arrivals adds the parts up; a semaphore counts them and is put back to where it was."""

    def __init__(self):
        super().__init__()
        self.semaphore = torch.ones(1, dtype=torch.int64)

    def forward(self, x, do):
        if do == "first use":
            self.semaphore.zero_()
            return x
        return _reduce(self.semaphore, x, x[:1] + 6)


def _reduce(semaphore: torch.Tensor, parts: torch.Tensor, transient: torch.Tensor) -> torch.Tensor:
    out = transient * 0
    for _ in range(2):
        before = semaphore.clone()
        semaphore.add_(1)
        out = torch.where(before == 1, parts.sum(), out)
    semaphore.sub_(2)
    return out


def _c67(model: type[nn.Module]) -> Case:
    steps = (("first use", [0, 0]), ("use", [1, 2]))
    return _case(model(), "C67 a semaphore in a block of transients", *steps)


# ------------------------------------------------------------ C68: a workspace that grows
class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.workspace = self.kept = torch.zeros(4, dtype=torch.int64)

    def forward(self, x, do):
        if do == "grow":
            self.workspace = x * 2
        if do == "work":
            self.workspace.zero_()
        if do == "keep":
            self.kept = x * 5
        return self.kept + 0 if do == "read" else x


class GrowsNever(nn.Module):
    def __init__(self):
        super().__init__()
        self.workspace, self.kept = torch.zeros(2, 4, dtype=torch.int64)

    def forward(self, x, do):
        if do == "grow":
            self.workspace.copy_(x * 2)
        if do == "work":
            self.workspace.zero_()
        if do == "keep":
            self.kept.copy_(x * 5)
        return self.kept + 0 if do == "read" else x


def _c68(model: type[nn.Module]) -> Case:
    """A graph that clears its workspace; the workspace grows; what is made then lies where it was."""
    x = [1, 1, 1, 1]
    steps = (("grow", x), ("work", x), ("grow", x), ("keep", x), ("work", x), ("read", x))
    return _case(model(), "C68 the old workspace is cleared", *steps, width=4)


# ------------------------------------------------------------ C72: a backup in memory of a graph
class RollsBack(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.tensor([4]))
        self.backup = torch.zeros(1, dtype=torch.int64)

    def forward(self, x, do):
        if do == "step":
            self.state.add_(x + 99, alpha=0)
        if do == "save":
            self.backup = self.state * 1
        if do == "restore":
            self.state.copy_(self.backup)
        return self.state if do == "restore" else x


class RollsBackOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.tensor([4]))
        self.backup = torch.zeros(1, dtype=torch.int64)

    def forward(self, x, do):
        if do == "step":
            self.state.add_(x + 99, alpha=0)
        if do == "save":
            self.backup.copy_(self.state * 1)
        if do == "restore":
            self.state.copy_(self.backup)
        return self.state if do == "restore" else x


def _c72(model: type[nn.Module]) -> Case:
    steps = tuple((do, [0]) for do in ("step", "save", "step", "restore"))
    return _case(model(), "C72 a backup that a replay writes over", *steps, width=1)


# ------------------------------------------------------------ C73: the output of the run before
class ReadsFirst(nn.Module):
    """Hands out x + 1, and later what the first call handed out."""

    def __init__(self):
        super().__init__()
        self.first = None

    def forward(self, x, first, do):
        y = x + 1
        if self.first is None:
            self.first = y
        return self.first + 0 if do == "read" else y


class ReadsFirstOwned(nn.Module):
    """Hands out x + 1, and later what the first call handed out."""

    def __init__(self):
        super().__init__()
        self.first = torch.zeros(1, dtype=torch.int64)

    def forward(self, x, first, do):
        y = x + 1
        self.first.copy_(torch.where(first, y, self.first))
        return self.first + 0 if do == "read" else y


def _c73(model: type[nn.Module]) -> Case:
    steps = ((1, True, "run"), (5, False, "run"), (0, False, "read"))
    batches = [{"x": torch.tensor([x]), "first": torch.tensor([first]), "do": do} for x, first, do in steps]
    return Case(model(), batches, inputs={"x": (1,), "first": (1,)}, name="C73 one output storage for all runs")


def _first(steps):
    return steps[-1]["output 0"][0]


RECORDS = [
    Record(
        id="C65",
        ref="vllm-project/vllm#53520",
        kind="pool-lifetime",
        title="the drafter's replay takes over the block of the target's output, which is read afterwards",
        group="runner",
        codes=CW303,
        expected=[1, 2],
        wrong=[9, 9],
        case=lambda: _c65(TargetAndDrafter),
        twin=lambda: _c65(TargetAndDrafterApart),
    ),
    Record(
        id="C66",
        ref="sgl-project/sglang#37606",
        kind="pool-lifetime",
        title="inputs of eager breaks are weak references; another bucket owns their block",
        group="runner",
        codes=CW303,
        expected=5,
        wrong=2,
        case=lambda: _c66(HandsOver),
        twin=lambda: _c66(HandsOverOwned),
        read=_first,
    ),
    Record(
        id="C67",
        ref="ROCm/aiter#5393",
        kind="pool-lifetime",
        title="a workspace is allocated inside a capture; only the first graph zeroes it",
        group="graph",
        codes=CW303,
        expected=3,
        wrong=0,
        case=lambda: _c67(SplitK),
        twin=lambda: _c67(SplitKOutside),
        read=_first,
    ),
    Record(
        id="C68",
        ref="flashinfer-ai/flashinfer#4398",
        kind="pool-lifetime",
        title="a workspace grows after capture; replays write to where it was",
        group="graph",
        codes=("CW301", "CW303"),
        expected=[5, 5],
        wrong=[0, 0],
        case=lambda: _c68(Grows),
        twin=lambda: _c68(GrowsNever),
        read=lambda steps: steps[-1]["output 0"][:2],
    ),
    Record(
        id="C72",
        ref="tracel-ai/cubecl#1612",
        kind="pool-lifetime",
        title="a backup is given memory that a graph takes for its own",
        group="runtime",
        codes=CW303,
        expected=4,
        wrong=99,
        case=lambda: _c72(RollsBack),
        twin=lambda: _c72(RollsBackOutside),
        read=_first,
    ),
    Record(
        id="C73",
        ref="pytorch/pytorch#122192",
        kind="pool-lifetime",
        title="every run returns the same output storage",
        group="runtime",
        codes=CW303,
        expected=2,
        wrong=6,
        case=lambda: _c73(ReadsFirst),
        twin=lambda: _c73(ReadsFirstOwned),
        read=_first,
    ),
]
