"""Compiled kernels on disk: cubin and hsaco files, and a manifest that is enough for another process to launch them."""

from __future__ import annotations

import ast
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capwise.lower.row import LowerRow

VERSION = 1


class ManifestError(ValueError):
    """A manifest that cannot be launched from; the message names the file and the field."""


@dataclass(frozen=True)
class Artifact:
    """One kernel of a manifest.

    Attributes:
        file: the cubin or hsaco.
        arguments: (name, Triton type) in the order of the kernel's parameters. Pass null for `profile_scratch`, and for
            `global_scratch` where `scratch_bytes` is 0.
        threads: of a block, along x.
        shared: bytes of dynamic shared memory.
        scratch_bytes: of global scratch a block.
        recorded_at: extents the constants were chosen at. The grid holds for others; a constant that bounds how many
            requests a launch takes (`BLOCK_R`, `ROUNDS`) does for this many at most. Empty where it is not known.
        assumes: argument -> what it was compiled for: `tt.divisibility` (of an address or a number), `tt.pointer_range`
            (bits of an offset in bytes). A launch that breaks one computes something else.
    """

    kernel: str
    symbol: str
    target: str
    file: Path
    arguments: tuple[tuple[str, str], ...]
    constants: dict[str, Any]
    grid: tuple[str, ...]
    num_warps: int
    threads: int
    shared: int
    num_ctas: int
    cooperative: bool
    scratch_bytes: int
    recorded_at: dict[str, int]
    assumes: dict[str, dict[str, int]]

    def grid_at(self, **values: int) -> tuple[int, int, int]:
        """The grid at these extents; raises ManifestError for a name without a value."""
        sizes = [evaluate(expr, {**self.constants, **values}, f"{self.kernel}: grid") for expr in self.grid]
        x, y, z = (*sizes, 1, 1, 1)[:3]
        return x, y, z


@dataclass(frozen=True)
class Conditions:
    """What a kernel's binary rests on; see `Artifact.recorded_at` and `Artifact.assumes`."""

    recorded_at: Mapping[str, int] = field(default_factory=dict)
    assumes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def write_artifacts(
    rows: Iterable[LowerRow],
    out_dir: Path,
    grids: Mapping[str, Sequence[str]] | None = None,
    conditions: Mapping[str, Conditions] | None = None,
) -> Path:
    """Writes the rows that compiled, and `manifest.json`.

    Args:
        grids: kernel -> grid expressions in T, R and the kernel's constants (`"cdiv(T, BLOCK)"`), in place of the
            spec's.
        conditions: kernel -> what its launch rests on.

    Returns: the manifest's path.

    Raises:
        ManifestError: a row without a grid, or an expression that is none.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    grids, conditions = grids or {}, conditions or {}
    kernels = [
        _entry(row, out_dir, grids.get(row.kernel), conditions.get(row.kernel, Conditions())) for row in rows if row.ok
    ]
    path = out_dir / "manifest.json"
    path.write_text(json.dumps({"version": VERSION, "kernels": kernels}, indent=1) + "\n")
    return path


def _entry(row: LowerRow, out_dir: Path, grid: Sequence[str] | None, conditions: Conditions) -> dict[str, Any]:
    launch = row.launch
    assert launch is not None
    grid = list(grid or launch.grid)
    if not grid:
        raise ManifestError(f"{row.kernel}: no grid expressions")
    for expr in grid:
        _parse(expr, f"{row.kernel}: grid")
    kind = "cubin" if row.target.startswith("cuda") else "hsaco"
    digest = hashlib.sha256(row.binary).hexdigest()
    file = f"{re.sub(r'[^0-9A-Za-z_]+', '-', f'{row.kernel}-{row.target}')}-{digest[:8]}.{kind}"
    (out_dir / file).write_bytes(row.binary)
    return {
        "kernel": row.kernel,
        "symbol": launch.symbol,
        "target": row.target,
        "file": file,
        "sha256": digest,
        "arguments": [{"name": name, "type": kind} for name, kind in launch.arguments],
        "constants": launch.constants,
        "grid": grid,
        "num_warps": launch.num_warps,
        "threads": launch.num_warps * launch.wave,
        "shared": launch.shared,
        "num_ctas": launch.num_ctas,
        "cooperative": launch.cooperative,
        "scratch_bytes": launch.scratch[0],
        "recorded_at": dict(conditions.recorded_at),
        "assumes": {name: dict(known) for name, known in conditions.assumes.items()},
    }


_FIELDS: dict[str, type] = {
    "kernel": str,
    "symbol": str,
    "target": str,
    "file": str,
    "sha256": str,
    "arguments": list,
    "constants": dict,
    "grid": list,
    "num_warps": int,
    "threads": int,
    "shared": int,
    "num_ctas": int,
    "cooperative": bool,
    "scratch_bytes": int,
    "recorded_at": dict,
    "assumes": dict,
}


def load_manifest(path: Path) -> list[Artifact]:
    """Reads a manifest and checks everything it names.

    Raises:
        ManifestError: not a manifest of this version, a field missing or of another type, a grid that is no expression,
            or a binary that is missing or is not the one written.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("kernels"), list):
        raise ManifestError(f"{path}: expected a manifest of version {VERSION}")
    return [_artifact(entry, path, f"{path}: kernels[{i}]") for i, entry in enumerate(data["kernels"])]


def _artifact(entry: Any, path: Path, where: str) -> Artifact:
    if not isinstance(entry, dict):
        raise ManifestError(f"{where}: expected an object")
    for name, kind in _FIELDS.items():
        if not isinstance(entry.get(name), kind) or (kind is int and isinstance(entry[name], bool)):
            raise ManifestError(f"{where}.{name}: expected {kind.__name__}; got {entry.get(name)!r}")
    for i, argument in enumerate(entry["arguments"]):
        if not isinstance(argument, dict) or not {"name", "type"} <= argument.keys():
            raise ManifestError(f"{where}.arguments[{i}]: expected name and type; got {argument!r}")
    if not 1 <= len(entry["grid"]) <= 3:
        raise ManifestError(f"{where}.grid: expected one to three expressions; got {len(entry['grid'])}")
    for expr in entry["grid"]:
        _parse(expr, f"{where}.grid")
    file = path.parent / entry["file"]
    if not file.is_file():
        raise ManifestError(f"{where}.file: no {file}")
    if hashlib.sha256(file.read_bytes()).hexdigest() != entry["sha256"]:
        raise ManifestError(f"{where}.file: {file} is not the file that was written")
    kept = {name: entry[name] for name in _FIELDS if name not in ("file", "sha256", "arguments", "grid")}
    arguments = tuple((a["name"], a["type"]) for a in entry["arguments"])
    return Artifact(**kept, file=file, arguments=arguments, grid=tuple(entry["grid"]))


_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max, "cdiv": lambda a, b: -(-a // b)}


def _parse(expr: Any, where: str) -> ast.expr:
    """The expression's tree: ints, names, + - * // %, and min, max, cdiv."""
    try:
        tree = ast.parse(expr, mode="eval").body
    except (SyntaxError, TypeError) as error:
        raise ManifestError(f"{where}: {expr!r} is no expression") from error
    for node in ast.walk(tree):
        if not _allowed(node):
            raise ManifestError(f"{where}: {expr!r} may hold ints, names, + - * // %, min, max and cdiv")
    return tree


def _allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords
    return isinstance(node, (ast.Name, ast.BinOp, ast.expr_context, *_BINARY))


def evaluate(expr: str, values: Mapping[str, Any], where: str) -> int:
    """The expression's value; raises ManifestError for what is no expression and for a name without a value."""

    def run(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](run(node.left), run(node.right))
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            return _CALLS[node.func.id](*map(run, node.args))
        assert isinstance(node, ast.Name)
        if node.id not in values:
            raise ManifestError(f"{where}: {expr!r} needs {node.id}")
        return int(values[node.id])

    return run(_parse(expr, where))
