"""Long chunks by flash-linear-attention: against the reference over steps of any mix, and as a seam of a program.

The library runs on no CPU: a stand-in that is strict about its arguments takes its place (fixture `fla`), inside
`compat.interpreted()`, where ops take their device's way.
"""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
from torch import nn

import capwise
from capwise import compat
from capwise.ops.contract import declared
from capwise.ops.gdn_chunked import gdn_chunked_, library
from capwise.ops.gdn_scan import gdn_scan_reference
from capwise.ops.samples import SMALL, sample
from capwise.testing import check_contract, withheld_contracts

SIZES = dataclasses.replace(SMALL, slots=40)
LONG = 4


def _call(lengths, seed):
    """Arguments by name; requests of five tokens and more are long, every fourth has the null slot, and the slots of
    who has no state hold NaN."""
    call = sample("gdn_scan_", lengths, SIZES, seed)
    fresh = call["state_table"][~(call["has_initial"] | call["is_spec"]), 0].long()
    call["state"][fresh[fresh > 0]] = float("nan")
    return {**{n: v for n, v in call.items() if n != "chunk"}, "long": LONG}


def _run(call):
    call = {**call, "state": call["state"].clone()}
    with compat.interpreted():
        return gdn_chunked_(**call), call["state"]


def _right(call):
    call = {n: v.clone() if n == "state" else v for n, v in call.items() if n != "long"}
    return gdn_scan_reference(**call), call["state"]


def _close(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)


# ------------------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize("seed", range(8))
def test_any_step_equals_the_reference(seed, step, strided, fla):
    """Decodes, empty requests, verify rows and long chunks; any strides, noise in the gaps."""
    lengths = (7, *step(seed).lengths, 9)
    call = _call(lengths, seed)
    call = {n: strided(v, seed + i) if isinstance(v, torch.Tensor) else v for i, (n, v) in enumerate(call.items())}
    _close(_run(call), _right(call))
    (sequences,) = fla
    slots, spec = call["state_table"][:, 0].tolist(), call["is_spec"].tolist()
    assert sequences == [n for n, slot, s in zip(lengths, slots, spec) if n > LONG and slot and not s]


def test_a_step_of_long_chunks_is_one_call(fla):
    call = _call((13, 5, 6), 1)
    got = _run(call)
    assert fla == [[13, 5, 6]] and got[0].is_contiguous()
    _close(got, _right(call))


def test_a_step_without_long_chunks_asks_for_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    call = _call((1, 4, 0, 2), 2)
    _close(_run(call), _right(call))


def test_a_request_that_verifies_stays_with_its_drafts(fla):
    """However many tokens it has: the library has no slot for each of them."""
    call = _call((6, 7), 3)
    call["state_table"][:] = torch.arange(1, 9).view(2, 4)
    call["is_spec"], call["has_initial"] = torch.tensor([True, False]), torch.tensor([True, True])
    _close(_run(call), _right(call))
    assert fla == [[7]]


def test_rows_of_nobody_are_zero(fla):
    """A long request with the null slot, one whose slot lies outside the pool, and rows past the last request."""
    call = _call((6, 7, 8, 5), 4)
    call["state_table"][:, 0] = torch.tensor([0, 40, 3, -1])
    call["is_spec"][:], call["has_initial"][:] = False, True
    call["query_start_loc"][4] = 23
    out, state = _run(call)
    _close((out, state), _right(call))
    assert fla == [[8]] and not out[:13].any() and out[13:21].any() and not out[21:].any()


def test_boundaries_that_are_written_in_place_are_read_again(fla):
    """The library finds its chunks again by the identity of the boundaries: a step's come in the buffer of the last."""
    first, then = _call((9, 6), 5), _call((5, 10), 6)
    _run(first)
    first["query_start_loc"].copy_(then["query_start_loc"])
    then["query_start_loc"] = first["query_start_loc"]
    for name in ("state_table", "is_spec"):
        then[name] = first[name]
    _close(_run(then), _right(then))
    assert fla == [[9, 6], [5, 10]]


def test_a_neighbour_changes_no_bit(fla):
    alone = _call((9,), 7)
    alone["state_table"][:] = torch.tensor([[5, 6, 7, 8]])
    want, state = _run(alone)
    for other in (1, 6):
        both = _call((other, 9), 8)
        for name in ("q", "k", "v", "g", "beta", "state_table", "has_initial", "num_accepted", "is_spec"):
            both[name][-alone[name].shape[0] :] = alone[name]
        both["state_table"][0], both["state"][5] = torch.tensor([1, 2, 3, 4]), alone["state"][5]
        got, after = _run(both)
        assert torch.equal(got[other:], want) and torch.equal(after[5], state[5])


# ------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("missing", ("fla", "fla.ops.gated_delta_rule"))
def test_without_the_library_the_extra_is_named(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    call = _call((7,), 9)
    with pytest.raises(ImportError, match=r"^gdn_chunked_: expected flash-linear-attention; got .*capwise\[fla\]"):
        _run(call)
    with pytest.raises(ImportError, match=r"pip install 'capwise\[fla\]'"):
        library()


def test_contradicting_arguments_are_refused(raises):
    call = _call((3,), 1)
    with raises("gdn_chunked_: k: expected a divisor of the 2 value heads; got 3 key heads"):
        gdn_chunked_(**{**call, "k": torch.zeros(3, 3, 5)})
    with raises("gdn_chunked_: has_initial: expected (1,); got (2,)"):
        gdn_chunked_(**{**call, "has_initial": torch.ones(2)})
    with raises("gdn_chunked_: long: expected at least 0; got -1"):
        gdn_chunked_(**{**call, "long": -1})


# ----------------------------------------------------------------------------------------------------------- contract
def test_the_contract_of_gdn_chunked_holds_on_the_librarys_way(fla):
    given = [((), _call((6, 5), 1))]
    with compat.interpreted():
        check_contract("capwise::gdn_chunked_", given)
        right = declared(torch.ops.capwise.gdn_chunked_.default)
        with pytest.raises(capwise.testing.ContractRefuted, match="syncs"):
            check_contract("capwise::gdn_chunked_", given, dataclasses.replace(right, syncs=False))
    assert fla and {n for sequences in fla for n in sequences} == {5, 6}


OTHER = {
    "query_start_loc": torch.tensor([0, 9, 14, 16], dtype=torch.int32),
    "state_table": torch.tensor([[1, 2, 3, 4], [0, 6, 7, 8], [9, 10, 11, 12]], dtype=torch.int32),
    "is_spec": torch.tensor([True, False, False]),
    "long": 6,
}


def test_gdn_chunked_is_called_by_what_its_contract_names_as_read_on_the_host(fla):
    """Other values of those make other calls of the library; other values of all else make the same."""
    call = _call((6, 8, 2), 1)
    call["state_table"][:] = torch.arange(1, 13).view(3, 4)
    call["is_spec"][:] = False
    made = {}
    for name, value in call.items():
        other = OTHER.get(name)
        if other is None:
            other = ~value if value.dtype == torch.bool else value + 1
        _run({**call, name: other})
        made[name] = fla.pop()
    read = declared(torch.ops.capwise.gdn_chunked_.default).host
    assert sorted(n for n, sequences in made.items() if sequences != [6, 8]) == sorted(read)


# -------------------------------------------------------------------------------------------------------------- seams
class Layer(nn.Module):
    """Rows, the delta rule, rows; channels of one projection."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("state", torch.randn(40, 2, 5, 7, generator=generator))
        self.weight = nn.Parameter(torch.randn(24, 24, generator=generator), requires_grad=False)

    def forward(self, x, g, beta, query_start_loc, state_table, has_initial, num_accepted, is_spec):
        q, k, v = (x @ self.weight).split([5, 5, 14], 1)
        out = torch.ops.capwise.gdn_chunked_(
            q[:, None], k[:, None], v.unflatten(1, (2, 7)), g, beta, self.state, query_start_loc, state_table,
            has_initial, num_accepted, is_spec, LONG,
        )  # fmt: skip
        return out.flatten(1) * 2 + 1


def _case():
    def batch(lengths, seed):
        call = sample("gdn_scan_", lengths, SIZES, seed)
        x = torch.randn(sum(lengths), 24, generator=torch.Generator().manual_seed(seed))
        names = ("g", "beta", "query_start_loc", "state_table", "has_initial", "num_accepted", "is_spec")
        return {"x": x, **{n: call[n] for n in names}}

    return capwise.Case(
        model=Layer(),
        batches=[batch(n, seed) for seed, n in enumerate(((7, 0, 3), (1, 1, 1), (13,), (2, 6, 1)))],
        inputs={
            "x": ("T", 24), "g": ("T", 2), "beta": ("T", 2), "query_start_loc": ("R+1",),
            "state_table": capwise.Input("R", 4, null=0), "has_initial": ("R",), "num_accepted": ("R",),
            "is_spec": ("R",),
        },
        capacity={"R": 4, "T": 16},
        options={"capture_sizes": (4, 16)},
        name="a layer",
    )  # fmt: skip


def test_exactly_this_op_is_a_seam_and_replay_is_right(fla):
    with compat.interpreted():
        result = capwise.verify(_case(), adversaries=["poison"])
    assert result.ok and result.steps == 4 and not result.misses, str(result)
    assert [(s.op, s.code) for s in result.report.seams] == [("capwise.gdn_chunked_.default", "CW002")]
    assert result.report.pieces == 2
    assert {tuple(sequences) for sequences in fla} == {(7,), (13,), (6,)}


def test_nobodys_word_is_needed_for_the_seam():
    """With every contract withheld, what is found is the op without one."""
    with withheld_contracts():
        report = capwise.check(_case().model, _case().batches[0], inputs=_case().inputs)
    assert {(s.op, s.code) for s in report.seams} == {("capwise.gdn_chunked_.default", "CW001")}
