"""The live part of a tensor at captured extents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch

from capwise.axes import Axis, Cat, Space, show

Extents = Mapping[str, int]


def live_view(
    tensor: torch.Tensor, axes: tuple[Axis, ...], space: Space, live: Extents, captured: Extents
) -> torch.Tensor:
    """Rows that are live along every axis: a view where each live part is one leading block, else a copy.

    Args:
        tensor: any shape, at the captured extents of `axes`.
    """
    for dim, axis in enumerate(axes):
        if not space.is_padded(axis):
            continue
        extent = space.extent(axis, live)
        if extent == tensor.shape[dim]:
            continue
        if space.layout(axis)[0] == "leading":
            tensor = tensor.narrow(dim, 0, extent)
        else:
            tensor = _inner(tensor, dim, axis, space, live, captured)
    return tensor


def write_live(
    place: torch.Tensor,
    value: torch.Tensor,
    axes: tuple[Axis, ...],
    space: Space,
    live: Extents,
    captured: Extents,
) -> None:
    """Writes the live rows of a tensor at captured extents; where they are no single block, by their positions."""
    view = live_view(place, axes, space, live, captured)
    if view.untyped_storage()._cdata == place.untyped_storage()._cdata:
        view.copy_(value)
        return
    places = torch.arange(place.numel(), device=place.device).view(place.shape)
    places = live_view(places, axes, space, live, captured)
    place.copy_(place.flatten().index_copy(0, places.flatten(), value.flatten()).view(place.shape))


def _inner(tensor: torch.Tensor, dim: int, axis: Axis, space: Space, live: Extents, captured: Extents) -> torch.Tensor:
    """Takes the axis apart into atoms, narrows the padded ones, puts it together again."""
    if space.is_opaque(axis):
        raise ValueError(f"axis {show(axis)}: expected one whose live part can be told")
    if len(axis) == 1 and isinstance(axis[0], Cat):
        parts, at = [], 0
        for part in axis[0].parts:
            size = space.extent(part, captured)
            whole = tensor.narrow(dim, at, size)
            only = (*[()] * dim, part, *[()] * (tensor.dim() - dim - 1))
            parts.append(live_view(whole, only, space, live, captured))
            at += size
        return torch.cat(parts, dim)
    sizes = [space.atom_extent(atom, captured) for atom in axis]
    apart: torch.Tensor = tensor.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    for i, atom in enumerate(axis):
        if space.is_padded((atom,)):
            only = (*[()] * (dim + i), (atom,), *[()] * (apart.dim() - dim - i - 1))
            apart = live_view(apart, only, space, live, captured)
    return apart.flatten(dim, dim + len(axis) - 1)


class Size:
    """A size expression made ready: a sum of multiples of extents, read without sympy at every step."""

    def __init__(self, expr: Any, space: Space) -> None:
        self.expr, self.space = sympy.sympify(expr), space
        symbols = sorted(self.expr.free_symbols, key=str)
        slopes = [self.expr.diff(s) for s in symbols]
        self.linear = all(s.is_Integer for s in slopes) and all(s in space.names for s in symbols)
        if self.linear:
            self.constant = int(self.expr.subs(dict.fromkeys(symbols, 0)))
            self.terms = [(space.names[s], int(k)) for s, k in zip(symbols, slopes)]

    def __call__(self, extents: Extents) -> int:
        if not self.linear:
            known = {self.space.sympy[n]: e for n, e in extents.items() if n in self.space.sympy}
            return int(self.expr.subs(known))
        total = self.constant
        for name, scale in self.terms:
            total += scale * extents[name]
        return total


class LiveSlice:
    """`live_view` of one value made ready: where every tail is a block at the end, a few `narrow`s."""

    def __init__(self, axes: tuple[Axis, ...], space: Space) -> None:
        self.axes, self.space = axes, space
        padded = [(d, a) for d, a in enumerate(axes) if space.is_padded(a)]
        self.simple = all(space.layout(a)[0] == "leading" for _, a in padded)
        self.cuts = [(d, Size(space.size(a), space)) for d, a in padded] if self.simple else []

    def __call__(self, tensor: torch.Tensor, live: Extents, captured: Extents) -> torch.Tensor:
        if not self.simple:
            return live_view(tensor, self.axes, self.space, live, captured)
        for dim, size in self.cuts:
            extent = max(size(live), 0)
            if extent != tensor.shape[dim]:
                tensor = tensor.narrow(dim, 0, extent)
        return tensor
