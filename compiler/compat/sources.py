"""Where a graph's inputs come from and how the lines of source files read."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import torch
from torch import fx

TORCH_ROOT = str(Path(torch.__file__).parent)


def source_name(source: Any) -> str:
    """A Dynamo source as a Python expression over L and G (a property on 2.11 to 2.14, a method before)."""
    name = source.name
    return name() if callable(name) else name


def source_of(node: fx.Node) -> str:
    """Where Dynamo took a graph input from; empty where it does not say."""
    grapharg = node.meta.get("grapharg")
    return source_name(grapharg.source) if grapharg is not None else ""


def source_line(file: str, line: int) -> str:
    return linecache.getline(file, line).rstrip("\n")
