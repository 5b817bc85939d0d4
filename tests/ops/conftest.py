"""Random steps and random strides, shared by the tests of the ops."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

KINDS = ("decode", "single", "empty", "mixed")


@dataclass(frozen=True)
class Step:
    """Chunk lengths of the requests of one step."""

    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def requests(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> torch.Tensor:
        return torch.tensor([0, *torch.tensor(self.lengths).cumsum(0).tolist()], dtype=torch.int32)


def _step(seed: int) -> Step:
    """Decodes only (T == R), one request, requests with nothing to do, or a mix; up to 6 requests of up to 13."""
    rng = random.Random(seed)
    kind, requests = KINDS[seed % len(KINDS)], rng.randint(1, 6)
    if kind == "decode":
        return Step((1,) * requests)
    if kind == "single":
        return Step((rng.randint(1, 13),))
    least = 0 if kind == "empty" else 1
    return Step(tuple(rng.randint(least, 13) for _ in range(requests)))


def garbage(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Anything that a tail may hold: NaN and infinities, or integers far outside every range."""
    generator = torch.Generator().manual_seed(seed)
    if like.dtype == torch.bool:
        return torch.randint(0, 2, like.shape, generator=generator).bool()
    if like.dtype.is_floating_point:
        bad = torch.tensor([float("nan"), float("inf"), -1e30, 3.0], dtype=torch.float64).to(like.dtype)
    else:
        bad = torch.tensor([-(2**31), -7, 0, 1, 2, 3, 5, 12345, 2**31 - 1]).to(like.dtype)
    return bad[torch.randint(0, len(bad), like.shape, generator=generator)]


def _strided(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The same values as a view with gaps, its dimensions in any order in memory; garbage in the gaps."""
    rng = random.Random(seed)
    order = rng.sample(range(tensor.dim()), tensor.dim())
    steps = [rng.choice((1, 1, 2, 3)) for _ in range(tensor.dim())]
    offsets = [rng.choice((0, 2)) for _ in range(tensor.dim())]
    big = torch.empty([tensor.shape[d] * steps[d] + offsets[d] for d in order], dtype=tensor.dtype)
    big.copy_(garbage(big, seed))
    view = big.permute([order.index(d) for d in range(tensor.dim())])
    for d in range(tensor.dim()):
        view = view.narrow(d, offsets[d], tensor.shape[d] * steps[d])
    view = view[tuple(slice(None, None, s) for s in steps)] if tensor.dim() else view
    return view.copy_(tensor)


@pytest.fixture(scope="session")
def step() -> Callable[[int], Step]:
    return _step


@pytest.fixture(scope="session")
def strided() -> Callable[[torch.Tensor, int], torch.Tensor]:
    return _strided


@pytest.fixture(scope="session")
def junk() -> Callable[[torch.Tensor, int], torch.Tensor]:
    return garbage


@pytest.fixture
def raises() -> Callable[[str], object]:
    """A ValueError whose text holds the given words."""
    return lambda text: pytest.raises(ValueError, match=re.escape(text))
