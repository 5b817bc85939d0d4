"""The trace: aten with mutation kept, symbols named, and each op at the user's line and columns."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from capwise.facts import val
from capwise.trace import argument_names, mark, ordered, span_of, unbacked_ints


def _calls(program):
    return [n for n in program.module.graph.nodes if n.op == "call_function"]


class Mutates(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(16, 4))

    def forward(self, x, slots):
        view = self.seen[: x.shape[0]]
        view.add_(x)
        self.seen[slots] = x
        y = x * 2
        y[:, 0] = 1.0
        return y.relu_()


def _steps():
    return [{"x": torch.ones(t, 4), "slots": torch.arange(t)} for t in (6, 3)]


def test_mutation_is_kept(make_case, program_of):
    program = program_of(make_case(Mutates(), _steps(), {"slots": ("T",)}), repair="none")
    targets = [str(n.target) for n in _calls(program)]
    assert {"aten.add_.Tensor", "aten.index_put_.default", "aten.relu_.default"} <= set(targets)
    assert not any("functionalized" in t for t in targets)


def test_views_share_storages(make_case, program_of):
    program = program_of(make_case(Mutates(), _steps(), {"slots": ("T",)}), repair="none")
    seen = next(n for n in program.module.graph.nodes if n.op == "placeholder" and n.name == "seen")
    view = next(n for n in _calls(program) if n.args and n.args[0] is seen)
    assert val(view).untyped_storage()._cdata == val(seen).untyped_storage()._cdata


def test_symbols_are_called_what_the_user_calls_them(make_case, program_of):
    steps = [{"x": torch.ones(t, 4), "starts": torch.arange(r + 1), "s": torch.ones(r)} for t, r in ((3, 3), (1, 1))]
    case = make_case(lambda x, starts, s: (x + 1, starts[1:] * s), steps, {"starts": ("R+1",), "s": ("R",)})
    program = program_of(case)
    assert set(program.space.sympy) == {"T", "R"} and program.outside == {"R"}
    assert set(program.values["x"].axes[0]) == set(program.space.axis(program.space.sympy["T"]))


def test_assertions_and_other_host_only_nodes_are_dropped(make_case, program_of):
    program = program_of(make_case(lambda x: x + 1))
    assert [str(n.target) for n in _calls(program)] == ["aten.add.Tensor"]


def _places(x):
    y = 1 + torch.relu(x)
    z = y - x.sum(1, keepdim=True)
    return z.flip(0)


def test_a_span_points_at_the_user_s_line_and_columns(make_case, program_of):
    program = program_of(make_case(_places))
    lines, first = inspect.getsourcelines(_places)
    found = {str(n.target): span_of(n) for n in _calls(program)}
    want = {
        "aten.relu.default": (1, "torch.relu(x)"),
        "aten.sum.dim_IntList": (2, "x.sum(1, keepdim=True)"),
        "aten.flip.default": (3, "z.flip(0)"),
    }
    for target, (at, words) in want.items():
        span = found[target]
        assert (span.file, span.line) == (__file__, first + at)
        assert lines[at][span.column - 1 : span.end_column - 1] == words


class Inner(nn.Module):
    def forward(self, x):
        return x.flip(0)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x) + 1


def test_a_span_is_the_innermost_line_of_the_user(make_case, program_of):
    flip = next(n for n in _calls(program_of(make_case(Outer()))) if "flip" in str(n.target))
    assert span_of(flip).line == inspect.getsourcelines(Inner.forward)[1] + 1


def test_weights_and_buffers_are_called_by_their_path(make_case, program_of):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x):
            return self.layers[0](x)

    names = {a.name for a in program_of(make_case(Model())).arrivals.values() if a.kind == "state"}
    assert names == {"layers.0.weight", "layers.0.bias"}


def test_staged_inputs_are_dense_in_the_trace_whatever_strides_they_came_with(make_case, program_of):
    steps = [{"x": torch.ones(t, 8)[:, ::2]} for t in (6, 3)]
    program = program_of(make_case(lambda x: x + 1, steps))
    x = next(n for n in program.module.graph.nodes if n.name == "x")
    assert val(x).is_contiguous()


def test_marks_are_made_on_copies():
    from capwise.labels import normalise

    x, n = torch.ones(3, 4), 5
    specs = normalise({"x": ("T", 4), "n": "Q"})
    marked = mark({"x": x, "n": n, "other": None}, specs, unbacked=True)
    assert marked["x"] is not x and torch.equal(marked["x"], x) and marked["n"] == 5
    assert hasattr(marked["x"], "_dynamo_unbacked_indices") and not hasattr(x, "_dynamo_unbacked_indices")
    assert unbacked_ints(specs) == "L['batch']['n']"


def test_arguments_that_carry_a_bare_symbol_come_first():
    from capwise.labels import normalise

    assert list(ordered(normalise({"starts": ("R+1",), "x": ("T",), "s": ("R",)}))) == ["x", "s", "starts"]


def test_argument_names():
    assert argument_names(lambda x, y=1, *a: x) == ["x", "y"] and argument_names(lambda **k: 1) is None
    assert argument_names(nn.ReLU()) == ["input"]
