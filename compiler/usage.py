"""Usage errors of the command line in capwise's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from capwise.options import nearest


def usage(error: Any) -> str:
    """A usage error of typer's parser in capwise's words: `check: option '--fromat': expected one of ...`."""
    ctx, text = getattr(error, "ctx", None), str(error.format_message())
    if ctx is None:
        return _sentence(text)
    path = ctx.command_path.removeprefix("capwise").strip()
    where = f"{path}: " if path else ""
    if match := re.match(r"No such command '(.*?)'", text):
        return where + _expected("command", match[1], list(ctx.command.commands))
    if text.startswith("No such option"):
        flags = [name for param in ctx.command.params for name in (*param.opts, *param.secondary_opts)]
        known = [name for name in (*flags, *ctx.help_option_names) if name.startswith("-")]
        return where + _expected("option", error.option_name, known)
    hint = f": expected {error.param.help}" if text.startswith("Missing") else ""
    return f"{where}{_sentence(text)}{hint}"


def _sentence(text: str) -> str:
    return f"{text[:1].lower()}{text[1:].rstrip('.')}"


def _expected(what: str, got: str, choices: Sequence[str]) -> str:
    return f"{what} {got!r}: expected one of {', '.join(choices)}{nearest(got, choices)}"
