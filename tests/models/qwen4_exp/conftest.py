"""One random transformers model, and ours with its weights, for every test that wants them."""

from __future__ import annotations

import pytest
import torch

from capwise.models.qwen4_exp import oracle


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny operations: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def theirs():
    pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    return oracle.transformers_model(oracle.TINY)


@pytest.fixture(scope="session")
def known(theirs):
    """Texts, and the logits of each."""
    texts = oracle.random_texts(oracle.TINY, 8, 40, 3)
    return texts, oracle.whole_logits(theirs, texts)
