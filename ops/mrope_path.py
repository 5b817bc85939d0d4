"""Which code rotates a layer's heads: the kernels of ops/mrope.py where they can, else their torch reference.

The kernels want three axes whose pairs are dealt in turn (interleaved sections). Sections that lie one after another
(the first s[0] pairs by time, the next s[1] by height, the last s[2] by width) take the reference, and `reason` says
so. What neither can do is refused. The layout of positions is declared, never guessed: at T = 3 a [3, T] and a [T, 3]
look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from capwise.ops.mrope import check_cache, check_heads, kv_write_reference, mrope, mrope_kv_write_
from capwise.ops.rope import AXES, axis_major, check_pairs, check_positions, check_sections, rotate_reference

LAYOUTS = {"axis-major": False, "token-major": True}


@dataclass(frozen=True)
class MropePath:
    """A rotation with its layout settled. `reason` says why the path is not the kernel's; empty where it is."""

    path: Literal["kernel", "reference"]
    reason: str
    inv_freq: torch.Tensor
    sections: tuple[int, ...]
    token_major: bool

    def rotate(self, x: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        """x [T, h, D] rotated, dense.

        Args:
            positions: int, of the declared layout.

        Raises:
            ValueError: positions that are absent, of other axes or layout, or of another number of tokens.
        """
        given = _given(positions)
        if self.path == "kernel":
            return mrope(x, given, self.inv_freq, self.sections, self.token_major)
        check_heads("mrope", x=x)
        return self._reference("mrope", x, given)

    def rotate_and_write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor | None,
        slot_mapping: torch.Tensor,
        kv_cache: torch.Tensor,
    ) -> torch.Tensor:
        """q rotated; k, rotated, and v written to their pages. Arguments and errors as `mrope_kv_write_`."""
        given = _given(positions)
        if self.path == "kernel":
            return mrope_kv_write_(
                q, k, v, given, self.inv_freq, slot_mapping, kv_cache, self.sections, self.token_major
            )
        check_heads("mrope_kv_write_", q=q, k=k, v=v)
        check_cache(k, v, slot_mapping, kv_cache)
        rotated = self._reference("mrope_kv_write_", k, given)
        kv_write_reference(rotated, v, slot_mapping, kv_cache)
        return self._reference("mrope_kv_write_", q, given)

    def _reference(self, op: str, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        check_positions(op, positions, x.shape[0], self.token_major)
        axes = [axis for axis, pairs in enumerate(self.sections) for _ in range(pairs)]
        return rotate_reference(x, axis_major(positions, self.token_major), self.inv_freq, axes)


def _given(positions: torch.Tensor | None) -> torch.Tensor:
    if positions is None:
        raise ValueError("mrope: positions: expected a tensor of positions; got None")
    return positions


def mrope_path(
    inv_freq: torch.Tensor,
    sections: Sequence[int],
    width: int,
    *,
    interleaved: bool,
    layout: str | None,
    fallback: bool = True,
) -> MropePath:
    """The rotation of heads of `width` by three axes.

    Args:
        inv_freq: float32 [n], 2n <= width.
        sections: how many pairs each axis (time, height, width) gets; n in all.
        interleaved: whether pairs are dealt to the axes in turn, or lie one section after another.
        layout: of positions, "axis-major" ([3, T]) or "token-major" ([T, 3]).
        fallback: False refuses what would take the reference path.

    Raises:
        ValueError: a layout that is not declared, other than three sections, sections that do not fit the pairs, or
            with fallback=False sections that are not interleaved.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"mrope: layout: expected one of {', '.join(LAYOUTS)}, as positions have it; got {layout!r}")
    if interleaved:
        check_sections("mrope", sections, inv_freq, width)
        return MropePath("kernel", "", inv_freq, tuple(sections), LAYOUTS[layout])
    check_pairs("mrope", inv_freq, width)
    if len(sections) != AXES or min(sections) < 0 or sum(sections) != inv_freq.shape[0]:
        wanted = f"three counts (time, height, width) that make {inv_freq.shape[0]} pairs"
        raise ValueError(f"mrope: sections: expected {wanted}; got {list(sections)}")
    reason = f"sections {list(sections)} lie one after another; the kernels deal pairs in turn"
    if not fallback:
        raise ValueError(f"mrope: interleaved: expected True for the kernels; got False: {reason}")
    return MropePath("reference", reason, inv_freq, tuple(sections), LAYOUTS[layout])
