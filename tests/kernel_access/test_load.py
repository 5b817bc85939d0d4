"""Finding kernels in modules and files."""

import sys
from pathlib import Path

import pytest

from capwise.kernel_access import load_kernels
from capwise.kernel_access.load import is_kernel

FILE = str(Path(__file__).with_name("kernels.py"))


def test_kernels_of_a_file_in_order_of_lines():
    before = set(sys.modules)
    names = [k.__name__ for k in load_kernels(FILE)]
    assert names[:3] == ["slot_unit", "slot_passed", "search"]
    assert set(sys.modules) == before


def test_helpers_are_told_from_kernels(kernel):
    assert is_kernel(kernel("search")) and not is_kernel(kernel("helper_value"))


def test_kernels_of_a_module_without_what_it_imports():
    import triton.language.standard as module

    names = [k.__name__ for k in load_kernels(module)]
    assert "sum" in names and names == [k.__name__ for k in load_kernels("triton.language.standard")]


def test_a_file_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        load_kernels("nowhere/at_all.py")


def test_a_file_that_fails_leaves_nothing_behind(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("raise RuntimeError('no')\n")
    before = set(sys.modules)
    with pytest.raises(RuntimeError):
        load_kernels(str(bad))
    assert set(sys.modules) == before
