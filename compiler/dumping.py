"""What `--dump DIR` writes beside the compiler's own texts: Dynamo's view of the model, through depyf (extra `debug`).

For the command line only: depyf changes code objects of the process while it looks. The files hold source, graphs,
guards and bytecode; never tensor values.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MISSING = "depyf is not installed: Dynamo's graphs and bytecode are not dumped; pip install 'capwise[debug]'"


@contextlib.contextmanager
def dynamo_dumped(folder: Path | None) -> Iterator[None]:
    """Inside, what Dynamo captures and generates is written under `folder`/dynamo; nothing where `folder` is None.
    Without depyf one line on stderr says what is left out."""
    if folder is None:
        yield
        return
    if importlib.util.find_spec("depyf") is None:
        print(f"capwise: {MISSING}", file=sys.stderr)
        yield
        return
    import depyf

    place = folder / "dynamo"
    place.mkdir(parents=True, exist_ok=True)
    problems = (place / "problems.txt").open("w", encoding="utf-8")
    with problems, warnings.catch_warnings(), _decompiler_may_fail(), contextlib.redirect_stderr(problems):
        warnings.simplefilter("ignore")
        with depyf.prepare_debug(str(place)):
            yield


@contextlib.contextmanager
def _decompiler_may_fail() -> Iterator[None]:
    """Bytecode that depyf cannot turn back into source is left out, whatever stops it: graphs and guards remain."""
    from depyf.decompiler import DecompilationError, Decompiler

    original = Decompiler.decompile_and_compile_like

    def attempt(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            raise DecompilationError(f"{type(error).__name__}: {error}") from None

    Decompiler.decompile_and_compile_like = staticmethod(attempt)
    try:
        yield
    finally:
        Decompiler.decompile_and_compile_like = staticmethod(original)
