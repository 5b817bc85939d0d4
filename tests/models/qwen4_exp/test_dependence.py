"""What ops depend on: measured, by their contracts, and by the analysis without any contract."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capwise.backend import check_case
from capwise.models.qwen4_exp import dependence, opaque, serving_cases
from capwise.ops.contract import all_declared, withheld

S, ALL_BUT = "query_start_loc", ("num_accepted", "has_initial", "is_spec")
STATEFUL = {dependence.EARLIER, S, "state_table", *ALL_BUT}
# Everything else depends on nothing but its own row.
EXPECTED = {
    "ple n-gram ids": {dependence.EARLIER, S, "ngram_context"},
    "ple predecessors, once a step": {dependence.EARLIER, S, "ngram_context"},
    "ple short conv": STATEFUL,
    "gdn conv1d": STATEFUL,
    "gdn delta-rule scan": STATEFUL,
    "indexer rope": {"positions"},
    "rope + kv cache write": {"slot_mapping", "positions"},
    "qsa compress groups": {S, "seq_lens", "state_table", "block_table", "positions"},
    "qsa raw-key ring write": {S, "seq_lens", "state_table", "positions"},
    "qsa score + top-k": {S, "seq_lens", "block_table"},
    "expand + sparse paged attention": {S, "seq_lens", "block_table"},
    "logits rows + head": {dependence.OTHERS, S, "is_spec"},
}


@pytest.fixture(scope="module")
def measured():
    return dependence.all_measured()


def _marks(columns):
    return {name for name, marked in columns.items() if marked}


def test_measured_as_expected(measured):
    assert {name: _marks(columns) for name, columns in measured.items() if _marks(columns)} == EXPECTED


def test_contracts_say_what_is_measured(measured):
    assert dependence.all_derived() == measured


def test_the_page_is_what_is_measured(measured):
    page = Path(__file__).parents[3] / "docs" / "dependence.md"
    assert dependence.table(measured) in page.read_text()


def test_closed_ops_hold_exactly_the_rows_that_need_requests(measured):
    held = {row for rows in opaque.HOLDS.values() for row in rows}
    assert held == dependence.request_bound(measured) | {"indexer rope"}


def test_the_analysis_finds_them_without_any_contract():
    """Every op is unknown then; of those that requests reach, by symbols alone, it says so."""
    by_contract = {
        str(op) for op, contract in all_declared().items()
        if any("R" in str(label) for axes in contract.arguments.values() for label in axes.axes)
    }  # fmt: skip
    with withheld():
        report = check_case(serving_cases.decoder(1))
    met = {d.op for d in report if d.code == "CW001"}
    found = {d.op for d in report if d.code == "CW001" and any("symbol R" in note for note in d.notes)}
    assert len(met) > len(found) > 8
    assert found == met & by_contract


def test_a_missed_dependence_would_show(monkeypatch):
    """A convolution that ignores how much was accepted is told from one that does not."""
    row = next(r for r in dependence.ROWS if r.name == "ple short conv")
    template = dependence.model()
    conv = type(template.layers[1].ple.short_conv)
    forward = conv.forward
    monkeypatch.setattr(conv, "forward", lambda self, *a: forward(self, *a[:4], torch.ones_like(a[4]), a[5]))
    assert _marks(dependence.measured(row, template)) == STATEFUL - {"num_accepted"}
