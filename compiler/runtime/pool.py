"""Memory of recordings, shared by all graphs of an arena as a device's graph pool is."""

from __future__ import annotations

import bisect
import weakref

import torch

_ROUND = 64


class Block:
    """A piece of pool memory. It never moves and is never given back to the system: recordings hold its address."""

    def __init__(self, nbytes: int, index: int) -> None:
        self.whole = torch.empty(nbytes, dtype=torch.uint8)
        self.nbytes, self.index = nbytes, index
        # Counts owners: what an earlier owner says when it dies late is about memory that it lost already.
        self.owner = 0
        self.number = 0


class Pool:
    """What recordings allocate from.

    A tensor gets a free block; the block is free again when the tensor and all of its views are gone, also for other
    recordings. So what one graph holds in memory that nobody keeps is overwritten by the next graph. `retire` frees
    everything, as an engine does that keeps no graph's outputs alive between steps.
    """

    def __init__(self) -> None:
        # (size, index), sorted: of several free blocks the oldest is taken, whatever their addresses in this process.
        self._free: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}
        self._ordered: list[Block] = []
        self._taken = 0

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Uninitialised pool memory laid out as the tensor is, room around it included; it holds what its last owner
        left there."""
        nbytes = tensor.untyped_storage().nbytes()
        block = self._take(nbytes)
        block.owner += 1
        self._taken += 1
        block.number = self._taken
        # The array lives as long as the storage that is made over it: its death is the tensor's, views included.
        array = block.whole.numpy()[:nbytes]
        weakref.finalize(array, _release, weakref.ref(self), block, block.owner).atexit = False
        storage = torch.from_numpy(array).untyped_storage()
        place = torch.empty(0, dtype=tensor.dtype)
        return place.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's content, in pool memory."""
        mine = self.empty_like(tensor)
        whole = torch.empty(0, dtype=torch.uint8)
        whole.set_(mine.untyped_storage()).copy_(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))  # type: ignore[call-overload]
        return mine

    def block_of(self, storage: torch.UntypedStorage) -> Block | None:
        """The block that a storage lies in; None for memory from elsewhere."""
        return self._blocks.get(storage.data_ptr())

    def poison(self, byte: int) -> None:
        """Overwrites all pool memory: 0xFF is NaN and -1, 0x3F a finite number and a large integer."""
        for block in self._blocks.values():
            block.whole.fill_(byte)

    def retire(self) -> None:
        """Everything may be handed to the next recording."""
        self._free = sorted((b.nbytes, b.index) for b in self._blocks.values())
        for block in self._blocks.values():
            block.owner += 1

    def _take(self, nbytes: int) -> Block:
        wanted = max(-(-nbytes // _ROUND), 1) * _ROUND
        at = bisect.bisect_left(self._free, (wanted, 0))
        if at < len(self._free) and self._free[at][0] <= 2 * wanted:
            return self._ordered[self._free.pop(at)[1]]
        block = Block(wanted, len(self._ordered))
        self._ordered.append(block)
        self._blocks[block.whole.data_ptr()] = block
        return block

    def _give_back(self, block: Block, owner: int) -> None:
        if block.owner == owner:
            bisect.insort(self._free, (block.nbytes, block.index))


def _release(pool: weakref.ref[Pool], block: Block, owner: int) -> None:
    alive = pool()
    if alive is not None:
        alive._give_back(block, owner)
