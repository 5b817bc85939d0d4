"""Rotary embedding with one position an axis (time, height, width), its pairs dealt to the axes in turn.

n pairs (2n the rotary width), D >= 2n the head's width, s = sections, all positions of a token pos[0..2]:

    axis(i) = 1  if i mod 3 == 1 and i < 3 s[1]          2  if i mod 3 == 2 and i < 3 s[2]          0  otherwise
    angle_i = float32(pos[axis(i)]) * inv_freq[i]        c_i, s_i = rnd(cos(angle_i)), rnd(sin(angle_i))
    y_i     = rnd(rnd(x_i c_i) - rnd(x_{i+n} s_i))       i < n            rnd: to x's dtype
    y_{i+n} = rnd(rnd(x_{i+n} c_i) + rnd(x_i s_i))
    y_j     = x_j                                        j >= 2n

Three equal rows of positions give the plain rotary embedding. With s = [11, 11, 10] and n = 32 the axes have 11, 11 and
10 pairs: the sections say how many pairs each axis gets, and other numbers cannot be dealt so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

AXES = 3


def pair_axes(sections: Sequence[int], pairs: int) -> list[int]:
    """axis(i) for i = 0..pairs-1."""
    return [a if (a := i % AXES) and i < AXES * sections[a] else 0 for i in range(pairs)]


def check_sections(op: str, sections: Sequence[int], inv_freq: torch.Tensor, width: int) -> None:
    """Raises ValueError where sections cannot be dealt in turn over the pairs, or the pairs do not fit the head."""
    pairs = inv_freq.shape[0] if inv_freq.dim() == 1 else -1
    if not 0 < 2 * pairs <= width:
        raise ValueError(f"{op}: inv_freq: expected [n], 2n <= {width}; got {tuple(inv_freq.shape)}")
    dealt = [pair_axes(sections, pairs).count(axis) for axis in range(AXES)] if len(sections) == AXES else []
    if list(sections) != dealt:
        raise ValueError(
            f"{op}: sections: expected three counts of interleaved pairs (time, height, width) over {pairs} pairs; "
            f"got {list(sections)}"
            + (f", which would deal {dealt}" if dealt else "")
        )


def check_positions(op: str, positions: torch.Tensor, tokens: int, token_major: bool) -> None:
    """Raises ValueError where positions do not have the declared layout, [3, T] or (token-major) [T, 3]."""
    wanted, other = ((tokens, AXES), (AXES, tokens)) if token_major else ((AXES, tokens), (tokens, AXES))
    got = tuple(positions.shape)
    if got == wanted and not positions.dtype.is_floating_point:
        return
    layout = f"{list(wanted)} ({'token-major' if token_major else 'axis-major'}) integers"
    hint = f"; did you mean token_major={not token_major}?" if got == other else ""
    raise ValueError(f"{op}: positions: expected {layout}; got {list(got)} {positions.dtype}{hint}")


def axis_major(positions: torch.Tensor, token_major: bool) -> torch.Tensor:
    """Positions as a view [3, T]."""
    return positions.T if token_major else positions


def rotate_reference(
    x: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, axes: Sequence[int]
) -> torch.Tensor:
    """x [T, h, D], positions [3, T], inv_freq float32 [n], axes: axis(i) of each pair -> [T, h, D] in x's dtype."""
    pairs = inv_freq.shape[0]
    angle = positions[list(axes)].T.float() * inv_freq.float()
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)
