"""The explain pages: one a code, and what they claim of their programs holds when the programs run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import capwise
from capwise.case import Case
from capwise.explain import page, programs
from capwise.report import RULES
from capwise.targets import load_cases

# A compiler bug: no program of a user is wrong.
WITHOUT_PROGRAM = {"CW901"}
WITH_PROGRAMS = [code for code in RULES if programs(code)]
NOT_RAISED = "This code is not raised yet"
FOLDERS = [Path(capwise.__path__[0]), Path(__file__).parents[2] / "passes"]

Load = Callable[[str, str], Case]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A page's program, run from a file of its own as a user's would be."""

    def load(code: str, which: str) -> Case:
        file = tmp_path / f"{code.lower()}_{which}.py"
        file.write_text(programs(code)[which])
        cases, is_list = load_cases(f"{file}:case")
        assert not is_list
        return cases[0]

    return load


def raised_codes() -> set[str]:
    """Codes that some module other than the registry has as a string of its own."""
    found: set[str] = set()
    for folder in FOLDERS:
        for file in folder.rglob("*.py"):
            if file.name != "report.py":
                constants = (n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant))
                found |= {c for c in constants if isinstance(c, str) and re.fullmatch(r"CW\d{3}", c)}
    return found


@pytest.mark.parametrize("code", RULES)
def test_every_code_has_a_page_that_says_what_why_and_how(code: str) -> None:
    text = page(code)
    assert text.startswith(f"# {code}: {RULES[code].title}\n\n")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    if programs(code):
        wanted = ["Wrong program", "Why replay differs from eager", "Repaired program", "Seen in the wild"]
        assert set(programs(code)) == {"wrong", "repaired"}
    else:
        wanted = ["Why replay differs from eager", "Fix", "Seen in the wild"]
    assert headings == wanted
    assert all(len(line) <= 120 for line in text.splitlines())


def test_pages_say_which_codes_are_not_raised() -> None:
    silent = {code for code in RULES if NOT_RAISED in page(code)}
    assert silent == set(RULES) - raised_codes()


@pytest.mark.parametrize("code", sorted({"CW001", "CW002", "CW101", "CW102", "CW201", "CW202", "CW203", "CW204",
                                         "CW205", "CW206", "CW301", "CW401", "CW402"}))  # fmt: skip
def test_codes_of_the_graph_have_programs(code: str) -> None:
    assert code in WITH_PROGRAMS and code not in WITHOUT_PROGRAM


@pytest.mark.parametrize("code", WITH_PROGRAMS)
def test_the_wrong_program_raises_its_code(load: Load, code: str) -> None:
    from capwise.backend import check_case

    case = load(code, "wrong")
    report = check_case(case)
    assert code in report.codes(), str(report)
    found = [d for d in report if d.code == code]
    assert any(d.line and Path(d.file).name == f"{code.lower()}_wrong.py" for d in found), str(report)


@pytest.mark.parametrize("code", WITH_PROGRAMS)
def test_the_wrong_program_diverges_unsafe_and_is_right_with_capwise(load: Load, code: str) -> None:
    from capwise.verify import verify

    assert not verify(load(code, "wrong"), unsafe=True).ok
    right = verify(load(code, "wrong"))
    assert right.ok, str(right)


@pytest.mark.parametrize("code", WITH_PROGRAMS)
def test_the_repaired_program_is_clean_and_right(load: Load, code: str) -> None:
    from capwise.backend import check_case
    from capwise.verify import verify

    report = check_case(load(code, "repaired"))
    assert (report.count("error"), report.count("warning"), report.seams) == (0, 0, []), str(report)
    result = verify(load(code, "repaired"))
    assert result.ok, str(result)


def test_codes_are_found_in_any_case_and_unknown_ones_refused() -> None:
    assert programs("cw202") == programs("CW202")
    with pytest.raises(KeyError, match="did you mean 'CW20"):
        page("CW209")
