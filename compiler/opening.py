"""Opaque custom ops opened: what their Python bodies launch for sample calls, and the contract read off those kernels.

A sample shows numbers, not expressions. Sizes, scalars and grids of several samples of different extents are fitted to
expressions over the extents; what does not fit is a reason not to derive. So the word for it is *assumed*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.utils._pytree import tree_leaves

from capwise import compat
from capwise.derive import Derivation, derive_launch
from capwise.kernel_access import BuildError
from capwise.labels import bind_extents, normalise
from capwise.launch import Launch, Layout
from capwise.lower.launches import triton_type
from capwise.ops import contract as c
from capwise.ops.launch import device_tiles
from capwise.runtime.kernel_call import GRID, KernelCall, kernel_call

Sample = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Seen:
    """One launch of one sample. names: what the op calls the memory behind each pointer argument; None: its own."""

    kernel: Any
    grid: tuple[int, ...]
    bound: Mapping[str, Any]
    names: Mapping[str, str | None]


@dataclass
class OpenedLaunch:
    """One launch of the op, over all samples: what was read off its kernel, by the kernel's names and the op's."""

    derivation: Derivation
    names: Mapping[str, str | None]


@dataclass
class Opened:
    """What was found inside an op. contract: None where something was not understood; `reasons` say what."""

    op: torch._ops.OpOverload
    launches: list[OpenedLaunch] = field(default_factory=list)
    contract: c.Contract | None = None
    reasons: list[str] = field(default_factory=list)


def open_op(op: torch._ops.OpOverload, samples: Sequence[Sample], axes: Mapping[str, Any]) -> Opened:
    """Opens a custom op by what its body launches.

    Args:
        samples: calls over CPU tensors, at three or more different extents of every symbol. Nothing is computed. Each
            is made twice: an op that launches something else the second time is not opened.
        axes: argument name -> axis labels, as in `inputs={...}`; an argument left out changes with no batch.

    Raises:
        ValueError: the op has no Python body, or the samples launch different kernels.
        InputError: samples that contradict the labels.
    """
    body = compat.custom_op_body(op, "cpu")
    if body is None:
        raise ValueError(f"{op}: expected an op with a Python body (torch.library.custom_op)")
    calls = [_bind(op, args, kwargs) for args, kwargs in samples]
    seen = [_record(op, body, call) for call in calls]
    found = Opened(op)
    for i, (one, call) in enumerate(zip(seen, calls)):
        if (what := _differs(one, _record(op, body, call))) is not None:
            found.reasons.append(f"CW103: sample {i} called again {what}: the op keeps state from call to call")
            return found
    if len({tuple(one.kernel for one in launches) for launches in seen}) != 1:
        raise ValueError(f"{op}: expected samples that launch the same kernels in the same order")
    specs = normalise(axes)
    extents = [bind_extents(specs, call) for call in calls]
    for launches in zip(*seen):
        _launch(found, launches, extents)
    if not found.launches:
        found.reasons.append("its body launches no Triton kernel")
    if not found.reasons:
        found.contract = _merge(found, axes)
    return found


def _bind(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(zip((a.name for a in op._schema.arguments), args)) | dict(kwargs)
    missing = {a.name: a.default_value for a in op._schema.arguments if a.name not in given and a.has_default_value()}
    return {**given, **missing}


def _record(op: torch._ops.OpOverload, body: Any, call: Mapping[str, Any]) -> list[Seen]:
    launches: list[tuple[Any, Any, dict[str, Any]]] = []
    with torch.no_grad(), device_tiles(), compat.recording_launches(lambda *one: launches.append(one)):
        result = body(**call)
    names = {key: n for n, v in call.items() if isinstance(v, torch.Tensor) for key in _places(v)}
    outs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    for i, out in enumerate(outs):
        for key in _places(out):
            names.setdefault(key, "out" if len(outs) == 1 else f"out{i}")
    seen = []
    for kernel, grid, bound in launches:
        fixed = tuple(grid(bound) if callable(grid) else grid)
        tensors = {n: v for n, v in bound.items() if isinstance(v, torch.Tensor)}
        mine = {n: next((names[key] for key in _places(t) if key in names), None) for n, t in tensors.items()}
        seen.append(Seen(kernel, (*fixed, 1, 1)[:3], bound, mine))
    return seen


def _differs(one: Sequence[Seen], other: Sequence[Seen]) -> str | None:
    """How two calls with the same arguments differ in what they launch."""
    if [s.kernel for s in one] != [s.kernel for s in other]:
        names = [s.kernel.fn.__name__ for s in other]
        return f"launches {', '.join(names) if names else 'nothing'}"
    for a, b in zip(one, other):
        name = a.kernel.fn.__name__
        if a.grid != b.grid:
            return f"launches {name} over {b.grid}, not {a.grid}"
        for argument, value in a.bound.items():
            mine, theirs = (_plain(v) for v in (value, b.bound.get(argument)))
            if mine != theirs:
                return f"launches {name} with {argument}={theirs}, not {mine}"
    return None


def _plain(value: Any) -> Any:
    return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value


def _places(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    """What a tensor is known by: where it starts, else whose memory it looks at."""
    storage = tensor.untyped_storage()._cdata
    return [(storage, int(tensor.storage_offset())), (storage,)]


# ------------------------------------------------------------------------------------------------------------ fitting
def fit(values: Sequence[int], extents: Sequence[Mapping[str, int]]) -> sympy.Expr | None:
    """An expression over the extents that gives these values: a number, `a*S + b`, or the values as a function of one
    extent that never falls; None where no single extent decides them."""
    if len(set(values)) == 1:
        return sympy.Integer(values[0])
    loose: list[sympy.Expr] = []
    for name in extents[0]:
        pairs = sorted({(e[name], v) for e, v in zip(extents, values)})
        if len({x for x, _ in pairs}) < len(pairs) or len(pairs) < 2:
            continue
        symbol = sympy.Symbol(name, integer=True, positive=True)
        (x0, y0), (x1, y1) = pairs[0], pairs[-1]
        slope = sympy.Rational(y1 - y0, x1 - x0)
        if slope.is_Integer and all(y - y0 == slope * (x - x0) for x, y in pairs):
            return slope * symbol + (y0 - slope * x0)
        if all(a[1] <= b[1] for a, b in zip(pairs, pairs[1:])):
            loose.append(sympy.Function("steps")(symbol))
    return loose[0] if len(loose) == 1 else None


def _launch(found: Opened, seen: Sequence[Seen], extents: Sequence[Mapping[str, int]]) -> None:
    """One launch over all samples; compiled-in values are those of the last sample."""
    last = seen[-1]
    try:
        call = _call(last)
        made = _fitted(call, seen, extents)
    except (BuildError, ValueError, TypeError) as error:
        found.reasons.append(f"{last.kernel.fn.__name__}: {error}")
        return
    symbols = {sympy.Symbol(n, integer=True, positive=True): n for n in extents[0]}
    derivation = derive_launch(call, lambda: Launch(call, *made, symbols), symbols)
    found.launches.append(OpenedLaunch(derivation, last.names))
    found.reasons += [f"{call.name}: {reason}" for reason in derivation.reasons]
    # The kernel of the last sample is the one that was read: its rounds are for that sample's rows.
    most = {symbol: extents[-1][name] for symbol, name in symbols.items()}
    for need in (n for n in derivation.rounds if not n.suffice(most)):
        where = f"the search of {need.arg} at line {need.line}"
        found.reasons.append(f"{call.name}: {where} has {need.rounds} rounds, too few for {need.room.subs(most)} rows")


def _call(seen: Seen) -> KernelCall:
    signature, fixed = {}, {}
    for parameter in seen.kernel.params:
        value = seen.bound[parameter.name]
        if parameter.is_constexpr or value is None:
            fixed[parameter.name] = value
        else:
            signature[parameter.name] = triton_type(parameter.name, value)
    options = {n: v for n, v in seen.bound.items() if n not in seen.kernel.arg_names}
    return kernel_call(seen.kernel, signature, fixed, options)


def _fitted(
    call: KernelCall, seen: Sequence[Seen], extents: Sequence[Mapping[str, int]]
) -> tuple[dict[str, Layout], dict[str, Any], list[sympy.Expr]]:
    def fitted(what: str, values: Sequence[int]) -> Any:
        expr = fit(values, extents)
        if expr is None:
            raise ValueError(f"{what} takes the values {list(values)}, which no single extent explains")
        return int(expr) if expr.is_Integer else expr

    tensors = {}
    for name in call.pointers:
        ranks = range(seen[0].bound[name].dim())
        shape = [fitted(f"a size of {name}", [s.bound[name].shape[d] for s in seen]) for d in ranks]
        strides = [fitted(f"a stride of {name}", [s.bound[name].stride(d) for s in seen]) for d in ranks]
        tensors[name] = Layout(tuple(shape), tuple(strides))
    whole = [n for n in call.scalars if isinstance(seen[0].bound[n], int)]
    scalars = {n: sympy.sympify(fitted(n, [int(s.bound[n]) for s in seen])) for n in whole}
    grid = [sympy.sympify(fitted(GRID[k], [s.grid[k] for s in seen])) for k in range(3)]
    return tensors, {**dict.fromkeys(call.scalars), **scalars}, grid


# ------------------------------------------------------------------------------------------------------------ merging
def _merge(found: Opened, axes: Mapping[str, Any]) -> c.Contract | None:
    """One contract out of those of the launches, in the op's names."""
    rows: dict[str, c.Axes] = {}
    requests: dict[str, c.Axes] = {}
    strides: dict[str, c.Stride] = {}
    parts = [one.derivation.contract for one in found.launches]
    for one, part in zip(found.launches, parts):
        assert part is not None
        _check_launch(found, one, part)
        for name, stride in part.strides.items():
            if (mine := one.names.get(name)) is not None and not mine.startswith("out"):
                strides[mine] = c.Contiguous() if isinstance(stride, c.Contiguous) else strides.get(mine, stride)
        for kind, into in ((part.rows, rows), (part.requests, requests)):
            for name, value in kind.items():
                if (mine := one.names.get(name)) is not None:
                    into[mine] = _joined(found, mine, into.get(mine), _renamed(value, one, axes.get(mine)))
    if found.reasons:
        return None
    for name in rows.keys() & requests.keys():
        both = _joined(found, name, rows.pop(name), requests[name])
        requests[name] = both
    known = [p for p in parts if p is not None]
    written = {a.name for a in found.op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    return c.Contract(
        rows=rows, requests=requests, locality=max((p.locality for p in known), key=c.LOCALITIES.index),
        strides=strides, state=tuple(sorted(written)), overlap=any(p.overlap for p in known),
        offset_bits=min(p.offset_bits for p in known), source="derived",
    )  # fmt: skip


def _check_launch(found: Opened, one: OpenedLaunch, part: c.Contract) -> None:
    """What an op's contract cannot say of one of its launches."""
    name = one.derivation.call.name
    if part.host:
        found.reasons.append(f"{name}: {', '.join(part.host)} must not be frozen")
    for write in one.derivation.unproved:
        found.reasons.append(f"{name}: padded programs may write {write.arg}: {'; '.join(write.path[:1])}")
    for pointer, axes in part.arguments.items():
        if one.names.get(pointer) is None and not isinstance(axes.tail, c.Any):
            found.reasons.append(f"{name}: the tail of {pointer}, which the op makes itself, matters")


def _renamed(axes: c.Axes, one: OpenedLaunch, labels: Any) -> c.Axes:
    into = one.names.get(axes.into) if axes.into is not None else None
    known = tuple(getattr(labels, "axes", labels)) if labels is not None else axes.axes
    return replace(axes, axes=known, into=into)


def _joined(found: Opened, name: str, one: c.Axes | None, other: c.Axes) -> c.Axes:
    """What two launches ask of one argument, together."""
    if one is None:
        return other
    asked = [a for a in (one, other) if not isinstance(a.tail, c.Any)]
    if len({a.tail for a in asked}) > 1:
        found.reasons.append(f"two launches want different tails of {name}")
    return replace(asked[0] if asked else other, write=one.write or other.write)
