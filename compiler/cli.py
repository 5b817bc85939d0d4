"""The command line. Exit status: 0 clean, 1 findings, 2 the tool could not run (one line on stderr says why).

Heavy parts are imported inside the commands, so that `explain`, `rules` and `env` need only what they show.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from capwise.case import Case
from capwise.dumping import dynamo_dumped
from capwise.options import OptionError, Options, nearest
from capwise.render import FORMATS, render
from capwise.render.colour import colour
from capwise.render.github import step_summary
from capwise.render.source import short_path
from capwise.report import RULES, Report
from capwise.targets import (
    TargetError,
    exception_line,
    load_cases,
    load_module,
    load_samples,
    options_for,
    project_defaults,
    split_keys,
)
from capwise.usage import usage

P = ParamSpec("P")
# typer brings its own click or imports the real one, by version; this base class is the same place in both.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]
_TEXT_JSON = ("full", "json")
_EMULATED = ("gfx942", "gfx1201")
_EMITTED = ("text", "dot", "mlir", "html")

app = typer.Typer(
    name="capwise",
    help="Makes graph-capture correctness a compiler pass: finds, repairs and proves what replay could get wrong.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Target = Annotated[str, typer.Argument(metavar="TARGET", help="package.module:callable or path/file.py:callable")]
Format = Annotated[str, typer.Option("--format", metavar="full|json", help="How to print the result.")]


class CliError(Exception):
    """The tool could not run; the message says what was wrong, what was expected, and the nearest valid choice."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (`sys.argv` without arguments) and returns the exit status."""
    try:
        status = typer.main.get_command(app).main(args=arguments, prog_name="capwise", standalone_mode=False)
    except _ClickError as error:
        return _refuse(usage(error))
    except typer.Abort:
        return _refuse("interrupted")
    return status if isinstance(status, int) else 0


def _refuse(message: str) -> int:
    print("capwise: " + " ".join(message.split()), file=sys.stderr)
    return 2


def _command(run: Callable[P, int]) -> Callable[P, None]:
    """Turns the status that a command returns into the exit status, and what stopped it into one line and status 2."""

    @functools.wraps(run)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            status = run(*args, **kwargs)
        except (CliError, TargetError, OptionError) as error:
            status = _refuse(str(error))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing to say
            status = 0
        raise typer.Exit(status)

    return wrapped


@contextlib.contextmanager
def _step(doing: str, what: str) -> Iterator[None]:
    """One unit of work: shown on a terminal's stderr; its prints go to stderr; its exceptions become one line.

    With CAPWISE_TRACEBACK set the exception itself is raised: for whoever debugs capwise or a target.
    """
    from rich.console import Console

    console = Console(stderr=True)
    shown = console.status(f"{doing} {what}") if console.is_terminal else contextlib.nullcontext()
    try:
        with shown, contextlib.redirect_stdout(sys.stderr):
            yield
    except (CliError, TargetError, OptionError):
        raise
    except (Exception, SystemExit) as error:
        if os.environ.get("CAPWISE_TRACEBACK"):
            raise
        raise CliError(f"{doing} {what}: {exception_line(error)}") from error


def _at_least(lowest: int) -> Callable[[Any], int]:
    """A parser of integers that says what it got."""

    def parse(value: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            number = lowest - 1
        if number < lowest:
            raise typer.BadParameter(f"expected an integer of at least {lowest}; got {str(value)!r}")
        return number

    return parse


def _choice(option: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise CliError(
            f"option {option!r}: expected one of {', '.join(choices)}; got {value!r}{nearest(value, choices)}"
        )
    return value


def _emit(text: str, out: Path | None = None) -> None:
    """Writes to the file, or prints; colours only the full format, and only on a terminal."""
    if out is None:
        print(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CliError(f"option '--out': expected a writable file; got {str(out)!r} ({error.strerror})") from error


def _emit_reports(reports: list[Report], is_list: bool, format: str, out: Path | None) -> None:
    text = render(reports if is_list else reports[0], format)
    if format == "full" and out is None and sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(colour(text), soft_wrap=True)
        return
    _emit(text, out)
    if format == "github" and (page := os.environ.get("GITHUB_STEP_SUMMARY")):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(step_summary(reports) + "\n")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2)


def _version(show: bool) -> None:
    if show:
        print(f"capwise {importlib.metadata.version('capwise')}")
        raise typer.Exit(0)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _load(target: str) -> tuple[list[Case], bool]:
    with _step("loading", target):
        return load_cases(target)


@app.command()
@_command
def check(
    target: Target,
    format: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="How to print the report.")] = "full",
    out: Annotated[Path | None, typer.Option(metavar="F", help="Write there, not to stdout.")] = None,
    fail_on: Annotated[str | None, typer.Option(metavar="warning|note", help="Findings from here on fail too.")] = None,
    max_seams: Annotated[int | None, typer.Option(metavar="N", parser=_at_least(0), help="More seams fail.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="The same as --fail-on warning.")] = False,
    key: Annotated[list[str] | None, typer.Option(metavar="T,R", help="Graph key; may be repeated.")] = None,
    repair: Annotated[str | None, typer.Option(metavar="auto|split|none", help="How hazards are repaired.")] = None,
    dump: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the graph after each pass there.")] = None,
) -> int:
    """Finds what replay could get wrong in a Case, and says what was done about it."""
    _choice("--format", format, FORMATS)
    fail_on = _choice("--fail-on", fail_on, ("warning", "note")) if fail_on else None
    given: dict[str, Any] = {"key": split_keys(key) if key else None, "repair": repair, "dump": dump and str(dump)}
    Options.make({name: value for name, value in given.items() if value is not None})
    defaults = project_defaults(Path("pyproject.toml"))
    cases, is_list = _load(target)
    reports = []
    with dynamo_dumped(dump):
        for case in cases:
            with _step("checking", case.name):
                from capwise.backend import check_case

                reports.append(check_case(case, **options_for(case, defaults, given)))
    _emit_reports(reports, is_list, format, out)
    return int(any([_fails(report, fail_on or ("warning" if strict else None), max_seams) for report in reports]))


def _fails(report: Report, fail_on: str | None, max_seams: int | None) -> bool:
    if max_seams is not None and len(report.seams) > max_seams:
        print(f"capwise: {report.case}: {len(report.seams)} seams, at most {max_seams} allowed", file=sys.stderr)
        return True
    counted = {None: ("error",), "warning": ("error", "warning"), "note": ("error", "warning", "note")}[fail_on]
    return any(d.severity in counted for d in report)


@app.command()
@_command
def verify(
    target: Target,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Repair nothing: shows the damage.")] = False,
    device: Annotated[str, typer.Option(metavar="cpu|cuda|hip-emulated", help="cuda is also ROCm's.")] = "cpu",
    gfx: Annotated[str | None, typer.Option(metavar="|".join(_EMULATED), help="Which one is emulated.")] = None,
    histories: Annotated[int, typer.Option(metavar="N", parser=_at_least(1), help="How many orders to try.")] = 1,
    seed: Annotated[int, typer.Option(metavar="S", parser=_at_least(0), help="Of histories and poison.")] = 0,
    poison: Annotated[bool, typer.Option(help="Put harmful values into every tail.")] = True,
    adversary: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")] = None,
    mlir: Annotated[bool, typer.Option("--mlir", help="Ask torch-mlir about captured ATen nodes too.")] = False,
    format: Format = "full",
) -> int:
    """Runs a Case's history eagerly and replayed, and compares outputs and state after every step."""
    _choice("--format", format, _TEXT_JSON)
    _choice("--device", device, ("cpu", "cuda", "hip-emulated"))
    device = f"{device}:{_choice('--gfx', gfx, _EMULATED)}" if gfx and device == "hip-emulated" else device
    defaults = project_defaults(Path("pyproject.toml"))
    cases, is_list = _load(target)
    results = []
    for case in cases:
        with _step("verifying", case.name):
            from capwise.verify import verify as run

            given: dict[str, Any] = {"unsafe": unsafe, "device": device, "histories": histories, "seed": seed}
            given |= {"adversaries": adversary} if adversary else {}
            results.append(run(case, poison=poison, mlir=mlir, **given, **options_for(case, defaults, {})))
    if format == "json":
        shapes = [result.to_dict() for result in results]
        _emit(_json(shapes if is_list else shapes[0]))
    else:
        _emit("\n\n".join(str(result) for result in results))
    return int(not all(result.ok for result in results))


@app.command()
@_command
def graph(
    target: Target,
    after: Annotated[str | None, typer.Option(metavar="PASS", help="As it was after this pass.")] = None,
    emit: Annotated[str, typer.Option(metavar="|".join(_EMITTED), help="In which form.")] = "text",
) -> int:
    """Prints the programs made for a Case: pieces, seams, buffers and guards."""
    _choice("--emit", emit, _EMITTED)
    if after is not None and emit != "text":
        raise CliError(f"option '--after': expected with --emit text only; got --emit {emit}")
    defaults = project_defaults(Path("pyproject.toml"))
    cases, is_list = _load(target)
    made: list[Any] = []
    for case in cases:
        with _step("compiling", case.name):
            made.append(_made(case, emit, options_for(case, defaults, {})))
    if emit == "html":
        _emit(render(made, "html"))
    elif emit == "dot":
        from capwise.render.dot import dot

        _emit(dot([program for programs in made for program in programs]))
    else:
        mark = "//" if emit == "mlir" else "#"
        texts: list[str] = []
        for case, one in zip(cases, made):
            shown = [one] if emit == "mlir" else [_program_text(program, after) for program in one]
            texts += [f"{mark} case {case.name}", *shown] if is_list else shown
        _emit("\n\n".join(texts))
    return 0


def _made(case: Case, emit: str, options: dict[str, Any]) -> Any:
    """What one form of output is made from: a report, a text, or programs."""
    if emit == "html":
        from capwise.backend import check_case

        return check_case(case, **options)
    if emit == "mlir":
        from capwise.verify.opinion import linalg_text

        return linalg_text(case, **options)
    from capwise.backend import programs_of

    return programs_of(case, **options)


def _program_text(program: Any, after: str | None) -> str:
    try:
        return str(program.text(after))
    except KeyError as error:
        raise CliError(f"option '--after': {str(error.args[0]).removeprefix('after: ')}") from error


@app.command()
@_command
def kernels(
    source: Annotated[str, typer.Argument(metavar="MODULE_OR_FILE", help="Where the @triton.jit kernels are.")],
    case: Annotated[str | None, typer.Option(metavar="TARGET", help="A Case whose launches give signatures.")] = None,
    format: Format = "full",
) -> int:
    """Prints what each @triton.jit kernel reads and writes, and its hazards.

    Types are those of the launches of --case, else those of annotations, else guessed, which is said."""
    _choice("--format", format, _TEXT_JSON)
    recorded = None
    if case is not None:
        with _step("recording", case):
            from capwise.signatures import record_signatures

            recorded = record_signatures(_load(case)[0])
    with _step("reading", source):
        from capwise.kernel_access import load_kernels, rows, summarize

        read = []
        for kernel in load_kernels(load_module(source)):
            launched = recorded.of(kernel) if recorded is not None else []
            read += [summarize(kernel, one.types, one.fixed) for one in launched] or [summarize(kernel)]
    found = [(row, getattr(summary, "guessed", False)) for summary in read for row in rows(summary)]
    text = "\n".join(_kernel_line(*one) for one in found) or f"no @triton.jit kernel in {source}"
    _emit(_json([row for row, _ in found]) if format == "json" else text)
    return int(any(hazard["verdict"] == "refuted" for row, _ in found for hazard in row["hazards"]))


def _kernel_line(row: dict[str, Any], guessed: bool) -> str:
    axes = " ".join(f"[{axis['by']} {axis['stride']}]" for axis in row["axes"]) or "[]"
    head = f"{row['kernel']}({row['arg']}): {'+'.join(row['access'])} {axes} extent {row['extent']}: {row['verdict']}"
    head += " (types guessed)" if guessed else ""
    hazards = [f"  {h['code']} {h['verdict']}: needs {h['needs']}" for h in row["hazards"]]
    return "\n".join([f"{short_path(row['file'])}:{row['line']}: {head}", *hazards])


@app.command()
@_command
def lower(
    case: Annotated[str | None, typer.Argument(metavar="TARGET", help="Without it: capwise.ops.")] = None,
    target: Annotated[list[str] | None, typer.Option(metavar="cuda:90", help="A machine; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write binaries and a manifest there.")] = None,
    format: Format = "full",
) -> int:
    """Compiles Triton kernels for machines that are not here: what they cost there, and where targets differ."""
    from capwise.lower.targets import TARGETS

    _choice("--format", format, _TEXT_JSON)
    known = {t.name: t for t in TARGETS}
    targets = [known[_choice("--target", name, list(known))] for name in target or known]
    cases = _load(case)[0] if case is not None else []
    defaults = project_defaults(Path("pyproject.toml"))
    with _step("compiling", case or "the kernels of capwise.ops"):
        from capwise.lower.command import lower_cases, lower_ops, table

        given = [(c, options_for(c, defaults, {})) for c in cases]
        rows = lower_cases(given, targets, out) if given else lower_ops(targets, out)
    _emit(_json([row.to_dict() for row in rows]) if format == "json" else table(rows))
    return int(not all(row.ok for row in rows))


@app.command()
@_command
def probe(
    op: Annotated[str, typer.Argument(metavar="OP", help="A registered op: namespace::name.")],
    samples: Annotated[str, typer.Option(metavar="module:callable", help="Gives (args, kwargs) of some calls.")],
) -> int:
    """Drafts a contract for an op: the strongest claims that its sample calls do not refute."""
    with _step("probing", op):
        from capwise.claims.probe import probe as draft

        text = str(draft(op, load_samples(samples)))
    _emit(text)
    return 0


@app.command()
@_command
def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="For instance CW201.")]) -> int:
    """Prints the page of a code: a wrong program, why replay differs from eager, the repaired program."""
    from capwise.explain import page

    try:
        text = page(code)
    except KeyError as error:
        raise CliError(error.args[0]) from error
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
        return 0
    _emit(text.rstrip("\n"))
    return 0


@app.command()
@_command
def rules(format: Format = "full") -> int:
    """Lists the codes: what each means, and its repairs, cheapest first."""
    _choice("--format", format, _TEXT_JSON)
    if format == "json":
        _emit(_json([{"code": r.code, "title": r.title, "repairs": list(r.repairs)} for r in RULES.values()]))
        return 0
    _emit("\n".join(f"{r.code}  {r.title}\n       repairs: {', '.join(r.repairs)}" for r in RULES.values()))
    return 0


@app.command()
@_command
def demo(format: Format = "full") -> int:
    """Runs the two seed faults, unsafe and with capwise, and fails where capwise is wrong."""
    _choice("--format", format, _TEXT_JSON)
    with _step("running", "the demo"):
        from capwise.demo import run

        result = run()
    if format == "json":
        _emit(_json(result.to_dict()))
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 120).print(result)
    return int(not result.ok)


@app.command()
@_command
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="dispatch: host time of a step over its bare calls")],
    format: Format = "full",
) -> int:
    """Measures what capwise itself costs on this machine."""
    from capwise.bench import as_text, dispatch

    benches = {"dispatch": dispatch}
    _choice("--format", format, _TEXT_JSON)
    if name not in benches:
        raise CliError(f"NAME: expected one of {', '.join(benches)}; got {name!r}{nearest(name, list(benches))}")
    with _step("measuring", name):
        rows = benches[name]()
    _emit(_json([row.to_dict() for row in rows]) if format == "json" else as_text(rows))
    return 0


@app.command()
@_command
def env(format: Format = "full") -> int:
    """Prints versions, devices, and which checks are possible here."""
    from capwise.env import as_text, environment

    _choice("--format", format, _TEXT_JSON)
    found = environment()
    _emit(_json(found) if format == "json" else as_text(found))
    return 0
