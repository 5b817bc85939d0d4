"""What a custom op writes, and what of its work a recording holds, seen by running its body on a small sample.

A schema is somebody's word: a compiler that believes it may drop or move a call that writes behind its back. A body
that touches nothing but its arguments is run once an op on tensors of a few rows, and what changed is compared with
what the schema says; then it is recorded, and work that the recording does not hold is work that no replay does
(launches on another stream, through another library). A body that reads or changes anything else of the process is
not run: nothing is known of it.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from capwise import compat
from capwise.axes import as_expr
from capwise.facts import is_tensor, storage_of, val
from capwise.ops import aten
from capwise.ops.contract import Contract

_MODULES = ("torch", "math", "operator", "numpy", "triton", "functools", "itertools")
_REFUSED = ("distributed", "save", "load", "set_default_device", "set_default_dtype", "multiprocessing", "_dynamo")
_BUILTINS = frozenset(
    "abs all any bool dict divmod enumerate filter float frozenset int isinstance len list map max min pow range "
    "reversed round set slice sorted str sum tuple type zip ValueError TypeError RuntimeError AssertionError".split()
)
_STORES = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "IMPORT_NAME"))
_ROWS = 3
_SEEN: set[torch._ops.OpOverload] = set()
_ESCAPES: dict[torch._ops.OpOverload, tuple[str, ...]] = {}
_LAYOUTS: dict[torch._ops.OpOverload, tuple[str, ...]] = {}


def learn(node: fx.Node, contract: Contract | None) -> None:
    """Notes which arguments of a custom op are written though its schema does not say so, by its contract's word or
    because its body does, and what it computes outside of a recording. An op is run at most once a process."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op in _SEEN or op.namespace in ("aten", "prims", "prim"):
        return
    _SEEN.add(op)
    said = {n for n, a in contract.arguments.items() if a.write} if contract is not None else set()
    seen = observe(node)
    found = {n for n in said if aten.has_argument(op, n)} | seen.writes
    aten.note_written(op, tuple(sorted(found - set(aten.declared_written(op)))))
    _ESCAPES[op] = tuple(sorted(seen.escapes))
    _LAYOUTS[op] = tuple(sorted(seen.layouts))


def escapes(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Names of results and arguments that the op computes by work which a recording does not hold."""
    return _ESCAPES.get(op, ())


def broken_layouts(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Names of results whose strides are not those that the op's fake kernel promises."""
    return _LAYOUTS.get(op, ())


@dataclass(frozen=True)
class Observed:
    """writes: tensor arguments that the body changed. escapes: arguments and results ("out", "out0", ...) that were
    computed by nothing that a recording holds. layouts: results whose strides are not the promised ones."""

    writes: frozenset[str] = frozenset()
    escapes: frozenset[str] = frozenset()
    layouts: frozenset[str] = frozenset()


def observe(node: fx.Node) -> Observed:
    """What the op's body does with a sample; nothing where it is not run."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    body = compat.written_op_body(op, "cpu")
    if body is None or not touches_arguments_only(body):
        return Observed()
    given = {a.name: aten.argument(op, node.args, node.kwargs, a.name) for a in op._schema.arguments}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), compat.eager_kernels():
            writes, layouts = _writes(body, given, val(node))
            return Observed(frozenset(writes), frozenset(_escapes(body, given)), frozenset(layouts))
    except Exception:  # noqa: BLE001 - a sample that cannot be made, or that the op does not take, says nothing
        return Observed()


def _call(given: Mapping[str, Any], seed: int = 0) -> tuple[_Sample, dict[str, Any]]:
    sample = _Sample(seed)
    return sample, {name: tree_map(sample.of, value) for name, value in given.items()}


def _tensors(call: Mapping[str, Any], result: Any = None) -> dict[str, torch.Tensor]:
    """Tensors by name: arguments, and results as a contract calls them."""
    outs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    named = {"out" if len(outs) == 1 else f"out{i}": t for i, t in enumerate(outs)}
    return {n: t for n, t in call.items() if isinstance(t, torch.Tensor)} | named


def _writes(body: Callable[..., Any], given: Mapping[str, Any], promised: Any) -> tuple[set[str], set[str]]:
    """Arguments that a run changed, and results that are laid out otherwise than promised."""
    sample, call = _call(given)
    tensors = _tensors(call)
    before = {n: (t._version, t.clone()) for n, t in tensors.items()}
    result = body(**call)
    shared = sample.shared(tensors)
    writes = {n for n, t in tensors.items() if _changed(t, *before[n], bits_only=n in shared)}
    said, got = _tensors({}, promised), _tensors({}, result)
    return writes, {n for n in said.keys() & got.keys() if not sample.is_laid_out(got[n], said[n])}


def _escapes(body: Callable[..., Any], given: Mapping[str, Any]) -> set[str]:
    """What no recorded launch writes and yet depends on the values of the arguments: the same in two runs on one
    sample, another in two runs on another. Memory that nobody writes holds anything."""
    _, call = _call(given)
    watch = _Watch()
    with compat.recording_launches(watch.triton), watch:
        result = body(**call)
    loose = {n for n, t in _tensors(call, result).items() if t.numel() and _place(t) not in watch.written}
    runs = []
    for seed in (0, 1, 1, 0):
        torch.manual_seed(0)
        _, again = _call(given, seed)
        before = {n: t.clone() for n, t in _tensors(again).items()}
        after = _tensors(again, body(**again))
        changed = {n for n in loose if n not in before or not _same(before[n], after[n])}
        runs.append(({n: after[n].clone() for n in loose}, changed))
    one, two, three, four = (values for values, _ in runs)
    same = {n for n in loose if _same(two[n], three[n]) and _same(one[n], four[n])}
    return {n for n in same & runs[1][1] if not _same(one[n], two[n])}


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory that launches write which a recording would hold: those that reach the dispatcher, and Triton's.
    An allocation is not a launch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = {_place(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
        if "empty" not in aten.base_name(func):
            self.written |= made - given
        targets = [aten.argument(func, args, kwargs or {}, n) for n in aten.declared_written(func)]
        self.written |= {_place(t) for t in tree_leaves(targets) if isinstance(t, torch.Tensor)}
        return out

    def triton(self, kernel: Any, grid: Any, bound: dict[str, Any]) -> None:
        compat.run_interpreted(kernel, tuple(grid(bound) if callable(grid) else grid), **bound)
        self.written |= {_place(t) for t in bound.values() if isinstance(t, torch.Tensor)}


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8))


def _changed(now: torch.Tensor, version: int, before: torch.Tensor, bits_only: bool) -> bool:
    return not _same(now, before) or not bits_only and now._version != version


class _NoSample(Exception):  # noqa: N818 - no error: there is no sample of this argument
    """An argument that no sample can be made of."""


class _Sample:
    """Small CPU tensors laid out as a graph's values are, those of one storage in one storage again."""

    def __init__(self, seed: int) -> None:
        self.sizes: dict[Any, int] = {}
        self.storages: dict[Any, torch.Tensor] = {}
        self.random = torch.Generator().manual_seed(seed)

    def of(self, value: Any) -> Any:
        known = val(value) if isinstance(value, fx.Node) else value
        if isinstance(known, torch.Tensor) and is_tensor(value):
            return self._tensor(known)
        if isinstance(known, (torch.SymInt, int)) and not isinstance(known, bool):
            return self._number(known)
        if isinstance(known, torch.device):
            return torch.device("cpu")
        if isinstance(value, fx.Node):
            raise _NoSample
        return value

    def _number(self, size: Any) -> int:
        expr = as_expr(size)
        known = {s: self.sizes.setdefault(s, _ROWS + len(self.sizes)) for s in sorted(expr.free_symbols, key=str)}
        number = expr.subs(known)
        if not number.is_Integer:
            raise _NoSample
        return int(number)

    def _tensor(self, fake: torch.Tensor) -> torch.Tensor:
        size, stride = [self._number(n) for n in fake.shape], [self._number(s) for s in fake.stride()]
        offset = self._number(fake.storage_offset())
        last = offset + sum((n - 1) * s for n, s in zip(size, stride)) + 1
        if last > 1 << 22 or last < 1:
            raise _NoSample
        home = (storage_of(fake), fake.dtype)
        base = self.storages.get(home)
        if base is None or base.numel() < last:
            # A storage that a later argument needs longer is made anew: that much sharing is lost, no write is.
            base = self.storages[home] = self._filled(last, fake.dtype)
        return base.as_strided(size, stride, offset)

    def is_laid_out(self, real: torch.Tensor, fake: torch.Tensor) -> bool:
        """Whether a result steps as its fake does; along a dimension of one element nobody steps."""
        try:
            strides = [self._number(s) for s in fake.stride()]
        except _NoSample:
            return True
        pairs = zip(real.shape, real.stride(), strides)
        return real.dim() != fake.dim() or 0 in real.shape or all(n == 1 or a == b for n, a, b in pairs)

    def _filled(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.rand(length, generator=self.random).to(dtype)
        return torch.randint(0, 2, (length,), generator=self.random).to(dtype)

    def shared(self, tensors: dict[str, torch.Tensor]) -> set[str]:
        """Arguments whose memory another argument looks at too: their version counts its writes as well."""
        homes = {n: t.untyped_storage()._cdata for n, t in tensors.items()}
        return {n for n, h in homes.items() if sum(h == other for other in homes.values()) > 1}


# ------------------------------------------------------------------------------------------------ bodies that may run
def touches_arguments_only(body: Callable[..., Any]) -> bool:
    """Whether a function, and every function of the user's that it calls by name, reads and changes nothing that
    outlives the call but its arguments: no global, closure or attribute that may change, no import, no file."""
    return _is_plain(body, set())


def _is_plain(function: Any, seen: set[types.CodeType]) -> bool:
    if not isinstance(function, types.FunctionType):
        return False
    if function.__code__ in seen:
        return True
    seen.add(function.__code__)
    cells = [c.cell_contents for c in function.__closure__ or ()]
    return all(_is_harmless(c, seen) for c in cells) and _code_is_plain(function.__code__, function, seen)


def _code_is_plain(code: types.CodeType, function: types.FunctionType, seen: set[types.CodeType]) -> bool:
    for name in _globals_read(code):
        if name in function.__globals__:
            if not _is_harmless(function.__globals__[name], seen):
                return False
        elif name not in _BUILTINS:
            return False
    if any(i.opname in _STORES for i in dis.get_instructions(code)) or set(code.co_names) & set(_REFUSED):
        return False
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return all(_code_is_plain(c, function, seen) for c in inner)


def _globals_read(code: types.CodeType) -> Iterator[str]:
    yield from (str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _is_harmless(value: Any, seen: set[types.CodeType]) -> bool:
    """A constant, a module of tensors and numbers, one of their functions, or a plain function of the user's."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return True
    if isinstance(value, tuple):
        return all(_is_harmless(v, seen) for v in value)
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _MODULES
    home = str(getattr(value, "__module__", "")).partition(".")[0]
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return value._qualified_op_name.partition("::")[0] == "aten" if hasattr(value, "_qualified_op_name") else False
    if isinstance(value, types.FunctionType) and home not in _MODULES:
        return _is_plain(value, seen)
    made = type(value).__module__.partition(".")[0]
    kernel = made == "triton" and hasattr(value, "fn")
    return kernel or isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and home in _MODULES
