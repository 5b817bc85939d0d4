"""The tape: launches recorded with addresses, geometry and scalars frozen; replay runs no host code."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import fx

from capwise.runtime.tape import CaptureError, record


def _names(tape):
    return [launch.name for launch in tape.launches]


# ---------------------------------------------------------------------------------------------------------- replay
def test_replay_reads_and_writes_the_addresses_of_the_recording():
    x = torch.ones(4)
    out, tape = record(lambda a: (a * 2 + 1).cumsum(0), [x])
    assert out.tolist() == [3, 6, 9, 12] and _names(tape) == [
        "aten.mul.Tensor",
        "aten.add.Tensor",
        "aten.cumsum.default",
    ]
    address = out.data_ptr()
    x.copy_(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    tape.replay()
    assert out.tolist() == [1, 4, 9, 16] and out.data_ptr() == address


def test_replay_freezes_scalars_and_extents():
    count = [2]

    def run(x):
        return x * count[0] * x.shape[0]

    x = torch.ones(3)
    out, tape = record(run, [x])
    count[0] = 100
    x.fill_(2.0)
    tape.replay()
    assert out.tolist() == [12.0] * 3


MODELS = {
    "in place": lambda x, i: x.add_(1).mul_(2),
    "view then write": lambda x, i: (x[1:3].zero_(), x + 1)[1],
    "every second": lambda x, i: (x[::2].fill_(7.0), x.sum())[1],
    "index_put_": lambda x, i: x.index_put_((i,), torch.ones(2), accumulate=True),
    "gather": lambda x, i: x[i] * 2,
    "scatter": lambda x, i: torch.zeros(4).scatter_(0, i, x[:2]),
    "out=": lambda x, i: torch.add(x, 1, out=torch.empty(4)),
    "cat and sort": lambda x, i: torch.cat([x, x]).sort(descending=True).values,
    "matmul": lambda x, i: x.view(2, 2) @ x.view(2, 2),
    "copy between": lambda x, i: (x[:2].copy_(x[2:].clone()), x * 1)[1],
    "several results": lambda x, i: torch.stack(x.view(2, 2).max(1)[:1]),
    "where and any": lambda x, i: torch.where((x > 1).any(), x, -x),
}


@pytest.mark.parametrize("run", MODELS.values(), ids=MODELS)
def test_a_replay_is_what_the_code_would_do_again(run):
    x, i = torch.tensor([3.0, 1.0, 2.0, 5.0]), torch.tensor([1, 3])
    out, tape = record(run, [x, i])
    for values, places in (([0.5, 4.0, 1.0, 2.0], [0, 2]), ([9.0, 8.0, 7.0, 6.0], [3, 1])):
        x.copy_(torch.tensor(values)), i.copy_(torch.tensor(places))
        mine = x.clone()
        want = run(mine, i.clone())
        tape.replay()
        assert torch.equal(out, want) and torch.equal(x, mine)


def test_views_and_allocations_are_no_launches():
    _, tape = record(lambda x: torch.empty(2).copy_(x.view(2, 2).t()[0].detach()), [torch.ones(4)])
    assert _names(tape) == ["aten.copy_.default"]


# ---------------------------------------------------------------------------------------------------------- syncs
def _mask_put(x, m, n):
    x[m] = 0.0


SYNCS = {
    "item": lambda x, m, n: x.sum().item(),
    "float": lambda x, m, n: float(x[0]),
    "branch": lambda x, m, n: 1 if x.sum() > 0 else 2,
    "bool index": lambda x, m, n: x[m],
    "bool index_put": _mask_put,
    "uint8 index": lambda x, m, n: x[m.to(torch.uint8)],
    "masked_select": lambda x, m, n: x.masked_select(m),
    "nonzero": lambda x, m, n: x.nonzero(),
    "unique": lambda x, m, n: n.unique(),
    "bincount": lambda x, m, n: n.bincount(),
    "equal": lambda x, m, n: torch.equal(x, x + 1),
    "repeat_interleave": lambda x, m, n: x.repeat_interleave(n),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("run", SYNCS.values(), ids=SYNCS)
def test_a_host_sync_cannot_be_recorded(run):
    with pytest.raises(CaptureError, match="syncs with the host and cannot be recorded"):
        record(run, [torch.ones(4), torch.tensor([True, False, True, True]), torch.tensor([1, 2, 0, 1])])


def test_what_is_tagged_for_some_calls_only_can_be_recorded():
    x, n = torch.arange(3.0), torch.tensor([1, 2, 1])
    out, tape = record(lambda x, n: x.repeat_interleave(n, output_size=4) + x[n].sum(), [x, n])
    n.copy_(torch.tensor([2, 1, 1]))
    tape.replay()
    assert torch.equal(out, x.repeat_interleave(n) + x[n].sum())


def test_the_error_names_the_user_s_line(rows):
    graphs = []

    def model(x):
        y = x * 2
        return y[y[:, 0] > 0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(model, backend=lambda g, _: graphs.append(g) or g.forward, fullgraph=True)(rows(3))
    assert isinstance(graphs[0], fx.GraphModule)
    with pytest.raises(CaptureError, match=rf"recorded at {__file__}:{model.__code__.co_firstlineno + 2}"):
        record(graphs[0], [rows(3)])


# ---------------------------------------------------------------------------------------------------------- custom ops
calls: list[tuple[int, ...]] = []


@torch.library.custom_op("tape_tests::doubles", mutates_args=())
def doubles(x: torch.Tensor) -> torch.Tensor:
    calls.append(tuple(x.shape))
    return x * 2 if len(x) > 3 else x * 3


@torch.library.custom_op("tape_tests::shifts_", mutates_args={"x"})
def shifts_(x: torch.Tensor, by: int) -> None:
    x[1:].add_(by)


def test_the_body_of_a_custom_op_is_recorded_and_its_host_code_is_not_run_again():
    calls.clear()
    x = torch.ones(4)
    out, tape = record(lambda a: torch.ops.tape_tests.doubles(a) + 1, [x])
    assert _names(tape) == ["aten.mul.Tensor", "aten.add.Tensor"] and calls == [(4,)]
    x.fill_(5.0)
    tape.replay()
    assert out.tolist() == [11.0] * 4 and calls == [(4,)]


def test_a_custom_op_that_writes_is_recorded():
    x = torch.zeros(3)
    _, tape = record(lambda a: torch.ops.tape_tests.shifts_(a, 2), [x])
    tape.replay()
    assert x.tolist() == [0, 4, 4]


# ---------------------------------------------------------------------------------------------------------- triton
@triton.jit
def scale_rows(x_ptr, out_ptr, rows, stride, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x_ptr + row * stride + at, mask=row < rows, other=0.0)
    tl.store(out_ptr + row * BLOCK + at, value * factor)


@torch.library.custom_op("tape_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = x.new_empty(x.shape[0], 4)
    scale_rows[(x.shape[0],)](x, out, x.shape[0], x.stride(0), factor, BLOCK=4)
    return out


def test_a_triton_launch_is_recorded_with_its_grid_and_scalars():
    x = torch.arange(12.0).view(3, 4)
    out, tape = record(lambda a: torch.ops.tape_tests.scaled(a, 2.0), [x])
    (launch,) = tape.launches
    assert torch.equal(out, x * 2) and launch.name == "scale_rows" and launch.grid[0] == 3
    assert {"rows": 3, "stride": 4, "factor": 2.0, "BLOCK": 4}.items() <= launch.kwargs.items()
    x.add_(1)
    tape.replay()
    assert torch.equal(out, x * 2)


def test_a_grid_may_be_computed_from_the_arguments():
    def run(x):
        out = torch.zeros(x.shape[0], 4)
        scale_rows[lambda meta: (meta["rows"],)](x, out, x.shape[0], 4, 3.0, BLOCK=4)
        return out

    out, tape = record(run, [torch.ones(2, 4)])
    assert tape.launches[-1].grid[0] == 2 and torch.equal(out, torch.full((2, 4), 3.0))


def test_geometry_says_what_must_agree_between_two_batches_of_one_key():
    def geometry(x, factor=2.0):
        return [one.geometry() for one in record(lambda a: torch.ops.tape_tests.scaled(a, factor), [x])[1].launches]

    x = torch.ones(3, 4)
    assert geometry(x) == geometry(torch.zeros(3, 4))
    assert geometry(x) != geometry(torch.ones(2, 4))
    assert geometry(x) != geometry(torch.ones(3, 8)[:, :4])
    assert geometry(x) != geometry(x, 3.0)
    aten = [
        [one.geometry() for one in record(lambda a: a + a.shape[0], [torch.ones(n)])[1].launches] for n in (2, 2, 3)
    ]
    assert aten[0] == aten[1] != aten[2]


def test_nothing_is_left_patched_when_a_recording_fails():
    from triton.runtime.jit import JITFunction

    run = JITFunction.run
    with pytest.raises(CaptureError):
        record(lambda x: x.sum().item(), [torch.ones(2)])
    assert JITFunction.run is run and torch._C._len_torch_dispatch_stack() == 0
