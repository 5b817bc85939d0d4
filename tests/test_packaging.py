"""The package is complete, its parts import in one direction, and the two commands are what the README says."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import capwise

ROOT = Path(__file__).parent.parent
FOLDERS = {"compiler": "capwise", "passes": "capwise.passes", "ops": "capwise.ops", "models": "capwise.models"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOLS = PROJECT["tool"]["setuptools"]


def _packages() -> dict[str, Path]:
    found = {}
    for folder, package in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found[".".join([package, *inner])] = init.parent
    return found


def _sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere, `from a import b` as both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _ours(path: Path) -> set[str]:
    return {m for m in _imported(path) if m.startswith("capwise.")}


# ---------------------------------------------------------------------------------------------------------- packages
def test_the_package_list_is_complete():
    assert sorted(TOOLS["packages"]) == sorted(_packages())
    assert {"capwise.passes", "capwise.transfer", "capwise.runtime"} <= set(_packages())


def test_folders_map_to_subpackages():
    assert TOOLS["package-dir"] == {package: folder for folder, package in FOLDERS.items()}


def test_no_root_folder_is_named_capwise():
    assert not (ROOT / "capwise").exists()


def test_package_data_is_there_and_complete():
    packages = _packages()
    covered: set[Path] = set()
    for package, patterns in TOOLS["package-data"].items():
        for pattern in patterns:
            files = set(packages[package].glob(pattern))
            assert files, f"{package}: no {pattern}"
            covered |= files
    data = {f for p in packages.values() for f in p.iterdir() if f.is_file() and f.suffix not in (".py", ".pyc")}
    assert data == covered


def test_the_version_is_said_once():
    assert capwise.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("capwise")


def test_what_is_public_is_there():
    assert sorted(capwise.__all__) == capwise.__all__
    assert all(hasattr(capwise, name) for name in capwise.__all__)
    public = "Buffer Case Contract Input Live allow check compile contract testing verify".split()
    assert set(public) <= set(capwise.__all__)


@pytest.mark.parametrize("group, name", [("torch_dynamo_backends", "capwise"), ("console_scripts", "capwise")])
def test_entry_points_resolve(group, name):
    (point,) = importlib.metadata.entry_points(group=group, name=name)
    kind = "scripts" if group == "console_scripts" else "entry-points"
    declared = PROJECT["project"][kind] if kind == "scripts" else PROJECT["project"][kind][group]
    assert point.value == declared[name] and callable(point.load())


def test_dynamo_lists_the_backend():
    import torch

    assert "capwise" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("capwise") is capwise.backend.capwise_backend


# ---------------------------------------------------------------------------------------------------------- imports
@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "benchmarks"])
def test_no_file_imports_by_folder_name(folder):
    files = list(_sources(folder))
    assert files
    wrong = {f"{f}: {m}" for f in files for m in _imported(f) if m.split(".")[0] in (*FOLDERS, "tests")}
    # The public cases are many modules that share a harness.
    wrong = {w for w in wrong if not re.fullmatch(r".*/tests/cases/\w+\.py: tests\.cases\b.*", w)}
    assert not wrong


def test_the_linter_bans_folder_names():
    assert set(PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == set(FOLDERS)


def test_ops_import_nothing_of_ours_but_compat():
    allowed = re.compile(r"capwise\.(ops|compat)(\.|$)")
    assert not {f"{f.name}: {m}" for f in _sources("ops") for m in _ours(f) if not allowed.match(m)}


def test_no_pass_imports_a_pass():
    assert not {f"{f.name}: {m}" for f in _sources("passes") for m in _ours(f) if m.startswith("capwise.passes")}


def test_render_imports_only_the_report():
    allowed = re.compile(r"capwise\.(render|report)(\.|$)")
    assert not {f"{f.name}: {m}" for f in _sources("compiler/render") for m in _ours(f) if not allowed.match(m)}
    files = [*_sources("compiler/render"), ROOT / "compiler/report.py"]
    assert not [f for f in files if {m.split(".")[0] for m in _imported(f)} & {"torch", "triton"}]


# ---------------------------------------------------------------------------------------------------------- commands
def test_ci_runs_make_test():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = [line.strip() for line in script.read_text().splitlines()]
    assert "make test" in lines and "set -euo pipefail" in lines


@pytest.mark.parametrize("target, words", [("demo", ["capwise demo"]), ("test", ["ruff check", "mypy", "pytest"])])
def test_make_targets(target, words):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in words), done.stdout


def test_core_dependencies_are_the_agreed_ones():
    names = {re.split(r"[<>=]", d)[0] for d in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "networkx", "numpy", "typer", "rich", "jinja2"}
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert set(PROJECT["project"]["optional-dependencies"]) == {"cpu", "dev", "debug", "fla", "mlir", "hf"}


# ---------------------------------------------------------------------------------------------------------- test rules
SKIPS = """
import pytest
@pytest.mark.skip(reason="by mark")
def test_mark(): pass
def test_call(): pytest.skip("by call")
@pytest.mark.xfail
def test_expected(): assert False
@pytest.mark.gpu
def test_device(): assert False
def test_fine(): pass
"""


STAND_IN = """
set_num_threads = print
class cuda:
    is_available = staticmethod(lambda: False)
class _dynamo:
    reset = staticmethod(lambda: None)
"""


def test_a_skip_outside_tests_gpu_fails_and_device_tests_are_left_out(tmp_path):
    """Run in a folder of its own, with this suite's rules and a stand-in for torch on a machine without a device."""
    (tmp_path / "torch.py").write_text(STAND_IN)
    shutil.copy(ROOT / "tests/conftest.py", tmp_path / "conftest.py")
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/test_on_device.py").write_text("def test_a(): assert False\n")
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\naddopts = --continue-on-collection-errors\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "2 failed, 1 passed, 2 deselected, 2 errors" in done.stdout, done.stdout
    assert "must not be skipped" in done.stdout
