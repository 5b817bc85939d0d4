"""Finding a contract: declared, else the table, else unknown; host nodes need none."""

from __future__ import annotations

import operator

import torch
from torch import fx

from capwise.contracts import HOST, UNKNOWN, find
from capwise.ops import aten
from capwise.testing import withheld_contracts

A = torch.ops.aten


def _node(target):
    graph = fx.Graph()
    return graph.call_function(target, (graph.placeholder("x"),))


def test_a_declared_contract_comes_first():
    op = torch.ops.capwise.ple_ngram_ids.default
    found = find(_node(op))
    assert found.source == "declared" and found.contract.locality == "segment" and found.row is None
    with withheld_contracts():
        assert find(_node(op)) is UNKNOWN


def test_then_the_table_then_tags():
    assert find(_node(A.sum.default)).row is aten.TABLE["sum"]
    assert find(_node(A.sin.default)).source == "table" and find(_node(A.sin.default)).row.family == "pointwise"


def test_what_nobody_speaks_for_is_unknown():
    assert find(_node(A.resize_.default)) is UNKNOWN
    assert find(_node(torch.ops.higher_order.cond)) is UNKNOWN


def test_host_arithmetic_needs_no_contract():
    for target in (operator.add, operator.getitem, torch.sym_max, A.sym_size.int, A.sym_numel.default):
        assert find(_node(target)) is HOST
