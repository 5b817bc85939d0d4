"""Programs: their text, what is free, what writes, what a cut-out graph takes."""

from __future__ import annotations

import operator

import torch
from torch import fx

from capwise.program import extract, is_free, is_part, print_graph, written_arguments

A = torch.ops.aten


def _graph():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(4, 2)
    return graph, x


def _call(graph, target, *args):
    node = graph.call_function(target, args)
    values = fx.node.map_arg(args, lambda n: n.meta["val"])
    node.meta["val"] = target(*values)
    return node


def test_views_and_host_arithmetic_are_free_and_work_is_not():
    graph, x = _graph()
    size = _call(graph, A.sym_size.int, x, 0)
    more = _call(graph, operator.add, size, 1)
    view, work = _call(graph, A.view.default, x, [2, 4]), _call(graph, A.add.Tensor, x, 1)
    assert is_free(size) and is_free(more) and is_free(view) and not is_free(work) and not is_free(x)
    assert not is_free(_call(graph, A.add_.Tensor, x, 1))


def test_one_result_of_several_is_a_part_of_its_op():
    graph, x = _graph()
    both = _call(graph, A.max.dim, x, 0)
    part = _call(graph, operator.getitem, both, 0)
    assert is_part(part) and not is_free(part)
    halves = _call(graph, A.split.Tensor, x, 2)
    assert is_free(_call(graph, operator.getitem, halves, 0))


def test_what_an_op_writes():
    graph, x = _graph()
    other = _call(graph, A.mul.Tensor, x, 2)
    assert written_arguments(_call(graph, A.add_.Tensor, x, other)) == [x]
    assert written_arguments(other) == []
    named = graph.call_function(A.add.out, (x, x), {"out": other})
    assert written_arguments(named) == [other]
    hop = graph.call_function(torch.ops.higher_order.cond, (x, other))
    assert written_arguments(hop) == [x, other]


def test_a_cut_takes_what_it_needs_and_makes_views_again():
    graph, x = _graph()
    a = _call(graph, A.mul.Tensor, x, 2)
    view = _call(graph, A.view.default, a, [2, 4])
    b = _call(graph, A.add.Tensor, view, 1)
    graph.output((b,))
    module, taken = extract(fx.GraphModule({}, graph), [b], [b])
    assert taken == [a]
    assert print_graph(module.graph) == "\n".join(
        ["%0 = aten.view.default(mul_tensor, [2, 4])", "%1 = aten.add.Tensor(%0, 1)", "return [%1]"]
    )
    assert torch.equal(module(torch.ones(4, 2))[0], torch.full((2, 4), 2.0))
    whole, taken = extract(fx.GraphModule({}, graph), [a, b], [b])
    assert taken == [x] and torch.equal(whole(torch.ones(4, 2))[0], torch.full((2, 4), 3.0))


def test_names_are_renumbered_and_ends_are_called_ends():
    graph, x = _graph()
    part = _call(graph, A.slice.Tensor, x, 0, 1, 2**63 - 1)
    graph.output((part, None, 3))
    assert print_graph(graph) == "%0 = aten.slice.Tensor(x, 0, 1, end)\nreturn [%0, None, 3]"


def test_a_program_prints_its_seams_inputs_and_fills(make_case, program_of):
    program = program_of(make_case(lambda x: (x - x.sum(0)).flip(0) + 1))
    lines = program.text().splitlines()
    assert lines[0].endswith("2 pieces, 1 seams") and lines[1] == "  input x fill 0"
    assert "  %0 = seam aten.flip.default(sub, [0])  [T:padded, 4]" in lines and lines[-1].startswith("return ")


def test_the_same_model_prints_the_same(make_case, program_of):
    def once():
        torch._dynamo.reset()
        return program_of(make_case(lambda x: (x - torch.exp(x).sum(0)).flip(0))).text()

    assert once() == once()
