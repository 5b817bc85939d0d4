"""Signatures of kernels with nothing around: read off annotations and the way arguments are used, else guessed.

A guess is only good if the kernel compiles with it: `candidates` gives several, likeliest first.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from capwise.kernel_access.ttir import unwrap

_MEMORY = frozenset(
    "load store atomic_add atomic_max atomic_min atomic_cas atomic_xchg atomic_or atomic_and atomic_xor "
    "make_block_ptr make_tensor_descriptor".split()
)
_INT_NAME = re.compile(
    r"(idx|index|indices|indptr|slot|offs|cu_?seq|cu_?len|seq_?len|_lens?\b|lens?_|\blens?\b|_loc\b|_locs\b|table|mapping"
    r"|\bids\b|_ids\b|positions?|count|start|target|label|flag|mask|page|block_map|perm|order|num_|token|step|rng)",
    re.IGNORECASE,
)
_FLOAT_NAME = re.compile(
    r"(eps|scale|alpha|beta|gamma|theta|momentum|dropout|\bp\b|cap|\blr\b|decay|weight|softcap|smooth|temp|rate|threshold"
    r"|limit|factor|norm|log|sigma|lambda|\blse\b|inv_|loss|bias)",
    re.IGNORECASE,
)
_FLAG_NAME = re.compile(r"^(use|has|is|store|output|save|load|do|with|apply|enable|return|compute|need|add|reverse|"
                        r"causal|even|skip|inplace|in_place|transpose|trans|norm_before|fuse|update|head_first)(_|$)|"
                        r"_?(flag|contiguous|causal|first|inplace|reverse)$", re.IGNORECASE)  # fmt: skip
_BLOCK_NAME = re.compile(
    r"^(block|b[a-z]{1,3}$|n?b[a-z]?_|tile|chunk|group_size|.*_?(block|tile)(_size)?)", re.IGNORECASE
)

_COUNT_NAME = re.compile(
    r"B|G|H|HQ|HV|HK|NH|N_?H\w*|NUM_HEADS|n_heads?|num_\w*heads?|NK|NV|NC|NT|N|NB|S|M|W|.*WIDTH|.*STAGES?"
)


@dataclass(frozen=True)
class Guess:
    """Types of the run-time arguments and values of the constexpr ones. `guessed` names what is not read off."""

    signature: dict[str, str]
    constexprs: dict[str, Any]
    guessed: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Sizes:
    """What a guess takes for blocks, extents, flags, and whether unnamed loads are of integers."""

    block: int = 64
    extent: int = 64
    heads: int = 2
    flags: bool = True
    swap: bool = False


_UNROLLED = 4
_TRIES = (
    _Sizes(),
    _Sizes(block=32),
    _Sizes(flags=False),
    _Sizes(block=16, extent=16),
    _Sizes(block=16, heads=1),
    _Sizes(block=32, extent=32, flags=False),
    _Sizes(swap=True),
    _Sizes(block=16, extent=128, flags=False, swap=True),
)


class Usage(ast.NodeVisitor):
    """Which parameters of a jit function are pointers, and which of those hold integers used as such."""

    def __init__(self, kernel: Any, known: dict[str, Usage | None]) -> None:
        self.namespace = kernel.fn.__globals__
        self.known = known
        self.bases: dict[str, set[str]] = {name: {name} for name in kernel.arg_names}
        self.sources: dict[str, set[str]] = {}
        self.indices: set[str] = set()
        self.pointers: set[str] = set()
        self.integers: set[str] = set()
        self.tables: set[str] = set()
        self.spans: set[str] = set()
        self.unrolled: set[str] = set()
        body = kernel.parse().body[0].body
        for _ in range(2):
            for statement in body:
                self.visit(statement)

    def base(self, node: ast.AST | None) -> set[str]:
        """Parameters that an address expression starts from."""
        if isinstance(node, ast.Name):
            return self.bases.get(node.id, set())
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            return self.base(node.left) or self.base(node.right)
        if isinstance(node, ast.IfExp):
            return self.base(node.body) | self.base(node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value if node.func.attr in ("to", "cast") else node.args[0] if node.args else None
            return self.base(inner)
        return set()

    def loaded(self, node: ast.AST) -> set[str]:
        """Pointer parameters whose contents an expression is computed from."""
        out: set[str] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                out |= self.sources.get(part.id, set())
            elif isinstance(part, ast.Call) and _called(part) == "load" and part.args:
                out |= self.base(part.args[0])
        return out

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    self._bind(name.id, value)

    def _bind(self, name: str, value: ast.expr) -> None:
        if self._is_index(value):
            self.indices.add(name)
        self.bases[name] = self.bases.get(name, set()) | self.base(value)
        self.sources[name] = self.sources.get(name, set()) | self.loaded(value)

    def _is_index(self, node: ast.AST) -> bool:
        """Made from program ids and ranges."""
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and _called(part) in ("program_id", "arange"):
                return not self.loaded(node)
        return isinstance(node, ast.Name) and node.id in self.indices

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if any(self._is_index(side) for side in sides):
            for side in sides:
                self.integers |= self.loaded(side)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _called(node)
        if name in _MEMORY and node.args:
            self.pointers |= self.base(node.args[0])
            offset = node.args[0].right if isinstance(node.args[0], ast.BinOp) else None
            self.integers |= self.loaded(offset) if offset else set()
        elif name in ("range", "static_range"):
            for arg in node.args:
                self.integers |= self.loaded(arg)
            if name == "static_range":
                self.unrolled |= _names(node)
        elif name == "arange":
            self.spans |= _names(node)
        elif name == "to" and isinstance(node.func, ast.Attribute) and node.args:
            kind = ast.unparse(node.args[0])
            if "pointer_type" in kind:
                self.tables |= self.loaded(node.func.value)
            elif "int" in kind:
                self.integers |= self.loaded(node.func.value)
        else:
            self._helper(node, name)

    def _helper(self, node: ast.Call, name: str) -> None:
        """Arguments handed to another jit function are used as it uses them."""
        callee = self.namespace.get(name)
        if not hasattr(callee, "arg_names") or not hasattr(callee, "parse"):
            return
        usage = self._usage(callee)
        if usage is None:
            return
        for parameter, arg in [*zip(callee.arg_names, node.args), *((k.arg or "", k.value) for k in node.keywords)]:
            if parameter in usage.pointers:
                self.pointers |= self.base(arg)
            if parameter in usage.integers:
                self.integers |= self.base(arg)

    def _usage(self, callee: Any) -> Usage | None:
        """Of a helper, worked out once; None while that is going on (recursion)."""
        key = f"{callee.fn.__module__}.{callee.fn.__qualname__}"
        if key not in self.known:
            self.known[key] = None
            self.known[key] = Usage(callee, self.known)
        return self.known[key]


def _names(node: ast.Call) -> set[str]:
    """Names in the arguments of a call."""
    return {n.id for arg in node.args for n in ast.walk(arg) if isinstance(n, ast.Name)}


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


@cache
def _plain_type(annotation: str) -> str | None:
    """Triton type of a scalar annotation: `tl.int64`, `"i64"`, `int`."""
    name = annotation.rpartition(".")[2].strip("'\"")
    known = {"int": "i32", "float": "fp32", "float32": "fp32", "bool": "i1", "float16": "fp16", "bfloat16": "bf16"}
    match = re.fullmatch(r"(u?)int(\d+)", name)
    if match:
        return f"{'u' if match.group(1) else 'i'}{match.group(2)}"
    return known.get(name) or (name if re.fullmatch(r"\*?([iu]\d+|fp\d+\w*|bf16)", name) else None)


def _tuned(kernel: Any) -> dict[str, Any]:
    """Constexprs of the first configuration of an autotuner around the kernel."""
    out: dict[str, Any] = {}
    while kernel is not None and not inspect.isfunction(kernel):
        configs = getattr(kernel, "configs", None)
        if configs:
            out.update({k: v for k, v in configs[0].kwargs.items() if k not in out})
        kernel = getattr(kernel, "fn", None)
    return out


def _heuristic(kernel: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Constexprs that heuristics around the kernel compute, where they can with every pointer present."""
    out: dict[str, Any] = {}
    while kernel is not None and not inspect.isfunction(kernel):
        for name, rule in (getattr(kernel, "values", None) or {}).items():
            try:
                out[name] = rule(dict(known))
            except Exception:
                continue
        kernel = getattr(kernel, "fn", None)
    return out


def _constexpr(param: Any, sizes: _Sizes, usage: Usage) -> Any:
    """A value by default, by use (unrolled loops short, tiles of block size), else by name."""
    name = param.name
    if param.default is not inspect.Parameter.empty and param.default is not None:
        return param.default
    if _FLAG_NAME.search(name):
        return sizes.flags
    if name in usage.unrolled:
        return _UNROLLED
    return sizes.block if name in usage.spans else _by_name(name, sizes)


def _by_name(name: str, sizes: _Sizes) -> Any:
    lowered = name.lower()
    if "dtype" in lowered or lowered.endswith("_type"):
        import triton.language as tl

        return tl.float32
    if re.search(r"pad|null|ignore|invalid|sentinel", lowered):
        return -1
    if "activation" in lowered or lowered in ("act", "act_fn"):
        return "silu"
    if _BLOCK_NAME.match(name) and not name.isupper() or name.startswith("BLOCK") or re.fullmatch(r"B[A-Z]{1,2}", name):
        return sizes.block
    if _FLOAT_NAME.search(name) and not name.isupper():
        return 1.0
    return sizes.heads if _COUNT_NAME.fullmatch(name) else sizes.extent


def candidates(kernel: Any) -> Iterator[Guess]:
    """Guesses for a kernel with nothing around, likeliest first; each is complete.

    Raises: TypeError where this is no jit kernel."""
    inner = unwrap(kernel)
    usage = Usage(inner, {})
    tuned = _tuned(kernel)
    seen = []
    for sizes in _TRIES:
        signature: dict[str, str] = {}
        values: dict[str, Any] = {}
        for param in inner.params:
            if param.is_constexpr:
                values[param.name] = tuned.get(param.name, _constexpr(param, sizes, usage))
            else:
                signature[param.name] = _runtime(param, usage, sizes)
        known = {**{n: _Present() if t.startswith("*") else sizes.extent for n, t in signature.items()}, **values}
        values.update({k: v for k, v in _heuristic(kernel, known).items() if k in values and sizes.flags})
        said = {p.name for p in inner.params if p.annotation and _plain_type(str(p.annotation))}
        said |= {p.name for p in inner.params if p.is_constexpr and p.default not in (inspect.Parameter.empty, None)}
        guess = Guess(signature, values, tuple(n for n in (*signature, *values) if n not in said and n not in tuned))
        if guess not in seen:
            seen.append(guess)
            yield guess


class _Present:
    """Stands for a tensor argument in a heuristic: not None, on some device."""

    shape = (64, 64)
    dtype = None


def _runtime(param: Any, usage: Usage, sizes: _Sizes) -> str:
    annotated = _plain_type(str(param.annotation)) if param.annotation else None
    if annotated is not None:
        return annotated
    name = param.name
    if name in usage.pointers or re.search(r"ptrs?$", name, re.IGNORECASE):
        if name in usage.tables:
            return "*i64"
        integer = name in usage.integers or bool(_INT_NAME.search(name)) != sizes.swap
        return "*i32" if integer else "*fp32"
    return "fp32" if _FLOAT_NAME.search(name) and "stride" not in name.lower() else "i32"


def guess_signature(kernel: Any) -> Guess:
    """The likeliest signature and constexprs; of pointers, those used as addresses or bounds hold 32-bit integers.

    Raises: TypeError where this is no jit kernel."""
    return next(candidates(kernel))
