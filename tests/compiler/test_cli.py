"""The command line: what is printed, and the exit status. The compiler behind it is replaced by a recorder."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from capwise.case import Case
from capwise.cli import main
from capwise.options import OptionError
from capwise.report import RULES, Diagnostic, Report, SeamRow, Span

SOURCE = """
from capwise.case import Case

print("printed by the target")
one = Case(model=None, batches=[{}], name="one")
many = [one, Case(model=None, batches=[{}], name="two", key=("R",))]

def raises():
    raise RuntimeError("no weights")
"""
SEVERITIES = {
    "error": Diagnostic("CW202", "refuted", "mean", "padded rows reach live rows", span=Span("m.py", 3, 5, 9)),
    "warning": Diagnostic("CW001", "assumed", "op", "op has no contract", span=Span("m.py", 4, 5, 9)),
    "note": Diagnostic("CW201", "proved", "x", "stale tail", span=Span("m.py", 5, 5, 9), repair="fill"),
}


@dataclass(frozen=True)
class Verified:
    case: str
    ok: bool

    def to_dict(self) -> dict[str, Any]:
        return {"case": self.case, "ok": self.ok}

    def __str__(self) -> str:
        return f"verified {self.case}"


class Backend:
    """Stands for the compiler: gives what the test put in and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.diagnostics: list[Diagnostic] = []
        self.seams: list[SeamRow] = []
        self.ok = True
        self.fails: Exception | None = None

    def check_case(self, case: Case, **options: Any) -> Report:
        if self.fails:
            raise self.fails
        self.calls.append((case.name, options))
        return Report(case=case.name, pieces=1, seams=self.seams, diagnostics=self.diagnostics)

    def verify(self, case: Case, **options: Any) -> Any:
        self.calls.append((case.name, options))
        return Verified(case.name, self.ok)

    def programs_of(self, case: Case, **options: Any) -> list[Any]:
        def text(after: str | None = None) -> str:
            if after not in (None, "fill"):
                raise KeyError(f"after: expected one of fill; got {after!r}")
            return f"program of {case.name} after {after}"

        return [SimpleNamespace(text=text)]


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "t.py").write_text(SOURCE)
    backend = Backend()
    for name, members in {
        "capwise.backend": {"check_case": backend.check_case, "programs_of": backend.programs_of},
        "capwise.verify": {"verify": backend.verify},
    }.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return backend


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr, after checking that the status is 2 and that nothing was printed."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line != "printed by the target"]
    assert out == "" and len(lines) == 1
    return lines[0].removeprefix("capwise: ")


@pytest.mark.parametrize(
    ("found", "flags", "status"),
    [
        ("note", [], 0),
        ("warning", [], 0),
        ("error", [], 1),
        ("warning", ["--fail-on", "warning"], 1),
        ("warning", ["--strict"], 1),
        ("note", ["--strict"], 0),
        ("note", ["--fail-on", "note"], 1),
        ("note", ["--fail-on", "note", "--strict"], 1),
    ],
)
def test_status_of_check_follows_severity(backend: Backend, found: str, flags: list[str], status: int) -> None:
    backend.diagnostics = [SEVERITIES[found]]
    assert main(["check", "t.py:one", *flags]) == status


@pytest.mark.parametrize(("limit", "status"), [("0", 1), ("1", 0)])
def test_max_seams_fails_above_the_limit(
    backend: Backend, capsys: pytest.CaptureFixture[str], limit: str, status: int
) -> None:
    backend.seams = [SeamRow("mine::op", "CW001", "m.py", 4)]
    assert main(["check", "t.py:one", "--max-seams", limit]) == status
    assert ("one: 1 seams, at most 0 allowed" in capsys.readouterr().err) == bool(status)


def test_check_prints_only_the_report(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.diagnostics = [SEVERITIES["error"], SEVERITIES["note"]]
    main(["check", "t.py:one"])
    out, err = capsys.readouterr()
    assert err == "printed by the target\n"
    assert out == (
        "error[CW202]: padded rows reach live rows\n --> m.py:3:5\n  = verdict: refuted\n\n"
        "note[CW201]: stale tail\n --> m.py:5:5\n  = verdict: proved\n  = repair: fill\n\n"
        "1 error, 0 warnings, 1 note; 1 piece, 0 seams, 0 fills, 0 copies\n"
    )


@pytest.mark.parametrize("command", ["check", "verify"])
def test_one_case_is_an_object_and_a_list_is_a_list(
    backend: Backend, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "t.py:one", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["case"] == "one"
    assert main([command, "t.py:many", "--format", "json"]) == 0
    assert [shape["case"] for shape in json.loads(capsys.readouterr().out)] == ["one", "two"]


def test_any_case_with_an_error_fails_the_list(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = iter([Report(diagnostics=[SEVERITIES["error"]]), Report()])
    monkeypatch.setattr(sys.modules["capwise.backend"], "check_case", lambda case, **options: next(reports))
    assert main(["check", "t.py:many"]) == 1


def test_options_come_from_flags_case_and_project(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.capwise]\nkey = "T,R"\nrepair = "split"\n')
    main(["check", "t.py:many"])
    main(["check", "t.py:one", "--key", "T,R", "--key", "T", "--repair", "none", "--dump", "d"])
    main(["verify", "t.py:one"])
    assert backend.calls[:3] == [
        ("one", {"key": [("T", "R")], "repair": "split"}),
        ("two", {"repair": "split"}),
        ("one", {"key": [("T", "R"), ("T",)], "repair": "none", "dump": "d"}),
    ]
    assert backend.calls[3][1]["repair"] == "split"


def test_out_writes_the_file_and_prints_nothing(
    backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "t.py:one", "--format", "sarif", "--out", "r.sarif"]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "r.sarif").read_text())["version"] == "2.1.0"
    assert "expected a writable file; got 'no/r.txt'" in refused(capsys, "check", "t.py:one", "--out", "no/r.txt")


def test_github_format_fills_the_step_summary(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    backend.diagnostics = [SEVERITIES["error"]]
    main(["check", "t.py:one", "--format", "concise"])
    assert not (tmp_path / "summary.md").exists()
    main(["check", "t.py:one", "--format", "github"])
    assert "| error | CW202 | m.py:3 |" in (tmp_path / "summary.md").read_text()


def test_colours_only_on_a_terminal(
    backend: Backend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.diagnostics = [SEVERITIES["error"]]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["check", "t.py:one"])
    assert "\x1b[" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["check", "t.py:one"])
    assert "\x1b[" in capsys.readouterr().out
    main(["check", "t.py:one", "--format", "json"])
    assert "\x1b[" not in capsys.readouterr().out


def test_verify_passes_its_flags_and_fails_on_a_mismatch(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "t.py:one"]) == 0
    backend.ok = False
    flags = ["--unsafe", "--device", "cuda", "--histories", "3", "--seed", "7", "--no-poison", "--mlir"]
    assert main(["verify", "t.py:one", *flags]) == 1
    assert capsys.readouterr().out == "verified one\nverified one\n"
    assert backend.calls == [
        ("one", {"unsafe": False, "device": "cpu", "histories": 1, "seed": 0, "poison": True, "mlir": False}),
        ("one", {"unsafe": True, "device": "cuda", "histories": 3, "seed": 7, "poison": False, "mlir": True}),
    ]


def test_graph_prints_programs_after_a_pass(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "t.py:one", "--after", "fill"]) == 0
    assert capsys.readouterr().out == "program of one after fill\n"
    assert main(["graph", "t.py:many"]) == 0
    assert capsys.readouterr().out == (
        "# case one\n\nprogram of one after None\n\n# case two\n\nprogram of two after None\n"
    )
    assert refused(capsys, "graph", "t.py:one", "--after", "fil") == (
        "option '--after': expected one of fill; got 'fil'"
    )


def test_graph_as_dot_and_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The real compiler: the forms need real programs."""
    target = f"{Path(__file__).parent / 'graph_target.py'}:cases"
    assert main(["graph", target, "--emit", "dot"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("digraph capwise {") and drawn.count("subgraph") == 2 and "seam seam0" in drawn
    assert main(["graph", target, "--emit", "html"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>") and "opaque op" in page and "aten.add.Tensor" in page
    assert refused(capsys, "graph", target, "--emit", "dot", "--after", "fill") == (
        "option '--after': expected with --emit text only; got --emit dot"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["chek"], "command 'chek': expected one of check, verify, graph, kernels, lower, probe, explain, "
                   "rules, demo, bench, env; did you mean 'check'?"),
        (["bench", "dispach"], "NAME: expected one of dispatch; got 'dispach'; did you mean 'dispatch'?"),
        (["check", "t.py:one", "--fromat", "json"], "check: option '--fromat': expected one of --format, "
         "--out, --fail-on, --max-seams, --strict, --key, --repair, --dump, --help; did you mean '--format'?"),
        (["check", "t.py:one", "--format", "jsn"], "option '--format': expected one of full, concise, json, github, "
         "sarif, html; got 'jsn'; did you mean 'json'?"),
        (["verify", "t.py:one", "--format", "sarif"], "option '--format': expected one of full, json; got 'sarif'"),
        (["verify", "t.py:one", "--device", "cud"], "option '--device': expected one of cpu, cuda, hip-emulated; "
         "got 'cud'; did you mean 'cuda'?"),
        (["verify", "t.py:one", "--histories", "0"], "verify: invalid value for '--histories': expected an integer of "
         "at least 1; got '0'"),
        (["check", "t.py:one", "--fail-on", "notes"], "option '--fail-on': expected one of warning, note; "
         "got 'notes'; did you mean 'note'?"),
        (["check", "t.py:one", "--repair", "splt"], "option 'repair': expected one of auto, split, none; got 'splt'; "
         "did you mean 'split'?"),
        (["check", "t.py:one", "--key", "T,3"], "option 'key': expected symbol names such as 'T'; got ('T', '3')"),
        (["check"], "check: missing argument 'TARGET': expected package.module:callable or path/file.py:callable"),
        (["check", "t.py:on"], "target 't.py:on': expected a name in"),
        (["check", "t.py:raises"], "target 't.py:raises': RuntimeError: no weights (t.py:9)"),
        (["graph", "t.py:one", "--emit", "txt"], "option '--emit': expected one of text, dot, mlir, html; got 'txt'; "
         "did you mean 'text'?"),
        (["explain", "CW20"], "code 'CW20': expected one of CW001,"),
        (["--verson"], "option '--verson': expected one of --version, --help; did you mean '--version'?"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_one_line_and_status_2(
    backend: Backend, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert refused(capsys, *arguments).startswith(line)


def test_a_bad_project_table_is_one_line(backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.capwise]\nreapir = 'auto'\n")
    assert "did you mean 'repair'?" in refused(capsys, "check", "t.py:one")


@pytest.mark.parametrize("error", [OptionError("option 'x':\nbad"), ValueError("bad")])
def test_whatever_is_raised_fits_one_line(
    backend: Backend, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    backend.fails = error
    assert "bad" in refused(capsys, "check", "t.py:one")


def test_an_error_of_the_compiler_is_one_line(
    backend: Backend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.fails = ValueError("two\nlines")
    assert refused(capsys, "check", "t.py:one").startswith("checking one: ValueError: two lines (")
    monkeypatch.setenv("CAPWISE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="two"):
        main(["check", "t.py:one"])


def test_kernels_prints_rows_and_fails_on_a_refuted_hazard(
    backend: Backend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "kernel": "k", "arg": "x", "access": ["load"], "axes": [{"by": "pid0", "stride": "unit"}], "extent": "n",
        "verdict": "proved", "file": "k.py", "line": 3,
        "hazards": [{"code": "CW401", "verdict": "assumed", "needs": "unit stride"}],
    }  # fmt: skip
    access = ModuleType("capwise.kernel_access")
    vars(access).update(load_kernels=lambda module: module.KERNELS, summarize=lambda kernel: (kernel, row))
    vars(access).update(rows=lambda summary: [summary[1]])
    monkeypatch.setitem(sys.modules, "capwise.kernel_access", access)
    Path("k.py").write_text("KERNELS = ['k']")
    Path("none.py").write_text("KERNELS = []")
    assert main(["kernels", "none.py"]) == 0
    assert capsys.readouterr().out == "no @triton.jit kernel in none.py\n"
    assert main(["kernels", "k.py"]) == 0
    assert capsys.readouterr().out == (
        "k.py:3: k(x): load [pid0 unit] extent n: proved\n  CW401 assumed: needs unit stride\n"
    )
    row["hazards"][0]["verdict"] = "refuted"  # type: ignore[index]
    assert main(["kernels", "k.py", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == [row]
    assert "did you mean 'k.py'?" in refused(capsys, "kernels", "kk.py")


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_demo_prints_and_fails_where_capwise_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ok: bool, status: int
) -> None:
    class Result:
        def __init__(self) -> None:
            self.ok = ok

        def to_dict(self) -> dict[str, Any]:
            return {"s1": {}, "s2": {}}

        def __rich__(self) -> str:
            return "a table"

    module = ModuleType("capwise.demo")
    vars(module)["run"] = Result
    monkeypatch.setitem(sys.modules, "capwise.demo", module)
    assert main(["demo"]) == status
    assert capsys.readouterr().out == "a table\n"
    assert main(["demo", "--format", "json"]) == status
    assert json.loads(capsys.readouterr().out) == {"s1": {}, "s2": {}}


def test_rules_lists_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in rows] == list(RULES)
    assert rows[0] == {"code": "CW001", "title": "op has no contract", "repairs": list(RULES["CW001"].repairs)}
    assert main(["rules"]) == 0
    assert capsys.readouterr().out.startswith("CW001  op has no contract\n       repairs: seam, declare")


def test_bench_dispatch_says_where_the_time_of_a_step_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dispatch", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["pieces"] for row in rows] == [1, 50]
    assert all(row["step"] > row["loop"] > 0 and row["dispatch"] < row["step"] for row in rows), rows
    assert main(["bench", "dispatch"]) == 0
    assert capsys.readouterr().out.startswith("host time of a step, us\n    pieces      step")


def test_env_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    assert "\ntriton_distribution  " in capsys.readouterr().out
    assert main(["env", "--format", "json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"torch", "triton", "numpy", "devices", "driver", "checks"}


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert bare == capsys.readouterr().out and "explain" in bare
    assert "--install-completion" not in bare
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"capwise {importlib.metadata.version('capwise')}\n"


def test_python_m_capwise_is_the_same_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "capwise", *arguments],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "80"}, check=False,
        )  # fmt: skip

    page = run("explain", "cw201")
    assert (page.returncode, page.stderr) == (0, "")
    assert page.stdout.startswith("# CW201: ")
    wrong = run("explain", "CW777")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.count("\n") == 1 and wrong.stderr.startswith("capwise: code 'CW777': expected one of")
