"""Views that hold a place in common, by physical location."""

from __future__ import annotations

import pytest
import torch

from capwise.transfer.overlap import are_disjoint

X = torch.arange(40.0).view(5, 8)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X[:, :3], X[:, 3:]),  # columns
        (X[:2], X[2:]),  # rows
        (X[:, ::2], X[:, 1::2]),  # every other column
        (X.view(5, 2, 4)[:, 0], X.view(5, 2, 4)[:, 1]),
        (X[1:3, :2], X[:, 2:4]),
    ],
)
def test_views_without_a_common_place(a, b):
    assert are_disjoint(a, b) and are_disjoint(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X[:3], X[2:]),
        (X[:, :4], X[:, 3:]),
        (X, X),
        (X[:, ::2], X[:, ::3]),
        (X.view(-1)[0:3], X.view(-1)[2:5]),
        (X.view(-1).as_strided((4, 2), (8, 4), 6), X[:, :4]),  # wraps into the next row
        (X.view(torch.int32)[:, :4], X.view(torch.int16)[:, 8:]),  # counted in other units
    ],
)
def test_views_that_meet_or_may(a, b):
    assert not are_disjoint(a, b) and not are_disjoint(b, a)


def test_random_views_are_called_disjoint_only_where_they_are():
    rng = torch.Generator().manual_seed(0)
    seen = [0, 0]
    for _ in range(400):
        one, other = (_view(rng) for _ in range(2))
        apart = not set(one.flatten().tolist()) & set(other.flatten().tolist())
        said = are_disjoint(one, other)
        assert apart or not said
        seen[0] += said
        seen[1] += apart
    assert seen[0] > seen[1] / 2  # most of what is disjoint is found


def _view(rng: torch.Generator) -> torch.Tensor:
    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=rng))

    rows, columns = sorted((draw(0, 5), draw(1, 6))), sorted((draw(0, 8), draw(1, 9)))
    return X[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1 : draw(1, 3)]
