"""Every claim of a contract is put to the test: a true contract passes, each false claim is refuted by its name."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from capwise.ops import contract as c
from capwise.ops import samples
from capwise.testing import ContractRefuted, check_contract

CONTEXT = {"scale": 2.0}
STATE = torch.zeros(1)


@triton.jit
def shift_rows(x, rows, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + (row + 1) * width + at, mask=row + 1 < rows, other=0.0)
    tl.store(x + row * width + at, value)


def _op(name, run, writes=()):
    op = torch.library.custom_op(f"claims::{name}", run, mutates_args=writes)
    return getattr(torch.ops.claims, op._name).default


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _sums(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum(0)


def _prefix(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Takes elements as if they were dense."""
    return torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()) * 2


def _by_context(x: torch.Tensor) -> torch.Tensor:
    return x * CONTEXT["scale"]


def _counts(x: torch.Tensor) -> torch.Tensor:
    STATE.add_(1)
    return x + STATE


def _behind(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def _asks(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.max())


def _cut(x: torch.Tensor, width: int) -> torch.Tensor:
    return x[:, :width] * 2


def _shifts(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    shift_rows[(x.shape[0],)](out, x.shape[0], x.shape[1], BLOCK=4)
    return out


def _keeps(cache: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> None:
    cache[slots] = x


def _per_request(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    request = torch.searchsorted(starts, torch.arange(len(x)), right=True) - 1
    return x + request.clamp(max=len(starts) - 2)[:, None]


def _request_of(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(starts, torch.arange(len(x)), right=True) - 1


def _request_and_one(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(starts, torch.arange(len(x)), right=True)


ROW = c.Contract(rows={"x": c.Rows("T", None), "out": c.Rows("T", None)}, locality="row")
SLOTS = c.Contract(
    rows={"x": c.Rows("T", None), "slots": c.Slots("T", into="cache", null=0), "cache": c.Rows(None, None, write=True)},
    state=("cache",),
    locality="row",
)
TAKES = c.Contract(
    rows={"x": c.Rows("T", None), "out": c.Rows("T", None)}, requests={"starts": c.Boundaries()}, locality="segment"
)

X = [((torch.arange(t * 4.0).view(t, 4).sin() + 2,), {}) for t in (5, 3)]
CUT = [((x, 2), {}) for (x,), _ in X]
KEEP = [((torch.zeros(9, 4), torch.tensor([3, 1, 7, 2, 5]), X[0][0][0]), {})]
STARTS = [((X[0][0][0], torch.tensor([0, 2, 5])), {})]

# op, what is declared of it, samples, the field that is refuted.
FALSE = {
    "a tail that shows": (_sums, ROW, X, "tail of x"),
    "rows that see others": (_prefix, ROW, X, "locality"),
    "a stride that is taken for granted": (_dense, ROW, X, "strides of x"),
    "a global that is read": (_by_context, ROW, X, "hidden"),
    "state that is kept": (_counts, ROW, X, "hidden"),
    "a write behind the schema": (_behind, ROW, X, "mutates_args"),
    "a write that is none": (_doubled, c.Contract(rows={"x": c.Rows("T", None, write=True)}), X, "write of x"),
    "a tail of a result": (
        _doubled, c.Contract(rows={"x": ROW.rows["x"], "out": c.Rows("T", None, tail=c.Fill(1.0))}), X, "tail of out",
    ),
    "a host sync": (_asks, c.Contract(locality="global"), X, "syncs"),
    "a number that shapes launches": (_cut, ROW, CUT, "host"),
    "programs that wait for each other": (_shifts, c.Contract(locality="global"), X, "overlap"),
    "a null row that is written": (_keeps, SLOTS, KEEP, "null of slots"),
    "numbers by request": (_per_request, TAKES, STARTS, "requests"),
    "numbers that are no request's": (_request_and_one, TAKES, STARTS, "requests"),
}


@pytest.mark.parametrize("claim", FALSE)
def test_a_false_claim_is_refuted_by_its_field(claim):
    run, said, calls, name = FALSE[claim]
    writes = ("cache",) if run is _keeps else ()
    op = _op(run.__name__.strip("_"), run, writes)
    with pytest.raises(ContractRefuted) as caught:
        check_contract(op, calls, said)
    assert name in [one.field for one in caught.value.refuted], str(caught.value)
    assert str(op) in str(caught.value) and name in str(caught.value)


TRUE = {
    "a tail of a result": (
        _doubled, c.Contract(rows={n: c.Rows("T", None, tail=c.Fill(0.0)) for n in ("x", "out")}), X,
    ),
    "row": (_doubled, ROW, X),
    "prefix": (_prefix, c.Contract(rows=ROW.rows, locality="prefix"), X),
    "stride": (_dense, c.Contract(rows=ROW.rows, locality="row", strides={"x": c.Contiguous()}), X),
    "hidden": (_by_context, c.Contract(rows=ROW.rows, locality="row", hidden=True), X),
    "syncs": (_asks, c.Contract(locality="global", syncs=True), X),
    "the number of its request": (_request_of, TAKES, STARTS),
    "host": (_cut, c.Contract(rows=ROW.rows, locality="row", host=("width",)), CUT),
}


@pytest.mark.parametrize("claim", TRUE)
def test_a_true_contract_passes(claim):
    run, said, calls = TRUE[claim]
    check_contract(_op(f"true_{run.__name__.strip('_')}", run), calls, said)
    assert CONTEXT == {"scale": 2.0}


@pytest.mark.parametrize("name", ["ple_ngram_ids", "ple_short_conv_state_", "align_state_shift_"])
def test_what_shipped_ops_declare_passes(name):
    check_contract(f"capwise::{name}", [((), samples.sample(name, [6, 3, 5], seed=1))])


def test_an_op_without_a_contract_and_no_samples_are_refused():
    op = _op("nobodys", _doubled)
    with pytest.raises(ValueError, match="expected an op with a contract"):
        check_contract(op, X)
    with pytest.raises(ValueError, match="expected samples"):
        check_contract(op, [], ROW)
    with pytest.raises(ValueError, match="expected an overload, a custom op or 'namespace::name'; got int"):
        check_contract(3, X)


def test_a_sample_that_the_op_does_not_take_is_refused():
    op = _op("narrow", _dense)
    with pytest.raises(ValueError, match=r"samples\[1\]: expected a call that claims.narrow.default takes; it raises "):
        check_contract(op, [X[0], ((X[0][0][0][0],), {})], c.Contract(locality="row"))
