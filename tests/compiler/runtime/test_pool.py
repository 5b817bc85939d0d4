"""Memory of recordings: a block is free when nobody holds it, and then the next recording's."""

from __future__ import annotations

import torch

from capwise.runtime.pool import Pool
from capwise.runtime.tape import record


def test_a_block_is_free_when_the_tensor_and_its_views_are_gone():
    pool = Pool()
    first = pool.adopt(torch.arange(6.0).view(2, 3).t())
    assert first.tolist() == [[0, 3], [1, 4], [2, 5]] and first.stride() == (1, 3)
    address, view = first.data_ptr(), first[1:]
    del first
    other = pool.adopt(torch.zeros(6))
    assert other.data_ptr() != address
    del view
    assert pool.adopt(torch.zeros(6)).data_ptr() == address


def test_of_free_blocks_the_oldest_is_taken_wherever_it_lies():
    for _ in range(8):  # addresses differ from pool to pool
        pool = Pool()
        noise = [torch.empty(97 + i) for i in range(3)]
        made = [pool.adopt(torch.zeros(6)) for _ in range(6)]
        addresses = [t.data_ptr() for t in made]
        while made:
            made.pop(len(made) // 2)
        assert [(t := pool.adopt(torch.zeros(6)), made.append(t), t.data_ptr())[2] for _ in range(6)] == addresses
        del noise


def test_a_recording_holds_addresses_and_not_tensors():
    """Inside one recording too: what a value stood in is the next value's, as in a graph on a device."""
    pool = Pool()
    x = torch.ones(64)
    out, tape = record(lambda a: ((a + 1) * 2).exp().log(), [x], pool)
    assert len({launch.outs[0].storage.data_ptr() for launch in tape.launches}) < 4
    x.fill_(3.0)
    tape.replay()
    torch.testing.assert_close(out, torch.full((64,), 8.0))


def test_what_nobody_holds_is_overwritten_by_another_recording():
    pool = Pool()
    x = torch.ones(64)
    kept, _ = record(lambda a: a + 1, [x], pool)
    record(lambda a: a * 5, [x], pool)
    assert kept.tolist() == [2.0] * 64  # held: the second recording had memory of its own
    pool.retire()
    others = [record(lambda a: a * 7, [x], pool) for _ in range(2)]
    assert len(others) == 2 and kept.tolist() == [7.0] * 64


def test_an_owner_that_dies_after_retiring_frees_nothing():
    pool = Pool()
    first = pool.adopt(torch.zeros(16))
    address = first.data_ptr()
    pool.retire()
    second = pool.adopt(torch.zeros(16))
    assert second.data_ptr() == address
    del first
    assert pool.adopt(torch.zeros(16)).data_ptr() != address


def test_an_in_place_op_stays_where_its_target_is():
    x = torch.zeros(4)
    out, tape = record(lambda a: a.add_(1), [x], Pool())
    tape.replay()
    assert x.tolist() == [2.0] * 4 and out.data_ptr() == x.data_ptr()
