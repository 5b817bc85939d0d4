"""ATen graphs as MLIR: the text of their linalg form, and a run of it on this CPU through torch-mlir (extra `mlir`).

What is lowered has fixed sizes: a graph is traced again at the extents of given values. MLIR's values are immutable,
so a graph that writes to an argument cannot be lowered.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


class MlirError(RuntimeError):
    """A graph that torch-mlir cannot import, lower or run; the message is its first reason."""


# From linalg on tensors to machine code: values get memory, loops are written out, everything becomes LLVM's.
_PIPELINE = """builtin.module(
    func.func(tm-tensor-bufferize),
    one-shot-bufferize{copy-before-write bufferize-function-boundaries
        function-boundary-type-conversion=identity-layout-map},
    func.func(tm-tensor-to-loops,convert-linalg-to-loops,lower-affine),
    convert-scf-to-cf,
    func.func(arith-expand,convert-math-to-llvm),
    convert-math-to-libm,
    expand-strided-metadata,
    lower-affine,
    convert-bufferization-to-memref,
    finalize-memref-to-llvm,
    func.func(convert-arith-to-llvm),
    convert-func-to-llvm,
    convert-cf-to-llvm,
    convert-complex-to-llvm,
    convert-index-to-llvm,
    reconcile-unrealized-casts)"""


def is_available() -> bool:
    return importlib.util.find_spec("torch_mlir") is not None


def require() -> None:
    """Raises MlirError, saying what to install, where torch-mlir is missing."""
    if not is_available():
        raise MlirError("torch-mlir is not installed: pip install 'capwise[mlir]'")


def static_graph(run: Callable[..., Any], values: Sequence[Any]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """`run(*values)`, one tuple of tensors out, traced with fixed sizes and in ops that torch-mlir knows.

    Returns:
        the graph, and the tensors that it takes: those among `values`, dense.
    """
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    tensors = [v.detach().contiguous() for v in values if isinstance(v, torch.Tensor)]

    def on_tensors(*given: torch.Tensor) -> Any:
        rest = iter(given)
        return run(*(next(rest) if isinstance(v, torch.Tensor) else v for v in values))

    with torch.no_grad():
        graph = make_fx(on_tensors, decomposition_table=get_decomposition_table())(*tensors)
    return graph, tensors


def linalg(run: Callable[..., Any], values: Sequence[Any]) -> tuple[Any, list[torch.Tensor]]:
    """The MLIR module of `run(*values)` in linalg on tensors, and the tensors that it takes.

    Raises:
        MlirError: torch-mlir is not there, or does not know an op.
    """
    require()
    from torch_mlir import fx as importer

    with _as_mlir_error():
        graph, tensors = static_graph(run, values)
        return importer.stateless_fx_import(graph, output_type="linalg-on-tensors"), tensors


def execute(run: Callable[..., Any], values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that the lowered form of `run(*values)` computes.

    Raises:
        MlirError: it cannot be lowered or run.
    """
    module, tensors = linalg(run, values)
    results = _result_types(module)
    with _as_mlir_error():
        engine = _compiled(module)
        engine.raw_register_runtime("memrefCopy", ctypes.cast(_COPY, ctypes.c_void_p))
        engine.lookup("main")
    return _call(engine, tensors, results)


def _compiled(module: Any) -> Any:
    from torch_mlir import ir
    from torch_mlir.execution_engine import ExecutionEngine
    from torch_mlir.passmanager import PassManager

    with module.context:
        for operation in module.body.operations:
            if operation.OPERATION_NAME == "func.func":
                operation.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        PassManager.parse(_PIPELINE).run(module.operation)
    return ExecutionEngine(module)


@contextlib.contextmanager
def _as_mlir_error() -> Iterator[None]:
    """Whatever an importer of somebody else's ops may raise becomes a MlirError. The reason is often only written to
    the process's own stderr, which is kept from view here."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        failed: Exception | None = None
        try:
            yield
        except Exception as error:
            failed = error
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        sink.seek(0)
        said = sink.read().decode(errors="replace")
    if failed is not None:
        raise MlirError(_reason(failed, said)) from failed


def _reason(error: Exception, said: str) -> str:
    lines = [line.strip() for line in (*said.splitlines(), *str(error).splitlines()) if line.strip()]
    telling = [line for line in lines if "error:" in line.lower() or "not found" in line]
    return (telling or lines or [type(error).__name__])[0].rpartition("error: ")[2][:200]


# ---------------------------------------------------------------------------------------------------------- calling
_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "i1": torch.bool,
}


def _result_types(module: Any) -> list[tuple[torch.dtype, int]]:
    """(dtype, rank) of each result of `main`."""
    from torch_mlir import ir

    found = []
    with module.context:
        (main,) = [f for f in module.body.operations if f.OPERATION_NAME == "func.func"]
        for kind in main.type.results:
            tensor = ir.RankedTensorType(kind)
            name = str(tensor.element_type)
            if name not in _DTYPES:
                raise MlirError(f"a result of type {kind}")
            found.append((_DTYPES[name], tensor.rank))
    return found


def _descriptor(rank: int) -> type[ctypes.Structure]:
    """MLIR's own description of a buffer: two pointers, an offset, sizes and strides."""
    fields: list[Any] = [("allocated", ctypes.c_void_p), ("aligned", ctypes.c_void_p), ("offset", ctypes.c_int64)]
    if rank:
        fields += [("sizes", ctypes.c_int64 * rank), ("strides", ctypes.c_int64 * rank)]
    return type(f"Descriptor{rank}", (ctypes.Structure,), {"_fields_": fields})


def _call(engine: Any, tensors: Sequence[torch.Tensor], results: Sequence[tuple[torch.dtype, int]]) -> list[Any]:
    kinds = [_descriptor(rank) for _, rank in results]
    fields = [(f"r{i}", kind) for i, kind in enumerate(kinds)]
    out = type("Results", (ctypes.Structure,), {"_fields_": fields})()
    given = [_described(t) for t in tensors]
    pointers = [ctypes.pointer(ctypes.pointer(d)) for d in (out, *given)]
    engine.invoke("main", *pointers)
    lent = {t.data_ptr() for t in tensors}
    found = [_taken(getattr(out, name), dtype, rank) for (name, _), (dtype, rank) in zip(fields, results)]
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    for address in {getattr(out, name).allocated for name, _ in fields} - lent - {None, 0xDEADBEEF}:
        free(address)
    return found


def _described(tensor: torch.Tensor) -> ctypes.Structure:
    made = _descriptor(tensor.dim())()
    made.allocated = made.aligned = tensor.data_ptr()  # type: ignore[attr-defined]
    made.offset = 0  # type: ignore[attr-defined]
    for d in range(tensor.dim()):
        made.sizes[d], made.strides[d] = tensor.shape[d], tensor.stride(d)  # type: ignore[attr-defined]
    return made


class _Unranked(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int64), ("descriptor", ctypes.c_void_p)]


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(_Unranked), ctypes.POINTER(_Unranked))
def _COPY(size: int, source: Any, target: Any) -> None:  # noqa: N802 - a constant: the callback that compiled code holds
    """What MLIR's own run-time library, which the wheel leaves out, does for copies between strided buffers."""
    _bytes_of(size, target.contents)[...] = _bytes_of(size, source.contents)


def _bytes_of(size: int, unranked: _Unranked) -> Any:
    """A numpy view of a buffer, its elements' bytes as a last dimension."""
    import numpy

    made = ctypes.cast(unranked.descriptor, ctypes.POINTER(_descriptor(unranked.rank))).contents
    sizes, strides = (list(made.sizes), list(made.strides)) if unranked.rank else ([], [])
    span = (made.offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides) if n)) * size
    memory = (ctypes.c_ubyte * span).from_address(made.aligned)
    flat = numpy.frombuffer(memory, dtype=numpy.uint8)[made.offset * size :]
    return numpy.lib.stride_tricks.as_strided(flat, [*sizes, size], [*(s * size for s in strides), 1])


def _taken(made: Any, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A copy of what a descriptor describes."""
    sizes, strides = (list(made.sizes), list(made.strides)) if rank else ([], [])
    if 0 in sizes:
        return torch.empty(sizes, dtype=dtype)
    span = made.offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides))
    raw = ctypes.string_at(made.aligned, span * dtype.itemsize)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype)
    return flat.as_strided(sizes, strides, made.offset).clone()
