"""What the renderers need of the user's files: short paths and single lines."""

from __future__ import annotations

import functools
from pathlib import Path

from capwise.report import Span


def short_path(file: str) -> str:
    """`file` relative to the working directory when it lies inside it, else as given."""
    path = Path(file)
    if not path.is_absolute():
        return file
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return file


def place(span: Span, column: bool = True) -> str:
    """`file:line:column`, with what is unknown left out; empty when the file is."""
    if not span.file:
        return ""
    parts = [short_path(span.file), *([str(span.line)] if span.line else [])]
    if column and span.line and span.column:
        parts.append(str(span.column))
    return ":".join(parts)


def source_line(span: Span) -> str | None:
    """The line that the span names, without its newline; None when it cannot be read."""
    if not span.file or span.line < 1:
        return None
    try:
        stat = Path(span.file).stat()
        lines = _lines(span.file, stat.st_mtime_ns, stat.st_size)
    except (OSError, UnicodeDecodeError):
        return None
    return lines[span.line - 1] if span.line <= len(lines) else None


@functools.lru_cache(maxsize=64)
def _lines(file: str, mtime_ns: int, size: int) -> tuple[str, ...]:
    """The file's lines; time and size are in the cache key so that an edited file is read again."""
    return tuple(Path(file).read_text(encoding="utf-8").splitlines())
