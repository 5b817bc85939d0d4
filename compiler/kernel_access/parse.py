"""MLIR text (the pretty form that Triton prints) to functions, blocks, operations and regions.

Every operation keeps its operands in text order, its attribute text and its types; what an operation means is not
known here. A line that does not fit raises `ParseError`: nothing is skipped in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LOC_LINE = re.compile(r"^#(loc\d*) = loc\((.*)\)$")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_REF = re.compile(r"#(loc\d*)")
_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_RESULT = re.compile(r"^(%[\w$.\-]+)(?::(\d+))? = ")
_NAME = re.compile(r'^"?([a-zA-Z_]\w*(?:\.\w+)+|[a-z_]+)"?')
_BLOCK = re.compile(r"^(\^[\w]+)(?:\((.*)\))?:")
_SUCCESSOR = re.compile(r"(\^\w+)(?:\(([^)]*)\))?")
_ARG = re.compile(r"(%[\w$.\-]+): ")


class ParseError(ValueError):
    """A line of IR that this reader does not know the form of."""


@dataclass(frozen=True)
class Type:
    """A scalar (`shape == ()`) or tensor type; `elem` is "i32", "f32", "!tt.ptr<f32>", or the raw text."""

    shape: tuple[int, ...]
    elem: str

    @property
    def pointee(self) -> str | None:
        """What a pointer points at, or None."""
        match = re.match(r"!tt\.ptr<(.*?)(?:, \d+)?>$", self.elem)
        return match.group(1) if match else None


@dataclass
class Op:
    """One operation. `text` is what stands between the name and the types, regions removed."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    types: str
    line: int
    successors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    regions: list[list[Block]] = field(default_factory=list)


@dataclass
class Block:
    """A label, its arguments as (name, type), and its operations."""

    label: str
    args: tuple[tuple[str, Type], ...] = ()
    ops: list[Op] = field(default_factory=list)


@dataclass
class Func:
    """A `tt.func`: name without the sigil, arguments as (name, source name, type), blocks in text order."""

    name: str
    args: tuple[tuple[str, str, Type], ...]
    blocks: list[Block]


def parse_type(text: str) -> Type:
    """`tensor<16x!tt.ptr<f32>>` or `i32`."""
    text = text.strip()
    if not text.startswith("tensor<"):
        return Type((), text)
    inner = text[len("tensor<") : -1]
    shape = []
    while match := re.match(r"(\d+)x", inner):
        shape.append(int(match.group(1)))
        inner = inner[match.end() :]
    return Type(tuple(shape), inner)


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside of brackets; `->` is no bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<([{":
            depth += 1
        elif c in ")]}" or (c == ">" and text[i - 1] != "-"):
            depth -= 1
        elif depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i].strip())
            start = i + len(separator)
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _close(text: str, start: int) -> int:
    """Index just past the bracket that closes the one at `start`; strings are stepped over."""
    depth, i, quoted = 0, start, False
    while i < len(text):
        c = text[i]
        if c == '"':
            quoted = not quoted
        elif not quoted and c in "([{":
            depth += 1
        elif not quoted and c in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    raise ParseError(f"unbalanced: {text[start : start + 60]}")


class Locations:
    """`#loc12` to the line of the kernel's own source: of a call chain the outermost place."""

    def __init__(self, lines: list[str]) -> None:
        self._raw = {m.group(1): m.group(2) for line in lines if (m := _LOC_LINE.match(line))}

    def line(self, text: str, depth: int = 0) -> int:
        """Line number, or 0 where unknown."""
        if depth > 40:
            return 0
        text = text.split(" at ")[-1]
        if match := _FILE.search(text):
            return int(match.group(2))
        match = _REF.search(text)
        return self.line(self._raw.get(match.group(1), ""), depth + 1) if match else 0


def _strip_locs(line: str) -> tuple[str, str]:
    """The line without `loc(...)` and the last location's text."""
    last = ""
    while (at := line.find("loc(")) >= 0:
        end = _close(line, at + 3)
        last = line[at + 4 : end - 1]
        line = line[:at].rstrip() + line[end:]
    return line.rstrip(), last


class Parser:
    """Recursive reader over lines; `parse` is the way in."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self.locations = Locations(lines)
        self.lines = [line for line in lines if line and not line.startswith("#loc") and not line.startswith("//")]
        self.at = 0

    def parse(self) -> dict[str, Func]:
        """Every function of the module, by name, the public one first in order of text."""
        functions: dict[str, Func] = {}
        while self.at < len(self.lines):
            line, _ = _strip_locs(self.lines[self.at])
            if line.startswith("tt.func"):
                function = self._func(line)
                functions[function.name] = function
            else:
                self.at += 1
        if not functions:
            raise ParseError("no tt.func in the module")
        return functions

    def _func(self, line: str) -> Func:
        raw = self.lines[self.at]
        match = re.search(r"@(\"[^\"]*\"|[\w$.]+)\(", raw)
        if match is None:
            raise ParseError(f"function header: {line[:80]}")
        inside = raw[match.end() : _close(raw, match.end() - 1) - 1]
        args = []
        for part in split_top(inside):
            bare, _ = _strip_locs(part)
            name, _, type_text = bare.partition(": ")
            source = re.search(r'loc\("([^"]+)"', part)
            type_text = split_top(type_text, " {")[0]
            args.append((name, source.group(1) if source else name[1:], parse_type(type_text)))
        self.at += 1
        return Func(match.group(1).strip('"'), tuple(args), self._region()[0])

    def _region(self) -> tuple[list[Block], str]:
        """Blocks up to the closing brace, and what follows the brace on its line."""
        blocks = [Block("^bb0")]
        while self.at < len(self.lines):
            raw = self.lines[self.at]
            if raw.startswith("}"):
                self.at += 1
                return blocks, raw[1:].strip()
            if raw.startswith("^"):
                self.at += 1
                self._label(raw, blocks)
                continue
            blocks[-1].ops.append(self._op())
        raise ParseError("region without end")

    def _label(self, raw: str, blocks: list[Block]) -> None:
        line, _ = _strip_locs(raw.split("//")[0])
        match = _BLOCK.match(line)
        if match is None:
            raise ParseError(f"block label: {raw[:80]}")
        args = [part.partition(":") for part in split_top(match.group(2) or "")]
        block = Block(match.group(1), tuple((name.strip(), parse_type(kind)) for name, _, kind in args))
        if len(blocks) == 1 and not blocks[0].ops and not blocks[0].args:
            blocks[0] = block
        else:
            blocks.append(block)

    def _op(self) -> Op:
        head = self.lines[self.at]
        self.at += 1
        regions: list[list[Block]] = []
        tail = head
        text = head
        while tail.endswith("{") or tail.endswith("({"):
            blocks, tail = self._region()
            regions.append(blocks)
            text = text.rstrip("{").rstrip() + " " + tail
        line, loc = _strip_locs(text)
        op = self._fields(line, self.locations.line(loc))
        op.regions = regions
        return op

    def _fields(self, line: str, number: int) -> Op:
        results: list[str] = []
        while match := _RESULT.match(line) or re.match(r"^(%[\w$.\-]+)(?::(\d+))?, (?=%)", line):
            name, count = match.group(1), match.group(2)
            results += [f"{name}#{i}" for i in range(int(count))] if count else [name]
            done = match.group(0).endswith("= ")
            line = line[match.end() :]
            if done:
                break
        match = _NAME.match(line)
        if match is None:
            raise ParseError(f"operation: {line[:80]}")
        body, types = _split_types(line[match.end() :])
        successors = tuple(
            (label, tuple(_VALUE.findall(args.partition(":")[0] if args else "")))
            for label, args in _SUCCESSOR.findall(body)
        )
        plain = _SUCCESSOR.sub("", body) if successors else body
        operands = tuple(_VALUE.findall(plain))
        return Op(match.group(1), tuple(results), operands, body.strip(), types, number, successors)


def _split_types(text: str) -> tuple[str, str]:
    """Cut at the last ` : ` outside of brackets."""
    parts = split_top(f"{{}}{text}", " : ")
    parts[0] = parts[0].removeprefix("{}")
    return (" : ".join(parts[:-1]), parts[-1]) if len(parts) > 1 else (text, "")


def parse(text: str) -> dict[str, Func]:
    """Functions of a module by name. Raises: ParseError."""
    return Parser(text).parse()
