"""One page a code: a wrong program, why replay differs from eager, and the repaired program. Both programs run."""

from __future__ import annotations

import importlib.resources
import re

from capwise.options import nearest
from capwise.report import RULES

__all__ = ["page", "programs"]

_BLOCK = re.compile(r"^## (Wrong|Repaired) program\n.*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page(code: str) -> str:
    """The page of a code, as Markdown. Case does not matter.

    Raises:
        KeyError: no such code; the message names the nearest.
    """
    if code.upper() not in RULES:
        raise KeyError(f"code {code!r}: expected one of {', '.join(RULES)}{nearest(code.upper(), list(RULES))}")
    return importlib.resources.files(__name__).joinpath(f"{code.upper()}.md").read_text(encoding="utf-8")


def programs(code: str) -> dict[str, str]:
    """The page's Python programs, each defining `case()`: under "wrong" and "repaired", where the page has them.

    Raises:
        KeyError: no such code.
    """
    return {title.lower(): text for title, text in _BLOCK.findall(page(code))}
