"""Data-parallel primitives (DPP): a first source that comes from another lane of the wavefront."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from capwise.emulate.arrays import Array
from capwise.emulate.errors import Unsupported
from capwise.emulate.operands import Operand, Read, modify, vector_source
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves

Lanes = tuple[Array, Array]  # source lane of each lane, and whether that lane exists


def _quad_perm(inst: Inst, lane: Array) -> Lanes:
    pick = np.array(inst.integers("quad_perm", []))
    return (lane & ~3) | pick[lane & 3], lane >= 0


def _dpp8(inst: Inst, lane: Array) -> Lanes:
    pick = np.array(inst.integers("dpp8", []))
    return (lane & ~7) | pick[lane & 7], lane >= 0


def _row_bcast(inst: Inst, lane: Array) -> Lanes:
    """The last lane of each row (15) or half (31) goes to the row or half after it."""
    if inst.integer("row_bcast") == 15:
        return (lane & ~15) - 1, lane >= 16
    return (lane & ~31) - 1, lane >= 32


def _row(function: Callable[[Array, int], Array]) -> Callable[[str], Callable[[Inst, Array], Lanes]]:
    """A pattern inside rows of 16 lanes: (lane in its row, argument) -> source lane in the row, maybe outside it."""

    def named(name: str) -> Callable[[Inst, Array], Lanes]:
        def lanes(inst: Inst, lane: Array) -> Lanes:
            source = function(lane & 15, inst.integer(name))
            return (lane & ~15) + source, (source >= 0) & (source < 16)

        return lanes

    return named


_share = _row(lambda i, n: np.full_like(i, n))
_PATTERNS: dict[str, Callable[[Inst, Array], Lanes]] = {
    "quad_perm": _quad_perm,
    "dpp8": _dpp8,
    "row_bcast": _row_bcast,
    "row_shl": _row(lambda i, n: i + n)("row_shl"),
    "row_shr": _row(lambda i, n: i - n)("row_shr"),
    "row_ror": _row(lambda i, n: (i - n) & 15)("row_ror"),
    "row_share": _share("row_share"),
    "row_newbcast": _share("row_newbcast"),
    "row_xmask": _row(lambda i, n: i ^ n)("row_xmask"),
    "row_mirror": _row(lambda i, n: 15 - i)("row_mirror"),
    "row_half_mirror": _row(lambda i, n: (i & 8) | (7 - (i & 7)))("row_half_mirror"),
    "wave_shl": lambda inst, lane: (lane + 1, lane + 1 < lane.size),
    "wave_shr": lambda inst, lane: (lane - 1, lane > 0),
    "wave_rol": lambda inst, lane: ((lane + 1) % lane.size, lane >= 0),
    "wave_ror": lambda inst, lane: ((lane - 1) % lane.size, lane >= 0),
}


def lane_map(inst: Inst, lanes: int) -> tuple[Array, Array, Array]:
    """(source lane, whether it exists, whether row_mask and bank_mask enable the lane), each of shape (lanes,)."""
    lane = np.arange(lanes)
    for name, pattern in _PATTERNS.items():
        if inst.flag(name):
            source, exists = pattern(inst, lane)
            break
    else:
        raise Unsupported("a DPP control that is not modelled")
    rows, banks = inst.integer("row_mask", 15), inst.integer("bank_mask", 15)
    enabled = (rows >> (lane >> 4)) & (banks >> ((lane & 15) >> 2)) & 1
    return np.clip(source, 0, lanes - 1), exists, enabled.astype(bool)


def dpp_source(inst: Inst, op: Operand, kind: str, lanes: int) -> Read:
    """Reads ``op`` from the lanes that the DPP control names and leaves the lanes to write in ``Waves.dpp_mask``.

    A source lane that does not exist, or is inactive unless ``fi`` allows it, reads as 0; its lane is written only with
    ``bound_ctrl``.
    """
    source, exists, enabled = lane_map(inst, lanes)
    read = vector_source(op.bare(), kind)
    zero_fill, fetch_inactive = inst.flag("bound_ctrl"), inst.integer("fi") != 0

    def get(w: Waves) -> Array:
        values = w.broadcast(read(w))[:, source]
        valid = np.broadcast_to(exists, values.shape) if fetch_inactive else exists & w.exec[:, source]
        w.dpp_mask = w.exec & enabled & (valid | zero_fill)
        return modify(np.where(valid, values, values.dtype.type(0)), op, kind)

    return get
