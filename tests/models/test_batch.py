"""Requests to a flat step."""

from __future__ import annotations

import pytest
import torch

from capwise.models.qwen4_exp import Config, Request, build_batch, input_axes

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
    assert {t.dtype for n, t in batch.items() if n != "has_initial"} == {torch.int32}
    assert batch["state_table"][:, 0].stride() == (4,)


def test_axes_are_named_for_every_input():
    hidden = torch.zeros(2, CONFIG.width)
    batch = build_batch([Request(TOKENS, 0, 2, 1)], CONFIG, 1, hidden)
    axes = input_axes(CONFIG, 1)
    assert axes.keys() == batch.keys()
    sizes = {"T": 2, "R": 1, "R+1": 2}
    assert all(tuple(sizes.get(a, a) for a in axes[name]) == tuple(batch[name].shape) for name in axes)
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


def test_hidden_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"hidden: expected \[2, 64\]; got \[3, 64\]"):
        build_batch([Request(TOKENS, 0, 2, 1)], CONFIG, hidden=torch.zeros(3, 64))
