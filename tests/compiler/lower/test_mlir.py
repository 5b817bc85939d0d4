"""ATen through torch-mlir: what runs is what eager computes, and what cannot be lowered says why."""

from __future__ import annotations

import pytest
import torch

from capwise.lower import mlir

X = torch.arange(20.0).view(5, 4).sin()
INDEX = torch.tensor([3, 1])
RUNS = {
    "several results and an int": (lambda x, n: (x * n, x.sum(0), x.sum(), x > 0), (X, 3)),
    "a strided copy": (lambda x, i: (x.index_add(0, i, x[:2]), x.topk(2)[1]), (X, INDEX)),
    "a strided argument and an empty result": (lambda x: (x + 1, x[:0] * 2), (X.t(),)),
    "integers": (lambda x: ((x * 9).to(torch.int32) + 1,), (X,)),
}


@pytest.mark.parametrize("run", RUNS)
def test_what_runs_is_what_eager_computes(run):
    code, values = RUNS[run]
    for mine, theirs in zip(mlir.execute(code, values), code(*values), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs)


def test_what_cannot_be_lowered_says_why(capfd):
    with pytest.raises(mlir.MlirError, match=r"searchsorted"):
        mlir.execute(lambda x: (torch.searchsorted(x[0], x[0]),), (X,))
    assert capfd.readouterr().err == ""


def test_without_torch_mlir_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(mlir, "is_available", lambda: False)
    with pytest.raises(mlir.MlirError, match=r"pip install 'capwise\[mlir\]'"):
        mlir.linalg(lambda x: (x,), (X,))
