"""Recording the interpreter, and leaving Triton as it was."""

import os

import numpy as np
import pytest
import triton.language as tl
from triton.runtime.interpreter import interpreter_builder
from triton.runtime.jit import JITFunction

from capwise.kernel_access.interpret import record

SIGNATURE = {"x_ptr": "*fp32", "qsl_ptr": "*i32", "out_ptr": "*fp32", "stride_x": "i32", "stride_out": "i64"}


def state():
    return (
        JITFunction.__call__,
        dict(vars(interpreter_builder)),
        {n: getattr(tl, n) for n in ("load", "store", "range", "static_range", "arange", "sum")},
        {n: getattr(tl.tensor, n, None) for n in ("__add__", "__index__", "__bool__", "T")},
        dict(os.environ),
    )


def run(kernel, memory, **extra):
    scalars = {"stride_x": 10, "stride_out": 100}
    return record(kernel("boundaries"), SIGNATURE, {"H": 4}, (3, 1, 1), scalars, memory, **extra)


def test_touches_of_every_program(kernel):
    touches = run(kernel, lambda arg, where: np.asarray([0, 1, 3, 3])[where] if arg == "qsl_ptr" else where)
    loads = [(t.pid[0], t.offsets.tolist()) for t in touches if (t.arg, t.kind) == ("x_ptr", "load")]
    assert loads == [(0, [0, 1, 2, 3]), (1, [10, 11, 12, 13]), (1, [20, 21, 22, 23])]
    assert {t.kind for t in touches if t.arg == "out_ptr"} == {"store"}
    assert max(int(t.offsets.max()) for t in touches if t.arg == "out_ptr") == 203


def test_only_the_programs_asked_for(kernel):
    touches = run(kernel, lambda arg, where: np.asarray(where), programs=[(2, 0, 0)])
    assert {t.pid for t in touches} == {(2, 0, 0)}


def test_triton_is_as_before(kernel):
    before = state()
    run(kernel, lambda arg, where: np.asarray(where))
    assert state() == before
    assert "range" not in kernel("boundaries").fn.__globals__


def test_triton_is_as_before_when_it_raises(kernel):
    def broken(arg, where):
        raise OSError("memory")

    before = state()
    with pytest.raises(Exception, match="memory"):
        run(kernel, broken)
    assert state() == before
    assert "range" not in kernel("boundaries").fn.__globals__


def test_nested_functions_run_and_restore(kernel):
    before = state()
    scalars = {"n": 5}
    touches = record(
        kernel("called"), {"x_ptr": "*i32", "out_ptr": "*i32", "n": "i32"}, {}, (2, 1, 1), scalars,
        lambda arg, where: np.asarray(where),
    )  # fmt: skip
    assert sorted(t.offsets.tolist() for t in touches if t.arg == "x_ptr") == [[0], [1], [1], [2], [2], [3]]
    assert state() == before
