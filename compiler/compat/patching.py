"""What is set inside a block is put back when the block is left, also when it raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def restored(*parts: Any) -> Iterator[None]:
    """Inside, any attribute of these modules, classes and objects may be set, added or deleted."""
    before = [(part, dict(vars(part))) for part in parts]
    try:
        yield
    finally:
        for part, was in before:
            _put_back(part, was)


def _put_back(part: Any, before: dict[str, Any]) -> None:
    now = dict(vars(part))
    for name in now.keys() - before.keys():
        delattr(part, name)
    for name, value in before.items():
        if now.get(name) is not value:
            setattr(part, name, value)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, one attribute has another value."""
    before = getattr(owner, name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        setattr(owner, name, before)
