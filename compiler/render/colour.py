"""Colours for the full format on a terminal. The text stays the same, letter for letter."""

from __future__ import annotations

import re

from rich.text import Text

# Each pattern's first group gets the style.
_STYLES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), style)
    for pattern, style in (
        (r"^(error\[CW\d+\])", "bold red"),
        (r"^(warning\[CW\d+\])", "bold yellow"),
        (r"^(note\[CW\d+\])", "bold green"),
        (r"^(?:error|warning|note)\[CW\d+\](: .*)$", "bold"),
        (r"^( *-->)", "blue"),
        (r"^( *\d* \|)", "blue"),
        (r"^ * \|\s+(\^+.*)$", "bold red"),
        (r"^ *( = \w+:)", "cyan"),
        (r"^(assumed:|case:)", "bold"),
    )
)


def colour(text: str) -> Text:
    """`text` as a rich Text with styles and no other change."""
    styled = Text(text)
    for pattern, style in _STYLES:
        for match in pattern.finditer(text):
            styled.stylize(style, *match.span(1))
    return styled
