"""The live part of a tensor at captured extents."""

from __future__ import annotations

from collections.abc import Mapping

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
