"""What the Python body of an opaque op does beside its arguments, read off its source.

A recording holds the launches of one call. What the body read from a global, an object or a clock then is what every
replay uses; what it keeps there is not kept again; what it asks the device for is not asked again.

The reading is of names and calls, without control flow: a body that may do a thing does it. What cannot be followed
(no source, another language) is not spoken of: silence here is no proof.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from capwise import compat
from capwise.body_values import (
    CONSTANTS,
    CONTAINERS,
    FRESH,
    HOST,
    MUTATORS,
    TELLS,
    TENSOR,
    TRUSTED,
    UNKNOWN,
    Val,
    bound,
    classify,
    definition,
    describe,
    element,
    is_frozen,
    is_random,
    loaded,
    makes_tensor,
    member,
    root,
    top,
    worst,
)
from capwise.report import Span

# Calls of calls of a body that are read.
DEPTH = 4
# Comparisons that need no value of a tensor.
_BY_PYTHON = (ast.Is, ast.IsNot, ast.In, ast.NotIn)

Verdict = Literal["refuted", "assumed"]


@dataclass(frozen=True)
class Act:
    """One thing that a body does. verdict: assumed where nothing in the module changes what is read."""

    code: str
    what: str
    span: Span
    verdict: Verdict = "refuted"


@functools.cache
def acts(op: torch._ops.OpOverload) -> tuple[Act, ...]:
    """What the bodies of a custom op do beside their arguments; empty where there is no body that can be read."""
    found: dict[tuple[str, str], Act] = {}
    for reader in _readers(op):
        for act in reader.summary():
            found.setdefault((act.code, act.what), act)
    return tuple(found.values())


@functools.cache
def _readers(op: torch._ops.OpOverload) -> tuple[_Reader, ...]:
    """The bodies of an op, read."""
    tensors = {a.name for a in op._schema.arguments if "Tensor" in str(a.type)}
    readers = tuple(_Reader(body, {}, tensors) for body in compat.custom_op_functions(op))
    for reader in readers:
        reader.read()
    return readers


def kept_places() -> list[tuple[dict[str, Any], str]]:
    """Where bodies of the custom ops of this process keep something between calls: module globals, by name."""
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    for op in compat.custom_ops():
        if all(top(f) in TRUSTED for f in compat.custom_op_functions(op)):
            continue
        for reader in _readers(op):
            for name in map(root, reader.log.writes):
                if name in reader.log.places:
                    found[id(reader.log.places[name]), name] = (reader.log.places[name], name)
    return list(found.values())


@dataclass
class _Log:
    """Acts so far, over a body and the functions that it calls."""

    acts: list[Act] = field(default_factory=list)
    reads: dict[str, Act] = field(default_factory=dict)
    writes: dict[str, Act] = field(default_factory=dict)
    # Globals that were named, with the module they are of.
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    visited: set[Any] = field(default_factory=set)


class _Reader:
    """Reads one function. env: what its local names hold."""

    def __init__(
        self,
        function: Any,
        env: Mapping[str, Val],
        tensors: Iterable[str] = (),
        log: _Log | None = None,
        depth: int = 0,
    ) -> None:
        self.function = inspect.unwrap(function)
        self.log, self.depth = log if log is not None else _Log(), depth
        self.env: dict[str, Val] = {**dict.fromkeys(tensors, TENSOR), **env}
        self.shared: set[str] = set()
        self.nested = 0
        self.returns = FRESH
        self.file, self.first = "", 1
        code = self.function.__code__
        cells = zip(code.co_freevars, self.function.__closure__ or ())
        self.cells = {n: c for n, c in cells}

    # ------------------------------------------------------------------------------------------------ driving
    def read(self) -> None:
        node = definition(self.function)
        if node is None:
            return
        self.file = inspect.getsourcefile(self.function) or ""
        self.first = self.function.__code__.co_firstlineno
        arguments = node.args
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self.env.setdefault(one.arg, FRESH)
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                self.env.setdefault(extra.arg, FRESH)
        body = node.body if isinstance(node.body, list) else [ast.copy_location(ast.Return(node.body), node.body)]
        self._block(body)
        if isinstance(node, ast.FunctionDef):
            self._streams(node)

    def summary(self) -> Iterator[Act]:
        """State that is kept covers reading it."""
        yield from self.log.acts
        roots = {root(name) for name in self.log.writes}
        yield from self.log.writes.values()
        yield from (act for name, act in self.log.reads.items() if root(name) not in roots)

    def _span(self, node: ast.AST) -> Span:
        line = self.first + getattr(node, "lineno", 1) - 1
        text = compat.source_line(self.file, line)
        return Span(self.file, line, len(text) - len(text.lstrip()) + 1, len(text) + 1)

    def _act(self, code: str, what: str, node: ast.AST) -> None:
        self.log.acts.append(Act(code, what, self._span(node)))

    def _wrote(self, name: str, node: ast.AST) -> None:
        if root(name) in self.function.__globals__:
            self.log.places.setdefault(root(name), self.function.__globals__)
        self.log.writes.setdefault(name, Act("CW103", f"keeps {name} from call to call", self._span(node)))

    # ------------------------------------------------------------------------------------------------ statements
    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for one in statements:
            handler = getattr(self, f"_on_{type(one).__name__.lower()}", None)
            if handler is not None:
                handler(one)
            else:
                self.env |= dict.fromkeys(bound(one), FRESH)

    def _on_global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.shared |= set(node.names)

    _on_nonlocal = _on_global

    def _on_assign(self, node: ast.Assign) -> None:
        value = self._eval(node.value)
        for target in node.targets:
            self._store(target, value)

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        self._store(node.target, self._eval(node.value) if node.value is not None else FRESH)

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self._load(node.value)
        self._store(node.target, self._eval(loaded(node.target)))

    def _on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._store(target, FRESH)

    def _on_return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.returns = worst(self.returns, self._load(node.value))

    def _on_if(self, node: ast.If | ast.While) -> None:
        self._truth(node.test)
        self._nested(node.body, node.orelse)

    _on_while = _on_if

    def _on_for(self, node: ast.For) -> None:
        self._store(node.target, element(self._load(node.iter)))
        self._nested(node.body, node.orelse)

    def _on_assert(self, node: ast.Assert) -> None:
        self._truth(node.test)

    def _on_expr(self, node: ast.Expr) -> None:
        self._load(node.value)

    def _on_with(self, node: ast.With) -> None:
        for item in node.items:
            value = self._load(item.context_expr)
            if item.optional_vars is not None:
                self._store(item.optional_vars, value)
        self._block(node.body)

    def _on_try(self, node: ast.Try) -> None:
        self._nested(node.body, node.orelse, node.finalbody, *(h.body for h in node.handlers))

    def _nested(self, *blocks: list[ast.stmt]) -> None:
        self.nested += 1
        for block in blocks:
            self._block(block)
        self.nested -= 1

    def _store(self, target: ast.expr, value: Val) -> None:
        if isinstance(target, ast.Name):
            if target.id in self.shared:
                self._wrote(target.id, target)
            else:
                old = self.env.get(target.id)
                self.env[target.id] = worst(old, value) if old is not None and self.nested else value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._store(one, element(value))
        elif isinstance(target, ast.Starred):
            self._store(target.value, value)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            base = self._eval(target.value)
            if base.kind in ("hidden", "code") and base.name:
                step = f".{target.attr}" if isinstance(target, ast.Attribute) else "[...]"
                self._wrote(base.name + step, target)
            if isinstance(target, ast.Subscript):
                self._load(target.slice)

    def _truth(self, test: ast.expr) -> None:
        if self._load(test).kind == "tensor":
            self._act("CW002", "asks the device for a truth value", test)

    # ------------------------------------------------------------------------------------------------ expressions
    def _load(self, node: ast.expr) -> Val:
        """The value, which is used here: reading what is no argument is an act."""
        value = self._eval(node)
        if value.kind == "hidden":
            self._read(value, node)
        return value

    def _read(self, value: Val, node: ast.AST) -> None:
        verdict: Verdict = "refuted" if value.changed else "assumed"
        act = Act("CW003", f"reads {value.name}, which is no argument", self._span(node), verdict)
        self.log.reads.setdefault(value.name, act)

    def _eval(self, node: ast.expr) -> Val:
        if isinstance(node, ast.Constant):
            return Val("fresh", object=node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(self._eval(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Lambda):
            return self._eval(node.body)
        if isinstance(node, ast.NamedExpr):
            value = self._eval(node.value)
            self._store(node.target, value)
            return value
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._comprehension(node)
        return self._operands(node)

    def _operands(self, node: ast.expr) -> Val:
        values = [self._load(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            first = node.test if isinstance(node, ast.IfExp) else node.values[0]
            if isinstance(first, (ast.Name, ast.Compare)) and self._eval(first).kind == "tensor":
                self._act("CW002", "asks the device for a truth value", node)
            return functools.reduce(worst, values, FRESH)
        if isinstance(node, ast.Compare) and all(isinstance(o, _BY_PYTHON) for o in node.ops):
            return FRESH
        return TENSOR if any(v.kind == "tensor" for v in values) else FRESH

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Val:
        for one in node.generators:
            self._store(one.target, element(self._load(one.iter)))
            for test in one.ifs:
                self._truth(test)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return functools.reduce(worst, [self._load(p) for p in parts])

    def _name(self, name: str) -> Val:
        if name in self.env and name not in self.shared:
            return self.env[name]
        if name in self.cells:
            with_value = self.cells[name]
            try:
                return classify(name, with_value.cell_contents, self.function)
            except ValueError:  # an empty cell
                return FRESH
        if name in self.function.__globals__:
            self.log.places.setdefault(name, self.function.__globals__)
            return classify(name, self.function.__globals__[name], self.function)
        return Val("code", "", getattr(builtins, name, UNKNOWN))

    def _attribute(self, base: Val, name: str) -> Val:
        if base.kind == "tensor":
            return FRESH if name in TELLS else TENSOR
        if base.kind == "fresh":
            return FRESH
        found = member(base.object, name)
        if base.kind == "code" and found is not UNKNOWN:
            made = classify(name, found, self.function)
            named = f"{base.name}.{name}" if isinstance(base.object, type) else name
            return Val(made.kind, named, made.object, made.changed or base.changed)
        if base.kind == "code":
            return Val("code")
        if isinstance(found, CONSTANTS) and is_frozen(base.object):
            return Val("fresh", object=found)
        return Val("hidden", f"{base.name}.{name}", found, base.changed)

    def _subscript(self, node: ast.Subscript) -> Val:
        base = self._eval(node.value)
        self._load(node.slice)
        if base.kind != "hidden":
            return base
        item: Any = UNKNOWN
        if isinstance(node.slice, ast.Constant) and isinstance(base.object, (dict, list)):
            try:
                item = base.object[node.slice.value]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                item = UNKNOWN
        return Val("hidden", f"{base.name}[...]", item, base.changed)

    # ------------------------------------------------------------------------------------------------ calls
    def _call(self, node: ast.Call) -> Val:
        values = [self._load(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        named = {k.arg or "**": self._load(k.value) for k in node.keywords}
        if isinstance(node.func, ast.Attribute):
            base = self._eval(node.func.value)
            if base.kind in ("tensor", "hidden"):
                return self._method(node, base, node.func.attr, values, named)
        target = self._eval(node.func)
        return self._function(node, target, values, named)

    def _method(self, node: ast.Call, base: Val, name: str, values: list[Val], named: dict[str, Val]) -> Val:
        if base.kind == "tensor" or isinstance(base.object, torch.Tensor):
            if base.kind == "hidden":
                self._read(base, node)
            to_host = name == "to" and any(str(v.object).startswith("cpu") for v in (*values, *named.values()))
            if name in HOST or to_host:
                self._act("CW002", f"waits for the device: .{name}()", node)
                return Val("hidden", base.name) if base.kind == "hidden" else FRESH
            return FRESH if name in TELLS else TENSOR
        if isinstance(base.object, torch.Generator):
            self._act("CW104", f"draws from the generator {base.name}", node)
            return FRESH
        function = member(base.object, name)
        if isinstance(base.object, CONTAINERS) or base.object is UNKNOWN:
            if name in MUTATORS:
                self._wrote(f"{base.name}[...]", node)
            return Val("hidden", f"{base.name}[...]", changed=base.changed)
        if isinstance(function, types.FunctionType):
            return self._enter(node, function, [base, *values], named)
        return Val("hidden", f"{base.name}.{name}()", changed=base.changed)

    def _function(self, node: ast.Call, target: Val, values: list[Val], named: dict[str, Val]) -> Val:
        function = target.object
        if function in (int, float, bool) and values and values[0].kind == "tensor":
            self._act("CW002", f"waits for the device: {function.__name__}()", node)
            return FRESH
        if is_random(function):
            self._act("CW104", f"draws random numbers: {getattr(function, '__name__', 'random')}()", node)
        if hasattr(function, "cache_info") and hasattr(function, "__wrapped__"):
            self._act("CW103", f"remembers results of {function.__wrapped__.__name__}()", node)
            function = function.__wrapped__
        if isinstance(function, types.MethodType):
            owner = Val("hidden", describe(function.__self__), function.__self__)
            return self._enter(node, function.__func__, [owner, *values], named)
        if isinstance(function, types.FunctionType) and top(function) not in TRUSTED:
            return self._enter(node, function, values, named)
        if target.kind == "hidden":
            self._read(target, node)
            call = member(type(function), "__call__")
            if isinstance(call, types.FunctionType) and top(call) not in TRUSTED:
                return self._enter(node, call, [target, *values], named)
        return TENSOR if makes_tensor(function) else FRESH

    def _enter(self, node: ast.Call, function: Any, values: list[Val], named: Mapping[str, Val]) -> Val:
        """Reads a function that the body calls, with what is known of the arguments."""
        plain = inspect.unwrap(function)
        if self.depth >= DEPTH or top(plain) in TRUSTED:
            return functools.reduce(worst, values, FRESH)
        names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
        known = {**dict(zip(names, values)), **{n: v for n, v in named.items() if n != "**"}}
        key = (plain, tuple((n, v.kind, v.name) for n, v in sorted(known.items())))
        if key in self.log.visited:
            return FRESH
        self.log.visited.add(key)
        inner = _Reader(plain, known, log=self.log, depth=self.depth + 1)
        inner.read()
        return inner.returns

    # ------------------------------------------------------------------------------------------------ streams
    def _streams(self, function: ast.FunctionDef) -> None:
        """Launches on another stream belong to the recording iff the stream waits before and is waited for after."""
        calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        waits = [n.lineno for n in calls if n.func.attr in ("wait_stream", "wait_event")]  # type: ignore[attr-defined]
        for node in ast.walk(function):
            if not isinstance(node, ast.With) or not any(self._is_stream(i.context_expr) for i in node.items):
                continue
            end = node.end_lineno or node.lineno
            if not any(line <= end for line in waits) or not any(line > end for line in waits):
                self._act("CW103", "launches on a stream that is not joined", node.items[0].context_expr)

    def _is_stream(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            function = self._eval(node.func).object
            if function in (torch.cuda.stream, torch.cuda.StreamContext):
                return True
        return isinstance(self._eval(node).object, torch.Stream)
