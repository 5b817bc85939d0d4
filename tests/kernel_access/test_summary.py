"""Rows of `capwise kernels`."""

import ast
import inspect
import json
import re
import time
from pathlib import Path

import capwise.kernel_access
from capwise.kernel_access import load_kernels, rows, summarize

BY = re.compile(r"pid[012]|range|load:\w+")
STRIDE = re.compile(r"unit|passed:\S+|constant:-?\d+|unknown")


def test_rows_have_exactly_the_promised_shape(summary, kernel):
    for name in ("slot_unit", "search", "descriptor", "shift_alone", "nested", "never_compiles"):
        for row in rows(summary(name)):
            assert list(row) == ["kernel", "arg", "access", "axes", "extent", "verdict", "hazards", "file", "line"]
            assert set(row["access"]) <= {"load", "store", "atomic"} and row["verdict"] in ("proved", "unknown")
            assert all(set(a) == {"by", "stride"} for a in row["axes"])
            assert all(BY.fullmatch(a["by"]) and STRIDE.fullmatch(a["stride"]) for a in row["axes"])
            assert all(set(h) == {"code", "verdict", "needs"} for h in row["hazards"])
            assert all(h["verdict"] in ("refuted", "assumed") for h in row["hazards"])
            assert row["file"].endswith("kernels.py") and row["line"] > 0
        assert json.loads(json.dumps(rows(summary(name)))) == rows(summary(name))


def test_one_row_a_pointer_argument_at_its_first_line(summary):
    assert [(r["arg"], r["line"]) for r in rows(summary("slot_unit"))] == [
        ("state_ptr", 12), ("idx_ptr", 10), ("out_ptr", 12)]  # fmt: skip


def test_a_row_in_full(summary):
    row = rows(summary("slot_unit"))[1]
    assert {k: v for k, v in row.items() if k != "file"} == {
        "kernel": "slot_unit",
        "arg": "idx_ptr",
        "access": ["load"],
        "axes": [{"by": "pid0", "stride": "unit"}],
        "extent": "grid0",
        "verdict": "proved",
        "hazards": [{"code": "CW401", "verdict": "assumed", "needs": "idx_ptr has stride 1 along pid0"}],
        "line": 10,
    }


def test_the_same_twice(kernel, summary):
    first = summary("pages")
    assert rows(summarize(kernel("pages"), first.signature, first.constexprs)) == rows(first)


def test_summaries_are_frozen(summary):
    found = summary("search")
    for value in (found, found["qsl_ptr"], found["qsl_ptr"].accesses[0], found["qsl_ptr"].axes[0]):
        assert type(value).__dataclass_params__.frozen


def test_triton_and_sympy_are_imported_only_when_used():
    for path in Path(capwise.kernel_access.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            plain = isinstance(node, ast.Import)
            names = [a.name for a in node.names] if plain else [getattr(node, "module", "") or ""]
            assert not [n for n in names if n.partition(".")[0] in ("triton", "sympy", "torch")], path


def test_a_kernel_takes_a_fifth_of_a_second_on_average(kernel):
    names = [k.__name__ for k in load_kernels(inspect.getsourcefile(kernel("search").fn))]
    started = time.process_time()
    for name in names[:20]:
        summarize(kernel(name))
    assert (time.process_time() - started) / 20 < 0.2


def test_public_names_have_docstrings():
    for name in capwise.kernel_access.__all__:
        assert getattr(capwise.kernel_access, name).__doc__, name


def test_bounds_without_end_are_unknown(kernel, monkeypatch):
    """The offset itself is followed; how far it reaches is not known, and that is said."""

    def endless(access, assumed):
        raise RecursionError

    monkeypatch.setattr("capwise.kernel_access.summary.extent", endless)
    found = rows(summarize(kernel("slot_unit")))
    assert found and all("unknown" in row["extent"] and row["verdict"] == "unknown" for row in found)
