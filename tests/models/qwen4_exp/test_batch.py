"""Requests to a flat step."""

from __future__ import annotations

import pytest
import torch

from capwise.models.qwen4_exp import Config, Request, build_batch, input_axes
from capwise.models.qwen4_exp.batch import PLE_INPUTS

CONFIG = Config.tiny()
TOKENS = tuple(range(10, 40))


def test_a_step_of_a_decode_a_later_chunk_an_idle_request_and_a_fresh_one():
    requests = [Request(TOKENS, 7, 1, 8), Request(TOKENS, 1, 3, 4), Request(TOKENS, 5, 0, 12), Request(TOKENS, 0, 2, 0)]
    batch = build_batch(requests, CONFIG, num_spec=3)
    assert batch["input_ids"].tolist() == [17, 11, 12, 13, 10, 11]
    assert batch["query_start_loc"].tolist() == [0, 1, 4, 4, 6]
    eos = CONFIG.eos_token_id
    assert batch["ngram_context"].tolist() == [[15, 16], [eos, 10], [13, 14], [eos, eos]]
    assert batch["state_table"].tolist() == [[8, 9, 10, 11], [4, 5, 6, 7], [12, 13, 14, 15], [0, 0, 0, 0]]
    assert batch["has_initial"].tolist() == [True, True, True, False]
    assert batch["seq_lens"].tolist() == [8, 4, 5, 2]
    assert batch["positions"].tolist() == [[7, 1, 2, 3, 0, 1]] * 3 and batch["positions"].dtype == torch.int64
    assert batch["num_accepted"].tolist() == [1] * 4 and not batch["is_spec"].any()
    apart = ("has_initial", "is_spec", "positions")
    assert {t.dtype for n, t in batch.items() if n not in apart} == {torch.int32}
    assert batch["state_table"][:, 0].stride() == (4,)


def test_axes_are_named_for_every_input():
    requests = [Request(TOKENS, 0, 2, 1, [4, 5])]
    batch = build_batch(requests, CONFIG, 1)
    axes = input_axes(CONFIG, 1)
    assert axes.keys() == batch.keys()
    sizes = {"T": 2, "R": 1, "R+1": 2, None: 2}
    assert all(tuple(sizes.get(a, a) for a in axes[name]) == tuple(batch[name].shape) for name in axes)
    of_layer = build_batch(requests, CONFIG, 1, torch.zeros(2, CONFIG.width))
    assert of_layer.keys() == input_axes(CONFIG, 1, ["hidden", *PLE_INPUTS]).keys()
    assert list(input_axes(CONFIG, names=["state_table"])) == ["state_table"]


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([], "requests: expected at least one request; got none"),
        ([Request(TOKENS, 29, 2, 1)], "requests[0]: expected 0 <= computed and computed + length <= 30 tokens"),
        ([Request(TOKENS, 0, -1, 1)], "got computed 0, length -1"),
        ([Request(TOKENS, 0, 1, -3)], "requests[0].slot: expected 0 (none) or a slot number; got -3"),
        ([Request((97,), 0, 1, 1)], "requests[0].tokens: expected ids in [0, 97); got 1 outside"),
        (
            [Request(TOKENS, 0, 1, 1), Request(TOKENS, 0, 1, 2)],
            "requests[1]: expected slots of its own; got slot 2 of requests[0]",
        ),
    ],
)
def test_a_bad_request_is_named(requests, text):
    with pytest.raises(ValueError) as error:
        build_batch(requests, CONFIG, num_spec=1)
    assert text in str(error.value)


def test_a_verify_chunk_scattered_slots_pages_and_positions():
    requests = [
        Request(TOKENS, 9, 3, [5, 2, 9, 7], [3, 8], verify=True, accepted=2),
        Request(TOKENS, 2, 2, [1, 4, 6, 8], [1], positions=[[2, 2], [2, 3], [3, 2]]),
    ]
    batch = build_batch(requests, CONFIG, 3, page_size=8, max_blocks=4, table_width=6, pad=(2, 1))
    assert batch["state_table"].tolist() == [[5, 2, 9, 7], [1, 4, 6, 8], [0] * 4]
    assert batch["state_table"].stride() == (6, 1)
    assert batch["block_table"].tolist() == [[3, 8, 0, 0], [1, 0, 0, 0], [0] * 4]
    assert batch["is_spec"].tolist() == [True, False, False] and batch["num_accepted"].tolist() == [2, 1, 1]
    assert batch["positions"].tolist() == [[9, 10, 11, 2, 2, 0, 0], [9, 10, 11, 2, 3, 0, 0], [9, 10, 11, 3, 2, 0, 0]]
    assert batch["query_start_loc"].tolist() == [0, 3, 5, 5] and batch["seq_lens"].tolist() == [12, 4, 0]
    assert batch["ngram_context"].tolist()[2] == [CONFIG.eos_token_id] * 2 and len(batch["input_ids"]) == 7


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(TOKENS, 9, 1, 1, [2]), "requests[0].blocks: expected 2 blocks of 8; got 1"),
        (Request(TOKENS, 0, 1, 1, [0]), "requests[0].blocks: expected block numbers from 1 on; got 0"),
        (Request(TOKENS, 9, 3, 1, verify=True), "requests[0]: expected a verify chunk of at most 2 tokens"),
        (Request(TOKENS, 0, 1, 1, verify=True), "after a prompt; got computed 0, length 1"),
        (Request(TOKENS, 9, 1, 1, verify=True, accepted=3), "requests[0].accepted: expected 1 to 2; got 3"),
        (Request(TOKENS, 0, 2, 1, positions=[[1], [1, 2], [1, 2]]), "positions: expected three rows of 2; got lengths"),
        (Request(TOKENS, 0, 2, [1]), "requests[0].slot: expected 2 slot numbers; got [1]"),
        (Request(TOKENS, 0, 2, 1, [1, 2, 3]), "max_blocks: expected room for 3 blocks; got 2"),
    ],
)
def test_a_batch_that_contradicts_the_sizes_is_named(request_, text):
    with pytest.raises(ValueError) as error:
        build_batch([request_], CONFIG, num_spec=1, page_size=8, max_blocks=2)
    assert text in str(error.value)


def test_two_requests_share_no_block():
    both = [Request(TOKENS, 0, 1, 1, [2]), Request(TOKENS, 0, 1, 5, [2])]
    with pytest.raises(ValueError, match=r"requests\[1\]: expected blocks of its own; got block 2 of requests\[0\]"):
        build_batch(both, CONFIG)


def test_hidden_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"hidden: expected \[2, 64\]; got \[3, 64\]"):
        build_batch([Request(TOKENS, 0, 2, 1)], CONFIG, hidden=torch.zeros(3, 64))
