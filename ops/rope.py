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

from capwise.ops.launch import jit, power_of_two, tl

AXES = 3


def pair_axes(sections: Sequence[int], pairs: int) -> list[int]:
    """axis(i) for i = 0..pairs-1."""
    return [a if (a := i % AXES) and i < AXES * sections[a] else 0 for i in range(pairs)]


def check_pairs(op: str, inv_freq: torch.Tensor, width: int) -> None:
    """Raises ValueError where the pairs do not fit the head."""
    pairs = inv_freq.shape[0] if inv_freq.dim() == 1 else -1
    if not 0 < 2 * pairs <= width:
        raise ValueError(f"{op}: inv_freq: expected [n], 2n <= {width}; got {tuple(inv_freq.shape)}")


def check_sections(op: str, sections: Sequence[int], inv_freq: torch.Tensor, width: int) -> None:
    """Raises ValueError where sections cannot be dealt in turn over the pairs, or the pairs do not fit the head."""
    check_pairs(op, inv_freq, width)
    pairs = inv_freq.shape[0]
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


def layout(inv_freq: torch.Tensor, sections: Sequence[int], width: int) -> dict[str, int]:
    """How a kernel splits a head: tiles of the two halves of the pairs, and of the columns that are not rotated."""
    pairs = inv_freq.shape[0]
    rest = width - 2 * pairs
    return {
        "PAIRS": pairs,
        "HEIGHT": sections[1],
        "WIDTH": sections[2],
        "BLOCK": power_of_two(pairs),
        "REST": power_of_two(rest) if rest else 0,
    }


@jit
def turns(
    positions_ptr, inv_freq_ptr, token, mask, axis_stride, token_stride, inv_freq_stride, dtype: tl.constexpr,
    PAIRS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(cos, sin) of the angles of some tokens, rounded to dtype. token int64 [N], mask [N] -> float32 [N, BLOCK]."""
    pair = tl.arange(0, BLOCK)
    at = token[:, None] * token_stride + axis_of(pair, HEIGHT, WIDTH)[None, :] * axis_stride
    position = tl.load(positions_ptr + at, mask=mask[:, None] & (pair < PAIRS)[None, :], other=0)
    frequency = tl.load(inv_freq_ptr + pair * inv_freq_stride, mask=pair < PAIRS, other=0.0).to(tl.float32)
    return turned(position.to(tl.float32) * frequency[None, :], dtype)


@jit
def axis_of(pair, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """axis(i) of the module text, int64."""
    height, width = (pair % 3 == 1) & (pair < 3 * HEIGHT), (pair % 3 == 2) & (pair < 3 * WIDTH)
    return height.to(tl.int64) + width.to(tl.int64) * 2


@jit
def turned(angle, dtype: tl.constexpr):
    """(cos, sin) of angles, rounded to dtype, as float32."""
    return tl.cos(angle).to(dtype).to(tl.float32), tl.sin(angle).to(dtype).to(tl.float32)


@jit
def rotated(first, second, cos, sin, dtype: tl.constexpr):
    """The two halves of the pairs after rotation, in dtype. All float32, of shapes that broadcast."""
    a, b = (first * cos).to(dtype).to(tl.float32), (second * sin).to(dtype).to(tl.float32)
    c, d = (second * cos).to(dtype).to(tl.float32), (first * sin).to(dtype).to(tl.float32)
    return (a - b).to(dtype), (c + d).to(dtype)
