"""The fixture `assert_replay_sound`: passes where replay is right, and says where it is not."""

from __future__ import annotations

import pytest
import torch

from capwise.ops.contract import Contract, Rows, contract
from capwise.pytest_plugin import assert_replay_sound  # noqa: F401 - a fixture


@torch.library.custom_op("plugin::sums", mutates_args=())
def sums(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum(0)


sums.register_fake(lambda x: torch.empty_like(x))
contract("plugin::sums")(lambda: Contract(rows={"x": Rows("T", None), "out": Rows("T", None)}, locality="row"))
STEPS = [{"x": torch.ones(t, 4)} for t in (6, 3)]


def test_a_model_or_a_case_that_is_right_passes(assert_replay_sound, make_case):  # noqa: F811
    result = assert_replay_sound(lambda x: x * 2, STEPS, inputs={"x": ("T", 4)}, histories=2)
    assert result.steps == 6 and result.case == "function"
    assert assert_replay_sound(make_case(lambda x: x * 2)).ok


def test_one_that_is_not_fails_with_its_node_and_history(assert_replay_sound):  # noqa: F811
    with pytest.raises(AssertionError, match=r"first differing node: sums .*\n.*shortest history: batches \[0\]"):
        assert_replay_sound(lambda x: torch.ops.plugin.sums(x), STEPS, inputs={"x": ("T", 4)})
