"""The registers of the wavefronts that are on the machine together, and which of them execute next."""

from __future__ import annotations

import numpy as np

from capwise.emulate.arrays import F64, U8, U32, U64, Array, join

POISON = 0xDEADBEEF  # what a register holds before it is written
SGPR_ROWS = 132
VCC, TTMP, EXEC, NULL = 106, 108, 126, 129  # rows of the scalar file; a write to NULL lands in a row that nothing reads


class Waves:
    """Register files of ``n`` wavefronts with ``lanes`` lanes, all uint32.

    ``vgpr`` and ``agpr`` are (registers, n, lanes), ``sgpr`` is (132, n), ``scc`` is (n,) bool. ``select`` names the
    wavefronts that execute next: reads give, and writes take, arrays with one row for each of them (or one
    broadcastable row).
    """

    def __init__(self, vgpr: Array, agpr: Array, workgroup: Array, program_ids: Array) -> None:
        self.lanes = int(vgpr.shape[2])
        self.total = int(vgpr.shape[1])
        self.vgpr, self.agpr = vgpr, agpr
        self.sgpr = np.full((SGPR_ROWS, self.total), POISON, U32)
        self.scc_bits = np.zeros(self.total, bool)
        self.workgroup, self.program_ids = workgroup, program_ids
        # What a DPP operand read decided about the lanes that its instruction may write.
        self.dpp_mask: Array | None = None
        self.select(np.arange(self.total))

    # -- selection
    def select(self, rows: Array) -> None:
        """Make ``rows`` (increasing wavefront numbers) the executing wavefronts."""
        self.rows, self.n = rows, len(rows)
        first, last = int(rows[0]), int(rows[-1])
        # A slice makes every register read a view; fancy indexing copies.
        self._contiguous = last - first + 1 == self.n
        self._sel: slice | Array = slice(first, last + 1) if self._contiguous else rows
        self._refresh_exec()

    def _refresh_exec(self) -> None:
        self.exec = self._lane_mask(EXEC)
        self._all_active = bool(self.exec.all())

    def _lane_mask(self, row: int) -> Array:
        """bool (n, lanes) from the scalar registers that hold a lane mask."""
        words = self.sgpr[row : row + self.lanes // 32, self._sel]
        octets = np.ascontiguousarray(words.T).view(U8)
        return np.unpackbits(octets, axis=1, bitorder="little").view(bool)

    # -- reads
    def v(self, register: int) -> Array:
        values: Array = self.vgpr[register][self._sel]
        return values

    def a(self, register: int) -> Array:
        values: Array = self.agpr[register][self._sel]
        return values

    def s(self, register: int) -> Array:
        values: Array = self.sgpr[register][self._sel]
        return values

    def s64(self, register: int) -> Array:
        return join(self.s(register), self.s(register + 1))

    def scc(self) -> Array:
        return self.scc_bits[self._sel]

    def mask(self, register: int) -> Array:
        """The lane mask that starts at scalar ``register``: bool (n, lanes)."""
        return self._lane_mask(register)

    def broadcast(self, values: Array) -> Array:
        """``values`` as a read-only (n, lanes) array."""
        return values if values.shape == (self.n, self.lanes) else np.broadcast_to(values, (self.n, self.lanes))

    def per_wave(self, values: Array) -> Array:
        """``values`` as a read-only (n,) array."""
        return np.broadcast_to(values, (self.n,))

    # -- writes
    def set_v(self, register: int, values: Array, mask: Array | None = None, *, accumulator: bool = False) -> None:
        """Write one vector register in the lanes of ``mask`` (EXEC unless given); any 32-bit dtype, as bits."""
        target = self.agpr[register] if accumulator else self.vgpr[register]
        values = values if values.dtype == U32 else values.view(U32)
        if mask is None:
            if self._all_active:
                target[self._sel] = values
                return
            mask = self.exec
        if self._contiguous:
            np.copyto(target[self._sel], values, where=mask)
        else:
            rows = target[self._sel]
            np.copyto(rows, values, where=mask)
            target[self._sel] = rows

    def set_v64(self, register: int, values: Array, mask: Array | None = None, *, accumulator: bool = False) -> None:
        bits = values if values.dtype == U64 else values.view(U64)
        self.set_v(register, bits.astype(U32), mask, accumulator=accumulator)
        self.set_v(register + 1, (bits >> U64(32)).astype(U32), mask, accumulator=accumulator)

    def set_s(self, register: int, values: Array) -> None:
        self.sgpr[register][self._sel] = values if values.dtype == U32 else values.view(U32)
        if EXEC <= register < EXEC + 2:
            self._refresh_exec()

    def set_s64(self, register: int, values: Array) -> None:
        bits = values if values.dtype == U64 else values.view(U64)
        self.sgpr[register][self._sel] = bits.astype(U32)
        self.sgpr[register + 1][self._sel] = (bits >> U64(32)).astype(U32)
        if register == EXEC:
            self._refresh_exec()

    def set_scc(self, bits: Array) -> None:
        self.scc_bits[self._sel] = bits

    def set_mask(self, register: int, bits: Array) -> None:
        """Write a bool (n, lanes) array as a lane mask."""
        words = np.packbits(self.broadcast(bits), axis=1, bitorder="little").view(U32)
        self.sgpr[register][self._sel] = words[:, 0]
        # A mask written to NULL has no second word: the row above it belongs to nobody either.
        if self.lanes == 64:
            self.sgpr[register + 1][self._sel] = words[:, 1]
        if register == EXEC:
            self._refresh_exec()

    def double(self, register: int, *, accumulator: bool = False) -> Array:
        """A vector register pair as float64."""
        read = self.a if accumulator else self.v
        return join(read(register), read(register + 1)).view(F64)
