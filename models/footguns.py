"""Wrong programs, each with the code that it must raise.

Each is right when run eagerly ("unit stride" and what is shifted in place excepted) and wrong, or impossible, in a
recorded graph that is chosen by the padded number of tokens. `FOOTGUNS[name].case()` makes a fresh Case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from capwise.case import Case
from capwise.models.demo_cases import s1_golden, s2_golden
from capwise.models.naive_shift import naive

WIDTH = 4
SLOTS = 16


@dataclass(frozen=True)
class Footgun:
    """code: what must be raised. why: what goes wrong in a graph. case: makes the program and a history of batches."""

    code: str
    why: str
    case: Callable[[], Case]


class MeanOverTokens(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class LastToken(nn.Module):
    def forward(self, x):
        return x + x[-1]


class Flipped(nn.Module):
    def forward(self, x):
        return x.flip(0) * 2


class TimesTokens(nn.Module):
    def forward(self, x):
        return x * x.shape[0]


class WritesPrefix(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.full((SLOTS, WIDTH), 0.5))

    def forward(self, x):
        self.seen[: x.shape[0]] = x
        return x + 1


class WritesSlots(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(SLOTS, WIDTH))

    def forward(self, x, slots):
        self.cache[slots] = x
        return x + 1


class ShiftsColumns(nn.Module):
    """The largest row of every step goes into a window of columns, whose columns move up."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(WIDTH, SLOTS))

    def forward(self, x):
        self.window[:, 1:].copy_(self.window[:, :-1])
        self.window[:, 0] = x.amax(0)
        return x + self.window.sum(1)


class RowOfToken(nn.Module):
    """Every token's request, by counting boundaries; a padded token finds the row past the last."""

    def forward(self, x, query_start_loc, scale):
        token = torch.arange(x.shape[0], dtype=query_start_loc.dtype, device=x.device)
        row = torch.searchsorted(query_start_loc, token, right=True) - 1
        return x * scale[row][:, None]


class Selected(nn.Module):
    def forward(self, x, keep):
        return x[keep].sum(0)


class HostBranch(nn.Module):
    def forward(self, x):
        return x * x.abs().max().item()


class PerRequest(nn.Module):
    def forward(self, x, scale):
        return x + 1, scale * 2


class Opaque(nn.Module):
    def forward(self, x):
        return torch.ops.footgun.opaque(x) + 1


class Counts(nn.Module):
    """Each step in its own scale, by a counter in Python."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


class Carries(nn.Module):
    """Adds what the first row of the step before was."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(WIDTH)

    def forward(self, x):
        y = x + self.last
        self.last = x[0] * 2
        return y


class Noisy(nn.Module):
    """Draws as many numbers as there are rows."""

    def forward(self, x):
        return x + torch.rand(WIDTH, x.shape[0]).t()


@torch.library.custom_op("footgun::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """An op that says nothing about itself."""
    return x * 2


@opaque.register_fake
def _(x):
    return torch.empty_like(x)


class OneScaleForAllRows(nn.Module):
    """An 8-bit linear layer whose activations share one scale; `capwise::w8a8_linear` has one a row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", (torch.arange(2.0 * WIDTH).view(2, WIDTH) - 3) * 11)

    def forward(self, x):
        scale = x.abs().amax() / 127
        steps = torch.round(x / scale).clamp(-127, 127)
        return (steps @ self.weight.t()) * scale


def _rows(tokens: int) -> torch.Tensor:
    return torch.arange(1, tokens * WIDTH + 1, dtype=torch.float32).view(tokens, WIDTH) / 8


def _tokens(**more: Callable[[int], torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Six tokens, then three: the second step runs at the first one's padded size and leaves a tail."""
    return [{"x": _rows(t) * sign, **{k: make(t) for k, make in more.items()}} for t, sign in ((6, 1), (5, -1), (3, 1))]


def _slots(tokens: int) -> torch.Tensor:
    """The next step takes over the slot that the step before left in its tail."""
    slots = torch.arange(tokens) * 2 + 1
    return slots if tokens % 2 == 0 else slots.flip(0) + 2


def _requests() -> list[dict[str, torch.Tensor]]:
    steps = []
    for starts in ([0, 2, 3, 6], [0, 5], [0, 1, 3]):
        starts_tensor = torch.tensor(starts, dtype=torch.int32)
        scale = torch.arange(1, len(starts), dtype=torch.float32)
        steps.append({"x": _rows(starts[-1]), "query_start_loc": starts_tensor, "scale": scale})
    return steps


def _case(
    name: str,
    model: Callable[[], nn.Module],
    batches: Callable[[], Sequence[Mapping[str, Any]]] = _tokens,
    **inputs: tuple[Any, ...],
) -> Callable[[], Case]:
    return lambda: Case(
        model=model(),
        batches=batches(),
        inputs={"x": ("T", WIDTH), **inputs},
        capacity={"T": SLOTS, "R": 4},
        options={"capture_sizes": (8, SLOTS)},
        name=name,
    )


def _without(name: str) -> list[dict[str, torch.Tensor]]:
    return [{k: v for k, v in step.items() if k != name} for step in _requests()]


FOOTGUNS: dict[str, Footgun] = {
    "mean over tokens": Footgun(
        "CW202", "padded rows enter the mean", _case("mean over tokens", MeanOverTokens)
    ),
    "last token": Footgun("CW202", "the last row of a bucket is a padded one", _case("last token", LastToken)),
    "one scale for all rows": Footgun(
        "CW202",
        "the largest value of a padded row sets the scale of every live one",
        _case("one scale for all rows", OneScaleForAllRows),
    ),
    "flip": Footgun("CW202", "the padded rows come first", _case("flip", Flipped)),
    "times the number of tokens": Footgun(
        "CW102", "the number of the bucket is frozen", _case("times the number of tokens", TimesTokens)
    ),
    "write to a prefix": Footgun(
        "CW204", "padded rows overwrite rows that no token of the step owns", _case("write to a prefix", WritesPrefix)
    ),
    "write to slots": Footgun(
        "CW204",
        "padded rows write to slots of an earlier step, which live rows own by now; no slot is spare",
        _case("write to slots", WritesSlots, lambda: _tokens(slots=_slots), slots=("T",)),
    ),
    "row of a token": Footgun(
        "CW206",
        "with the boundaries rightly filled a padded token finds row R, which does not exist",
        _case("row of a token", RowOfToken, _requests, query_start_loc=("R+1",), scale=("R",)),
    ),
    "boolean mask": Footgun(
        "CW002",
        "the size of the result is in the data",
        _case("boolean mask", Selected, lambda: _tokens(keep=lambda t: torch.arange(t) % 2 == 0), keep=("T",)),
    ),
    "item": Footgun("CW002", "the host waits for a value", _case("item", HostBranch)),
    "one row a request": Footgun(
        "CW101",
        "a launch has the extent of R, which the key leaves out",
        _case("one row a request", PerRequest, lambda: _without("query_start_loc"), scale=("R",)),
    ),
    "opaque op": Footgun("CW001", "nothing is known of the op", _case("opaque op", Opaque)),
    "counter in Python": Footgun(
        "CW103", "a replay multiplies by the number of capture and counts nothing", _case("counter in Python", Counts)
    ),
    "attribute for the next step": Footgun(
        "CW303",
        "the attribute looks into memory that a replay writes over",
        _case("attribute for the next step", Carries),
    ),
    "noise a row": Footgun("CW104", "a bucket draws more numbers than eager", _case("noise a row", Noisy)),
    "stale boundaries": Footgun("CW201", "the search reads boundaries of an earlier batch", s1_golden),
    "shift in place": Footgun("CW304", "one launch writes what it has still to read, in no order", naive),
    "columns shifted in place": Footgun(
        "CW304",
        "a column is read where the one before it is written, in the order that a kernel happens to take",
        _case("columns shifted in place", ShiftsColumns),
    ),
    "unit stride": Footgun(
        "CW401", "the kernel takes element r of a table for row r's; wrong eagerly too", lambda: s2_golden(4, "unit")
    ),
}
