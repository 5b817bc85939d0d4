"""The one module that patches: what it patches is put back, and kernels run in the interpreter meanwhile."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import fx
from triton.runtime.jit import JITFunction

from capwise import compat


@triton.jit
def double(value):
    return value * 2


@triton.jit
def doubles(x_ptr, out_ptr, rows, flag, BLOCK: tl.constexpr = 4):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = double(tl.load(x_ptr + at, mask=at < rows, other=0.0))
    for _ in range(1):
        value = tl.where(flag, value, -value)
    tl.store(out_ptr + at, value, mask=at < rows)


def test_kernels_run_on_cpu_tensors_inside():
    x, out = torch.arange(6.0), torch.full((8,), 9.0)
    with compat.interpreted():
        assert compat.interpreting()
        doubles[(2,)](x, out, 6, True)
    assert not compat.interpreting() and out.tolist() == [0, 2, 4, 6, 8, 10, 9, 9]


def test_a_launch_may_take_names_a_grid_function_and_options():
    x, out = torch.ones(4), torch.zeros(4)
    with compat.interpreted():
        doubles[lambda meta: (triton.cdiv(meta["rows"], meta["BLOCK"]),)](
            x_ptr=x, out_ptr=out, rows=4, flag=False, BLOCK=2, num_warps=1
        )
    assert out.tolist() == [-2.0] * 4


def test_one_launch_without_the_block():
    out = torch.zeros(4)
    compat.run_interpreted(doubles, (1,), x_ptr=torch.ones(4), out_ptr=out, rows=3, flag=True)
    assert out.tolist() == [2, 2, 2, 0]


def test_launches_are_recorded_in_place_of_running():
    seen, out = [], torch.zeros(4)
    with compat.recording_launches(lambda kernel, grid, bound: seen.append((kernel, grid, bound))):
        doubles[(1,)](torch.ones(4), out, 4, True)
    ((kernel, grid, bound),) = seen
    assert kernel is doubles and grid[0] == 1 and bound["rows"] == 4 and bound["BLOCK"] == 4 and not out.any()


def test_what_is_patched_is_put_back_in_order():
    run, call = JITFunction.run, JITFunction.__call__
    with compat.interpreted():
        inner = JITFunction.run
        with compat.recording_launches(lambda *a: None):
            assert JITFunction.run is not inner
        assert JITFunction.run is inner is not run
    assert JITFunction.run is run and JITFunction.__call__ is call


def test_dynamo_settings_last_one_call():
    before = torch._dynamo.config.capture_scalar_outputs
    with pytest.raises(KeyError), compat.dynamo_settings("L['n']", False):
        assert torch._dynamo.config.capture_scalar_outputs and torch.compiler.config.unbacked_sources == "L['n']"
        raise KeyError
    assert torch._dynamo.config.capture_scalar_outputs == before and torch.compiler.config.unbacked_sources != "L['n']"


@torch.library.custom_op("compat_tests::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_the_body_of_a_custom_op():
    body = compat.custom_op_body(torch.ops.compat_tests.op.default, "cpu")
    assert body(torch.zeros(1)).item() == 1
    assert compat.custom_op_body(torch.ops.aten.add.Tensor, "cpu") is None

    @op.register_kernel("cpu")
    def _(x):
        return x + 2

    assert compat.custom_op_body(torch.ops.compat_tests.op.default, "cpu")(torch.zeros(1)).item() == 2


def test_a_graph_input_knows_where_dynamo_took_it_from():
    sources = []

    def backend(graph, _):
        sources.extend(compat.source_of(p) for p in graph.graph.find_nodes(op="placeholder"))
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert sources == ["L['x']"]
    assert compat.source_of(fx.Graph().placeholder("y")) == ""


def test_lines_of_a_file():
    assert compat.source_line(__file__, 1).startswith('"""') and compat.source_line("nowhere.py", 1) == ""
