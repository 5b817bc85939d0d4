"""The byte store, and addresses of buffers."""

import numpy as np
import pytest

from capwise.emulate import Fault
from capwise.emulate.memory import ByteStore, GlobalMemory


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 16])
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_store_then_load_at_any_alignment(size, shift):
    store, rng = ByteStore(4096), np.random.default_rng(size)
    offset = rng.permutation(64) * 32 + shift
    words = [rng.integers(0, 2**32, 64, dtype=np.uint32) for _ in range(max(size // 4, 1))]
    store.store(offset, size, words)
    mask = np.uint32((1 << 8 * min(size, 4)) - 1)
    for got, want in zip(store.load(offset, size), words):
        np.testing.assert_array_equal(got, want & mask)
    raw = np.stack([store.bytes[offset + i] for i in range(size)], 1)
    np.testing.assert_array_equal(raw, np.stack(words, 1).view(np.uint8)[:, :size])
    assert (store.bytes[offset + size] == 0x7F).all()  # nothing beyond


def test_buffers_are_far_apart_and_checked_at_both_ends():
    memory = GlobalMemory()
    first, second = memory.place(bytes(64), "first"), memory.place(bytes(32), "second")
    memory.seal()
    assert second - first > 2**36 and (second - first) % 2**32 != 0
    assert memory.translate(np.array([first + 60, second]), 4).tolist() == [60, 64]
    for address, message in (
        (first - 1, "1 bytes before the start of first"),
        (first + 61, "at byte 61, 1 bytes past the end of first"),
        (second + 32, "at byte 32, 4 bytes past the end of second"),
        (0, "before the start of first"),
    ):
        with pytest.raises(Fault, match=message):
            memory.translate(np.array([first, address]), 4)
