"""The tape: the CPU stand-in for a CUDA or HIP graph.

Recording runs the code once and keeps every launch with its addresses, geometry and scalars frozen: ATen calls as they
reach the dispatcher, Triton launches with grid and arguments. Replay runs the launches again and no host code at all.
What a device cannot record (a host sync) raises here too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from capwise import compat
from capwise.ops import aten
from capwise.runtime.pool import Pool


class CaptureError(RuntimeError):
    """An operation that cannot be recorded, at the user's line. node: of the graph that was recorded, if known."""

    node: fx.Node | None = None


# Runs one Triton launch: (kernel, grid, **bound arguments), on CPU tensors.
KernelExecutor = Callable[..., None]
_EXECUTOR: ContextVar[KernelExecutor] = ContextVar("capwise_kernel_executor", default=compat.run_interpreted)


@contextlib.contextmanager
def kernels_run_by(execute: KernelExecutor) -> Iterator[None]:
    """Inside, the Triton launches of tapes run by `execute`, in place of Triton's interpreter."""
    token = _EXECUTOR.set(execute)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)


@contextlib.contextmanager
def watched_by(watch: Callable[[Tape, int], None]) -> Iterator[None]:
    """Inside, `watch(tape, index)` is called after each launch of a replay."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextlib.contextmanager
def before_launches(act: Callable[[], None]) -> Iterator[None]:
    """Inside, `act()` is called once, when the first recording or replay begins: inputs are staged by then."""
    token = _BEFORE.set([act])
    try:
        yield
    finally:
        _BEFORE.reset(token)


def _begin() -> None:
    waiting = _BEFORE.get()
    while waiting:
        waiting.pop()()


@dataclass(frozen=True)
class Frozen:
    """A tensor argument as a recording knows it: storage and geometry, no more. number: which allocation it is of the
    pool's, None for memory from elsewhere."""

    storage: torch.UntypedStorage
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    number: int | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, pool: Pool) -> Frozen:
        """Pool memory is held by its block: a recording keeps the address, not the tensor, alive."""
        geometry = (tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        storage = tensor.untyped_storage()
        block = pool.block_of(storage)
        if block is None:
            return cls(storage, tensor.dtype, *geometry)
        return cls(block.whole.untyped_storage(), tensor.dtype, *geometry, block.number)

    def tensor(self) -> torch.Tensor:
        return torch.empty(0, dtype=self.dtype).set_(self.storage, self.offset, self.size, self.stride)


def _thaw(value: Any) -> Any:
    return value.tensor() if isinstance(value, Frozen) else value


@dataclass
class Launch:
    """One recorded launch. grid is set for Triton kernels only; node is the graph node that launched it."""

    what: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: list[Frozen]
    grid: tuple[int, ...] | None = None
    node: str = ""

    @property
    def name(self) -> str:
        return self.what.fn.__name__ if self.grid is not None else str(self.what)

    def geometry(self, place: Callable[[Frozen], str] = lambda _: "") -> tuple[Any, ...]:
        """Grid, scalars, sizes and strides: what must agree between two batches of one key; `place` names addresses."""

        def plain(value: Any) -> Any:
            return (value.size, value.stride, value.offset, place(value)) if isinstance(value, Frozen) else value

        leaves = tree_leaves((self.args, self.kwargs), is_leaf=lambda v: isinstance(v, Frozen))
        return (self.name, self.grid, *[repr(plain(v)) for v in leaves])

    def run(self) -> None:
        args = tree_map(_thaw, self.args, is_leaf=lambda v: isinstance(v, Frozen))
        kwargs = tree_map(_thaw, self.kwargs, is_leaf=lambda v: isinstance(v, Frozen))
        if self.grid is not None:
            _EXECUTOR.get()(self.what, self.grid, **kwargs)
            return
        results = [r for r in tree_leaves(self.what(*args, **kwargs)) if isinstance(r, torch.Tensor)]
        for result, out in zip(results, self.outs):
            if result.untyped_storage()._cdata != out.storage._cdata:
                out.tensor().copy_(result)


@dataclass
class Tape:
    """A recording. `launches` replay in order. results: what each graph node gave or wrote, where a graph was
    recorded, with the name of the node whose value it is."""

    launches: list[Launch] = field(default_factory=list)
    results: dict[str, list[tuple[str, Frozen]]] = field(default_factory=dict)

    def replay(self) -> None:
        watch = _WATCH.get()
        _begin()
        for i, launch in enumerate(self.launches):
            launch.run()
            if watch is not None:
                watch(self, i)


_BEFORE: ContextVar[list[Callable[[], None]] | None] = ContextVar("capwise_tape_before", default=None)
_WATCH: ContextVar[Callable[[Tape, int], None] | None] = ContextVar("capwise_tape_watch", default=None)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, tape: Tape, pool: Pool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.pool = tape, pool
        self.node: fx.Node | None = None

    def freeze(self, value: Any) -> Any:
        return Frozen.of(value, self.pool) if isinstance(value, torch.Tensor) else value

    def launched(self, launch: Launch) -> None:
        launch.node = self.node.name if self.node is not None else ""
        self.tape.launches.append(launch)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        self._refuse_syncs(func, args, kwargs)
        body = compat.custom_op_body(func, "cpu") if func.namespace not in ("aten", "prims", "prim") else None
        if body is not None:
            with self:
                return body(*args, **kwargs)
        fixed_args, fixed_kwargs = tree_map(self.freeze, (args, kwargs))
        known = {_key(a) for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)}
        out = self._in_pool(func, func(*args, **kwargs), known)
        outs = [o for o in tree_leaves(out) if isinstance(o, torch.Tensor)]
        if not _is_view(func, known, outs) and not _allocates(func):
            self.launched(Launch(func, fixed_args, fixed_kwargs, [Frozen.of(o, self.pool) for o in outs]))
        return out

    def _in_pool(self, func: Any, out: Any, known: set[int]) -> Any:
        """New tensors are moved to the pool; what an argument's memory is stays there."""
        place = self.pool.empty_like if _allocates(func) else self.pool.adopt
        moved: dict[int, torch.Tensor] = {}

        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or _key(value) in known or value.device.type != "cpu":
                return value
            if value.layout != torch.strided or not value.untyped_storage().nbytes():
                return value
            if _key(value) not in moved:
                moved[_key(value)] = place(value)
            mine = moved[_key(value)].untyped_storage()
            return torch.empty(0, dtype=value.dtype).set_(mine, value.storage_offset(), value.shape, value.stride())

        return tree_map(one, out)

    def _refuse_syncs(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        masks = [a for a in tree_leaves(args[1:2]) if isinstance(a, torch.Tensor) and a.dtype in _MASKS]
        by_mask = aten.base_name(func) in _INDEXED and masks
        dynamic = torch.Tag.dynamic_output_shape in func.tags and not _has_fixed_output(func, kwargs)
        if aten.syncs(func) or by_mask or dynamic:
            error = CaptureError(f"{func} syncs with the host and cannot be recorded{self._place()}")
            error.node = self.node
            raise error

    def _place(self) -> str:
        from capwise.trace import span_of

        span = span_of(self.node) if self.node is not None else None
        return f" at {span}" if span is not None and span.file else ""

    def triton(self, kernel: Any, grid: Any, bound: dict[str, Any]) -> None:
        fixed = tuple(grid(bound) if callable(grid) else grid)
        with torch.utils._python_dispatch._disable_current_modes():
            _EXECUTOR.get()(kernel, fixed, **bound)
        self.launched(Launch(kernel, (), {k: self.freeze(v) for k, v in bound.items()}, [], fixed))


# An index by a mask counts its true elements on the host; uint8 is the old spelling of a mask.
_MASKS = (torch.bool, torch.uint8)
_INDEXED = ("index", "index_put", "_unsafe_index_put")


def _has_fixed_output(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tagged for some calls only: an index by integers, a repeat whose total is given."""
    name = aten.base_name(func)
    return name in _INDEXED or name == "repeat_interleave" and kwargs.get("output_size") is not None


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_view(func: Any, inputs: set[int], outs: Sequence[torch.Tensor]) -> bool:
    return bool(outs) and not func._schema.is_mutable and all(_key(o) in inputs for o in outs)


def _allocates(func: Any) -> bool:
    return aten.base_name(func) in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach")


class _Driver(fx.Interpreter):
    """Runs a piece node by node, so that each launch knows the node and the line that it comes from."""

    def __init__(self, module: fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(module)
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.node = n
        result = super().run_node(n)
        if n.op == "call_function":
            found = values_of(n, result, self.env)
            self.recorder.tape.results[n.name] = [(name, self.recorder.freeze(t)) for name, t in found]
        return result


def values_of(node: fx.Node, result: Any, env: Mapping[fx.Node, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a node gave, then those that it wrote, each with the name of the node whose value it is."""
    from capwise.program import written_arguments

    written = written_arguments(node) if isinstance(node.target, torch._ops.OpOverload) else []
    found = [(node.name, r) for r in tree_leaves(result)] + [(a.name, env[a]) for a in written]
    return [(name, t) for name, t in found if isinstance(t, torch.Tensor)]


def record(run: Callable[..., Any], args: Sequence[Any], pool: Pool | None = None) -> tuple[Any, Tape]:
    """Runs `run(*args)` once and records it.

    Args:
        pool: where it allocates; one of its own if None.

    Returns:
        what it returned (pool memory, valid until the next replay) and the tape.

    Raises:
        CaptureError: it does something that a device graph cannot hold.
    """
    _begin()
    tape = Tape()
    recorder = _Recorder(tape, pool if pool is not None else Pool())
    target = _Driver(run, recorder).run if isinstance(run, fx.GraphModule) else run
    with torch.no_grad(), compat.recording_launches(recorder.triton), recorder:
        out = target(*args)
    return out, tape
