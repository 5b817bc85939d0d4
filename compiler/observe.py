"""What a custom op writes, seen by running its body on a small sample.

A schema is somebody's word: a compiler that believes it may drop or move a call that writes behind its back. A body
that touches nothing but its arguments is run once an op on tensors of a few rows, and what changed is compared with
what the schema says. A body that reads or changes anything else of the process is not run: nothing is known of it.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

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


def learn(node: fx.Node, contract: Contract | None) -> None:
    """Notes which arguments of a custom op are written though its schema does not say so: by its contract's word, or
    because its body does. An op is run at most once a process."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op in _SEEN or op.namespace in ("aten", "prims", "prim"):
        return
    _SEEN.add(op)
    said = {n for n, a in contract.arguments.items() if a.write} if contract is not None else set()
    found = {n for n in said if aten.has_argument(op, n)} | observed_writes(node)
    aten.note_written(op, tuple(sorted(found - set(aten.declared_written(op)))))


def observed_writes(node: fx.Node) -> set[str]:
    """Names of the tensor arguments that the op's body changes on a sample; nothing where it is not run."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    body = compat.written_op_body(op, "cpu")
    if body is None or not touches_arguments_only(body):
        return set()
    try:
        arguments = {a.name: aten.argument(op, node.args, node.kwargs, a.name) for a in op._schema.arguments}
        sample = _Sample()
        call = {name: tree_map(sample.of, value) for name, value in arguments.items()}
    except _NoSample:
        return set()
    tensors = {n: t for n, t in call.items() if isinstance(t, torch.Tensor)}
    before = {n: (t._version, t.clone()) for n, t in tensors.items()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), compat.eager_kernels():
            body(**call)
    except Exception:  # noqa: BLE001 - a sample that the op does not take says nothing
        return set()
    shared = sample.shared(tensors)
    return {n for n, t in tensors.items() if _changed(t, *before[n], bits_only=n in shared)}


def _changed(now: torch.Tensor, version: int, before: torch.Tensor, bits_only: bool) -> bool:
    same = torch.equal(now.contiguous().flatten().view(torch.uint8), before.contiguous().flatten().view(torch.uint8))
    return not same or not bits_only and now._version != version


class _NoSample(Exception):  # noqa: N818 - no error: there is no sample of this argument
    """An argument that no sample can be made of."""


class _Sample:
    """Small CPU tensors laid out as a graph's values are, those of one storage in one storage again."""

    def __init__(self) -> None:
        self.sizes: dict[Any, int] = {}
        self.storages: dict[Any, torch.Tensor] = {}
        self.homes: dict[int, Any] = {}
        self.random = torch.Generator().manual_seed(0)

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
        view = base.as_strided(size, stride, offset)
        self.homes[id(view)] = home
        return view

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
