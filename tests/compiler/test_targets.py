"""TARGET and [tool.capwise]: what is found, and what one line says when nothing is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capwise.case import Case
from capwise.options import OptionError
from capwise.targets import TargetError, exception_line, load_cases, options_for, project_defaults

SOURCE = """
from capwise.case import Case
import helper_of_target

one = Case(model=None, batches=[{}], name=helper_of_target.NAME)
many = [one, Case(model=None, batches=[{}], name="second")]
none = []
mixed = [one, 3]
number = 7

def case():
    return one

def raises():
    return 1 / 0

def leaves():
    raise SystemExit("bye")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets_pkg").mkdir()
    for name in ("targets_pkg/served.py", "local_case.py"):
        (tmp_path / name).write_text(SOURCE)
    for name in ("targets_pkg/helper_of_target.py", "helper_of_target.py"):
        (tmp_path / name).write_text("NAME = 'first'")
    (tmp_path / "targets_pkg/broken.py").write_text("import torch\nx = = 1\n")
    (tmp_path / "targets_pkg/needy.py").write_text("\nimport no_such_package_at_all\n")
    for name in [n for n in sys.modules if n.startswith(("targets_pkg", "local_case", "helper_of_target"))]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize("module", ["targets_pkg/served.py", "./local_case.py", "targets_pkg.served", "local_case"])
def test_files_and_modules_give_cases(module: str) -> None:
    assert [case.name for case in load_cases(f"{module}:case")[0]] == ["first"]
    assert load_cases(f"{module}:one")[1] is False
    cases, is_list = load_cases(f"{module}:many")
    assert (is_list, [case.name for case in cases]) == (True, ["first", "second"])


def test_loading_leaves_the_path_alone() -> None:
    before = list(sys.path)
    load_cases("local_case:case")
    with pytest.raises(TargetError):
        load_cases("targets_pkg/served.py:raises")
    assert sys.path == before


def test_a_changed_file_is_loaded_again(folder: Path) -> None:
    load_cases("local_case.py:case")
    (folder / "local_case.py").write_text(SOURCE.replace("helper_of_target.NAME", "'changed'"))
    assert load_cases("local_case.py:case")[0][0].name == "changed"


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("served", "'served': expected package.module:callable or path/file.py:callable; for instance served:case"),
        (":case", "':case': expected package.module:callable or path/file.py:callable"),
        (
            "targets_pkg/servd.py:case",
            "file 'targets_pkg/servd.py': expected a Python file; got none there; "
            "did you mean 'targets_pkg/served.py'?",
        ),
        (
            "targets_pkg.servd:case",
            "module 'targets_pkg.servd': expected an importable module; got no 'servd' in 'targets_pkg'; "
            "did you mean 'served'?",
        ),
        (
            "local_cas:case",
            "module 'local_cas': expected an importable module; got no 'local_cas' here or on sys.path; "
            "did you mean 'local_case'?",
        ),
        (
            "local_case:csae",
            "'local_case:csae': expected a name in 'local_case'; got no 'csae'; did you mean 'case'?",
        ),
        ("local_case:number", "'local_case:number': expected a capwise.Case or a list of them; got int"),
        ("local_case:mixed", "'local_case:mixed': expected a capwise.Case or a list of them; got list of int"),
        ("local_case:none", "'local_case:none': expected at least one capwise.Case; got an empty list"),
        ("local_case:raises", "'local_case:raises': ZeroDivisionError: division by zero (local_case.py:15)"),
        ("local_case:leaves", "'local_case:leaves': SystemExit: bye (local_case.py:18)"),
        (
            "targets_pkg.needy:case",
            "module 'targets_pkg.needy': ModuleNotFoundError: No module named 'no_such_package_at_all' "
            "(targets_pkg/needy.py:2)",
        ),
    ],
)
def test_a_bad_target_is_one_line_with_the_nearest_choice(target: str, line: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_cases(target)
    assert str(caught.value) == f"target {line}"


def test_a_syntax_error_is_placed(folder: Path) -> None:
    with pytest.raises(TargetError, match=r"SyntaxError: invalid syntax \(.*targets_pkg/broken\.py:2\)$"):
        load_cases("targets_pkg/broken.py:case")
    assert not [name for name in sys.modules if name.startswith("capwise_target_broken")]


def test_an_exception_in_a_library_is_placed_in_the_users_code(folder: Path) -> None:
    (folder / "calls.py").write_text("import json\n\ndef case():\n    return json.loads('{')\n")
    with pytest.raises(TargetError, match=r"JSONDecodeError: .* \(calls\.py:4\)$"):
        load_cases("calls.py:case")


def test_exception_text_is_folded_into_one_line() -> None:
    assert exception_line(ValueError("a\n  b")) == "ValueError: a b"


def write_table(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder / "pyproject.toml"


def test_project_table_gives_options(folder: Path) -> None:
    file = write_table(folder, '[tool.capwise]\nkey = ["T,R", "T"]\ncapture-sizes = [8]\nrepair = "split"\n')
    assert project_defaults(file) == {"key": [("T", "R"), ("T",)], "capture_sizes": [8], "repair": "split"}


@pytest.mark.parametrize("value", ['"T,R"', '["T, R"]', '[["T", "R"]]'])
def test_project_keys_are_spelt_as_on_the_command_line(folder: Path, value: str) -> None:
    assert project_defaults(write_table(folder, f"[tool.capwise]\nkey = {value}\n")) == {"key": [("T", "R")]}


def test_no_table_and_no_file_give_nothing(folder: Path) -> None:
    assert project_defaults(folder / "absent.toml") == {}
    assert project_defaults(write_table(folder, "[tool.ruff]\n")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.capwise]\nrepare = 1\n", r"\[tool.capwise\]: option 'repare': .* did you mean 'repair'\?"),
        ("[tool.capwise]\nrepair = 'splti'\n", r"got 'splti'; did you mean 'split'\?"),
        ("[tool.capwise\n", "pyproject.toml: "),
    ],
)
def test_a_bad_table_is_refused(folder: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        project_defaults(write_table(folder, text))


def test_command_line_beats_case_beats_project() -> None:
    defaults = {"key": [("T", "R")], "capture": "off", "repair": "split", "capacity": {"R": 4}}
    plain = Case(model=None, batches=[{}])
    said = Case(model=None, batches=[{}], key=("R",), capacity={"R": 8}, options={"capture": "tape"})
    assert options_for(plain, defaults, {"repair": None}) == defaults
    assert options_for(said, defaults, {"repair": "none"}) == {"repair": "none"}
    assert options_for(said, defaults, {"key": [("T",)]}) == {"repair": "split", "key": [("T",)]}
