"""Launching through the interpreter, and leaving everything as it was."""

from __future__ import annotations

import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from capwise import compat
from capwise.models.demo_cases import s2_golden
from capwise.ops import short_conv
from capwise.ops.launch import block, on_triton


@triton.jit
def _twice(x):
    return x + tl.zeros_like(x) + x


@triton.jit
def _sum_rows(x_ptr, y_ptr, count, fail, BLOCK: tl.constexpr = 4):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(count):
        total += _twice(tl.load(x_ptr + i * BLOCK + at))
    if fail:
        tl.static_assert(False, "asked to fail")
    tl.store(y_ptr + tl.program_id(0) * BLOCK + at, total + tl.sum(total, 0) + tl.program_id(0))


def _everything() -> dict[str, dict]:
    parts = {"run": JITFunction, "interpreter": interpreter, "conv": short_conv, "here": sys.modules[__name__]}
    parts |= {m: sys.modules[m] for m in sys.modules if m.startswith("triton.language") and ".extra" not in m}
    parts |= {c: getattr(tl.core, c) for c in ("tensor", "dtype", "tensor_descriptor_base")}
    return {name: dict(vars(part)) for name, part in parts.items()}


def _changes(before: dict, after: dict) -> list[str]:
    return [f"{p}.{n}" for p in before for n in {*before[p], *after[p]} if before[p].get(n) is not after[p].get(n)]


def test_a_launch_with_helpers_a_loop_of_run_time_length_and_a_callable_grid():
    x, y = torch.arange(12.0).view(3, 4), torch.zeros(2, 4)
    with compat.interpreted():
        _sum_rows[lambda meta: (meta["count"] - 1,)](x, y, 3, False)
    rows = 2 * x.sum(0)
    assert torch.equal(y, torch.stack([rows + rows.sum(), rows + rows.sum() + 1]))


def test_run_interpreted_takes_arguments_by_name():
    x, y = torch.ones(1, 4), torch.zeros(1, 4)
    compat.run_interpreted(_sum_rows, (1,), x_ptr=x, y_ptr=y, count=1, fail=False, num_warps=8)
    assert y.tolist() == [[10.0] * 4]
    assert not compat.interpreting()


def test_everything_is_put_back_also_when_a_kernel_raises():
    case = s2_golden()
    case.model(**case.batches[0])
    x, y = torch.ones(1, 4), torch.zeros(1, 4)
    before = _everything()
    with compat.interpreted():
        assert _changes(before, _everything())
        case.model(**case.batches[0])
    assert _changes(before, _everything()) == []
    with pytest.raises(Exception, match="asked to fail"), compat.interpreted():
        _sum_rows[(1,)](x, y, 1, True)
    assert _changes(before, _everything()) == []
    with pytest.raises(Exception, match="asked to fail"):
        compat.run_interpreted(_sum_rows, (1,), x_ptr=x, y_ptr=y, count=1, fail=True)
    assert _changes(before, _everything()) == []


def test_nested_contexts_end_with_the_outer_one():
    with compat.interpreted():
        with compat.interpreted():
            assert compat.interpreting()
        assert compat.interpreting()
    assert not compat.interpreting()


def test_a_cpu_tensor_takes_the_kernel_only_inside_interpreted(monkeypatch):
    launched = []
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *a, **k: launched.append(kernel.fn.__name__))
    case = s2_golden()
    case.model(**case.batches[0])
    assert launched == [] and not on_triton(torch.zeros(1))
    with compat.interpreted():
        monkeypatch.setattr(JITFunction, "run", lambda kernel, *a, **k: launched.append(kernel.fn.__name__))
        case.model(**case.batches[0])
    assert launched == ["_short_conv_kernel", "_short_conv_state_kernel"]


def test_blocks_are_powers_of_two_that_cover():
    x = torch.zeros(1)
    assert [block(n, x, gpu=4, cpu=16) for n in (0, 1, 2, 3, 5, 16, 17, 500)] == [1, 1, 2, 4, 8, 16, 16, 16]


@pytest.mark.parametrize("hidden", ["triton"])
def test_ops_run_without_triton(hidden):
    code = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "from capwise.models.demo_cases import s1_golden, GOLDEN_IDS\n"
        "case = s1_golden()\n"
        "out = [case.model(**b) for b in case.batches][-1]\n"
        "assert [tuple(r) for r in out.tolist()] == list(GOLDEN_IDS)\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
