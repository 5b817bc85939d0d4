"""Searches are proved, whichever way they are written, and end where the proof says; look-alikes are not."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from capwise.kernel_access import evaluate, load_kernels, summarize
from capwise.kernel_access.printing import text

ROUNDS = 3


@cache
def kernels():
    return {k.__name__: k for k in load_kernels(str(Path(__file__).with_name("search_kernels.py")))}


@cache
def summary(name):
    kernel = kernels()[name]
    pointers = {n: "*i32" for n in kernel.arg_names if n.endswith("_ptr")}
    signature = {n: pointers.get(n, "i32") for n in kernel.arg_names if n != "ROUNDS"}
    return summarize(kernel, signature, {"ROUNDS": ROUNDS} if "ROUNDS" in kernel.arg_names else {})


PROVED = {
    "closed_below": ("1", "n", None),
    "open_ends": ("1", "n + 1", None),
    "apart": ("1", "n", None),
    "written_out": ("1", "n + 1", ROUNDS),
    "walks": ("1", "n", None),
    "counts": ("1", "n", None),
}


@pytest.mark.parametrize("name", PROVED)
def test_a_search_is_proved(name):
    (search,) = summary(name).searches
    assert search.arg == "qsl_ptr" and summary(name)["qsl_ptr"].role == "boundary"
    assert (text(search.first), text(search.last), search.rounds) == PROVED[name]
    assert text(search.key) == "pid0"


LOOK_ALIKES = ["skips_a_row", "stops_early", "does_not_halve", "other_way_round", "reads_beyond"]


@pytest.mark.parametrize("name", [*LOOK_ALIKES, "writes_what_it_searches"])
def test_what_looks_like_one_is_not(name):
    assert not summary(name).searches


def found(name, starts, program):
    """The row in the address that one program stores to."""
    (store,) = [a for a in summary(name).accesses if a.kind == "store"]
    scalars = {"n": len(starts) - 1, "stride": 1}
    (row,) = evaluate(store, (program, 0, 0), (99, 1, 1), scalars, {"qsl_ptr": starts})
    return int(row)


def boundaries(requests, seed):
    lengths = np.random.default_rng(seed).integers(0, 3, requests - 1)
    return [0, *np.cumsum([*lengths, 2]).tolist()]


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.parametrize("requests", range(1, 2**ROUNDS))
def test_it_ends_at_the_row_of_its_key_however_often_the_last_boundary_is_repeated(name, requests):
    starts = boundaries(requests, requests)
    padded = starts + [starts[-1]] * (2**ROUNDS - 1 - requests)
    for key in range(starts[-1]):
        row = int(np.searchsorted(starts, key, side="right")) - 1
        assert found(name, starts, key) == row
        assert found(name, padded, key) == row


@pytest.mark.parametrize("name", [n for n in LOOK_ALIKES if n != "reads_beyond"])
def test_look_alikes_do_end_elsewhere(name):
    starts = [0, 1, 2, 3, 4, 5, 6, 7]
    assert [found(name, starts, key) for key in range(7)] != list(range(7))


def test_too_few_rounds_end_elsewhere_and_the_bound_is_asked_for():
    starts = list(range(2**ROUNDS + 2))
    assert [found("written_out", starts, key) for key in range(9)] != list(range(9))
    needs = [h.needs for h in summary("written_out")["qsl_ptr"].hazards if h.code == "CW101"]
    assert any(f"n < 2**{ROUNDS}" in text for text in needs) and any("n in the key" in text for text in needs)


def test_a_search_that_is_not_proved_says_so_in_what_it_needs():
    (hazard,) = [h for h in summary("skips_a_row")["qsl_ptr"].hazards if h.code == "CW201"]
    assert hazard.verdict == "assumed" and "which is not proved" in hazard.needs
    (proved,) = [h for h in summary("open_ends")["qsl_ptr"].hazards if h.code == "CW201"]
    assert "not proved" not in proved.needs


def test_values_between_rounds_are_bounded_whatever_is_searched():
    row = summary("written_out")["qsl_ptr"]
    assert row.verdict == "proved" and row.extent != "unknown"
