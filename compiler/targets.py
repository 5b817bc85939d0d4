"""What the command line runs on: the cases that TARGET names, and the options of each.

TARGET is `package.module:callable` or `path/file.py:callable`, giving a Case or a list of them. Options come from
[tool.capwise], the case and the command line.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from capwise.case import Case
from capwise.options import OptionError, Options, nearest

FORMS = "package.module:callable or path/file.py:callable"


class TargetError(Exception):
    """A target that names nothing usable, or that raised; the message is one line."""


def load_cases(target: str) -> tuple[list[Case], bool]:
    """The target's cases, and whether it gave a list (JSON output is a list then).

    The name after the colon may be a function without arguments, a Case, or a list of Cases. The working directory, and
    the file's folder, are importable while the target is loaded and called.

    Raises:
        TargetError: no such file, module or name; not a Case; or the target raised.
    """
    module, name = split(target)
    with importable(module):
        found = _attribute(target, load_module(module), name)
        if callable(found) and not isinstance(found, Case):
            found = _run(target, found)
    is_list = isinstance(found, (list, tuple))
    cases = list(found) if is_list else [found]
    for case in cases:
        if not isinstance(case, Case):
            raise TargetError(f"target {target!r}: expected a capwise.Case or a list of them; got {_kind(found)}")
    if not cases:
        raise TargetError(f"target {target!r}: expected at least one capwise.Case; got an empty list")
    return cases, is_list


def load_samples(target: str) -> list[Any]:
    """The target's sample calls: a list of (args, kwargs), or a function without arguments that gives one.

    Raises:
        TargetError: no such file, module or name; no such list; or the target raised.
    """
    module, name = split(target)
    with importable(module):
        found = _attribute(target, load_module(module), name)
        if callable(found):
            found = _run(target, found)
    pairs = isinstance(found, (list, tuple)) and all(isinstance(s, (list, tuple)) and len(s) == 2 for s in found)
    if not pairs or not all(isinstance(a, (list, tuple)) and isinstance(k, dict) for a, k in found):
        raise TargetError(f"target {target!r}: expected a list of (args, kwargs); got {_kind(found)}")
    return [(tuple(args), kwargs) for args, kwargs in found]


def split(target: str) -> tuple[str, str]:
    """`module:name` in two.

    Raises:
        TargetError: one of the two is missing.
    """
    module, colon, name = target.rpartition(":")
    if not colon or not module or not name:
        example = "" if target.startswith(":") else f"; for instance {target.rstrip(':')}:case"
        raise TargetError(f"target {target!r}: expected {FORMS}{example}")
    return module, name


def load_module(module: str) -> ModuleType:
    """Imports a dotted module, or runs a file as one under a name of its own (in `sys.modules`, where Dynamo looks).

    Raises:
        TargetError: there is no such file or module, or importing it raised.
    """
    with importable(module):
        return _load_file(module) if _is_file(module) else _load_dotted(module)


def exception_line(error: BaseException) -> str:
    """`ValueError: text (file.py:12)`: the exception in one line, with the deepest place in the user's own code."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        text, where = error.msg, f"{error.filename}:{error.lineno}"
    else:
        where = _place(error)
    return f"{type(error).__name__}{': ' + text if text else ''}{f' ({where})' if where else ''}"


def _is_file(module: str) -> bool:
    return module.endswith(".py") or "/" in module


def _load_file(file: str) -> ModuleType:
    path = Path(file).resolve()
    if not path.is_file():
        siblings = [p.as_posix() for p in Path(file).parent.glob("*.py")]
        raise TargetError(f"target file {file!r}: expected a Python file; got none there{nearest(file, siblings)}")
    name = f"capwise_target_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"target file {file!r}: expected a Python file (*.py)")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TargetError(f"target file {file!r}: {exception_line(error)}") from error
    return loaded


def _load_dotted(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (module == missing or module.startswith(missing + ".")):
            raise TargetError(_no_module(module, missing)) from error
        raise TargetError(f"target module {module!r}: {exception_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"target module {module!r}: {exception_line(error)}") from error


def _no_module(module: str, missing: str) -> str:
    parent, _, leaf = missing.rpartition(".")
    path = list(sys.modules[parent].__path__) if parent in sys.modules else [p or "." for p in sys.path]
    close = nearest(leaf, [found.name for found in pkgutil.iter_modules(path)])
    where = f"in {parent!r}" if parent else "here or on sys.path"
    return f"target module {module!r}: expected an importable module; got no {leaf!r} {where}{close}"


def _attribute(target: str, module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        public = [n for n, value in vars(module).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
        raise TargetError(
            f"target {target!r}: expected a name in {module.__name__!r}; got no {name!r}{nearest(name, public)}"
        ) from None


def _run(target: str, function: Any) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise TargetError(f"target {target!r}: {exception_line(error)}") from error


def _kind(found: Any) -> str:
    if isinstance(found, (list, tuple)):
        wrong = next(item for item in found if not isinstance(item, Case))
        return f"{type(found).__name__} of {type(wrong).__name__}"
    return type(found).__name__


def _place(error: BaseException) -> str:
    """`file:line` of the deepest frame outside installed packages and capwise, else of the deepest one."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    own = str(Path(__file__).parent)
    users = [f for f in frames if not f.filename.startswith((*foreign, own, "<"))]
    frame = users[-1] if users else frames[-1] if frames else None
    if frame is None:
        return ""
    path = Path(frame.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.lineno}"


@contextlib.contextmanager
def importable(module: str) -> Iterator[None]:
    """The working directory, and a file's folder, lead `sys.path` inside the block; afterwards it is what it was."""
    before = list(sys.path)
    sys.path[:0] = [str(Path.cwd()), *([str(Path(module).resolve().parent)] if _is_file(module) else [])]
    try:
        yield
    finally:
        sys.path[:] = before


def project_defaults(pyproject: Path) -> dict[str, Any]:
    """The [tool.capwise] table: option name -> value, names spelt with - or _, keys as on the command line.

    Raises:
        OptionError: the file is no TOML, or the table names an option that does not exist.
    """
    if not pyproject.is_file():
        return {}
    try:
        table = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {}).get("capwise", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{pyproject}: {error}") from error
    values = {name.replace("-", "_"): value for name, value in table.items()}
    if "key" in values:
        values["key"] = split_keys(values["key"] if isinstance(values["key"], list) else [values["key"]])
    try:
        Options.make(values)
    except OptionError as error:
        raise OptionError(f"{pyproject}: [tool.capwise]: {error}") from error
    return values


def split_keys(keys: Sequence[Any]) -> list[tuple[str, ...]]:
    """`["T,R", "T"]`, or the inner lists already split, as a list of keys."""
    return [tuple(s.strip() for s in key.split(",")) if isinstance(key, str) else tuple(key) for key in keys]


def options_for(case: Case, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options to compile a case with: the command line over the case over the project's defaults.

    Only what differs from the case's own is in it. None in `given` is not given.
    """
    blank = Case(model=None, batches=[{}])
    own = {name for name in ("inputs", "capacity", "key") if getattr(case, name) != getattr(blank, name)}
    own |= set(case.options or {})
    chosen = {name: value for name, value in defaults.items() if name not in own}
    chosen |= {name: value for name, value in given.items() if value is not None}
    case.make_options(**chosen)
    return chosen
