"""The process that compiles Triton kernels for other machines. It may be killed by what it compiles: old Tritons abort.

Reads a pickled list of jobs, writes one JSON row a job, and tells its parent of each by a line on a pipe.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from capwise.lower.machine_code import (
    code_size,
    cuda_resources,
    hip_resources,
    matrix_instructions,
    parameter_count,
)
from capwise.lower.row import Launch, LowerRow
from capwise.lower.targets import Target

_HIDDEN = (("global_scratch", "*i8"), ("profile_scratch", "*i8"))
_FORMAT = 1


def main(jobs_file: str, status: int) -> None:
    """Compiles every job of the file, in order."""
    jobs, out, cache = pickle.loads(Path(jobs_file).read_bytes())
    with os.fdopen(status, "w") as pipe:
        for index, spec, target in jobs:
            print(f"start {index}", file=pipe, flush=True)
            row = compile_job(spec, target, cache and Path(cache))
            (Path(out) / f"{index}.json").write_text(json.dumps(row.dump()))
            print(f"done {index}", file=pipe, flush=True)


def compile_job(spec: dict[str, Any], target: Target, cache: Path | None) -> LowerRow:
    """One kernel for one target, from the cache where it is there; a failure is a row too."""
    try:
        kernel = find_kernel(spec["module"], spec["name"], spec["file"])
        saved = cache and cache / f"{_key(kernel, spec, target)}.json"
        if saved and saved.exists():
            return LowerRow.load(json.loads(saved.read_text()))
        row = _compile(kernel, spec, target)
        if saved:
            _store(saved, row)
        return row
    except Exception as error:
        return LowerRow(
            spec["label"], target.name, False, wave=target.wave, error=_line(error), signature=spec["signature"]
        )


def find_kernel(module: str, name: str, file: str | None) -> Any:
    """The jitted function of that name, out of any autotuner or heuristics round it.

    Raises:
        LookupError: the module has no such kernel.
    """
    found: Any = _load(module, file)
    for part in name.split("."):
        found = getattr(found, part, None)
    while found is not None and not hasattr(found, "cache_key"):
        found = getattr(found, "fn", None)
    if found is None:
        raise LookupError(f"{module} has no Triton kernel named {name}")
    return found


def _load(module: str, file: str | None) -> ModuleType:
    if file is not None and module in sys.modules and getattr(sys.modules[module], "__file__", None) == file:
        return sys.modules[module]
    if module != "__main__":
        with contextlib.suppress(ImportError):
            loaded = importlib.import_module(module)
            if file is None or getattr(loaded, "__file__", None) == file:
                return loaded
    if file is None:
        return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location("capwise_kernels" if module == "__main__" else module, file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def _compile(kernel: Any, spec: dict[str, Any], target: Target) -> LowerRow:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants = _bind(kernel, spec)
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={places[name]: [list(pair) for pair in pairs] for name, pairs in spec["attrs"].items()},
    )
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        made = triton.compile(
            source, target=GPUTarget(target.backend, target.arch, target.wave), options=spec["options"]
        )
    return _row(spec, target, types, constants, made, log.getvalue())


def _bind(kernel: Any, spec: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Every parameter's type and the compiled-in values, defaults filled in."""
    given = {**spec["signature"], **spec["constexprs"], **spec["attrs"]}
    unknown = [name for name in given if name not in kernel.arg_names]
    if unknown:
        raise ValueError(f"{unknown[0]}: no such parameter; the kernel has {', '.join(kernel.arg_names)}")
    types, constants = dict(spec["signature"]), dict(spec["constexprs"])
    for param in kernel.params:
        if param.name in types or param.name in constants:
            continue
        if not param.has_default:
            raise ValueError(f"{param.name}: neither a type in signature nor a value in constexprs")
        constants[param.name] = param.default
    return {name: types.get(name, "constexpr") for name in kernel.arg_names}, constants


def _row(
    spec: dict[str, Any], target: Target, types: dict[str, str], constants: dict[str, Any], made: Any, log: str
) -> LowerRow:
    cuda = target.backend == "cuda"
    assembly, binary = (made.asm["ptx"], made.asm["cubin"]) if cuda else (made.asm["amdgcn"], made.asm["hsaco"])
    used = cuda_resources(log) if cuda else hip_resources(assembly)
    shared = max(int(made.metadata.shared), used.shared)
    fits = shared <= target.shared
    return LowerRow(
        kernel=spec["label"],
        target=target.name,
        ok=fits,
        registers=used.registers,
        spills=used.spills,
        scratch=used.scratch,
        shared=shared,
        wave=used.wave,
        matrix=matrix_instructions(assembly),
        bytes=code_size(binary),
        error=None if fits else f"needs {shared} bytes of shared memory; {target.name} has {target.shared}",
        signature=spec["signature"],
        launch=_launch(spec, types, constants, made.metadata, parameter_count(assembly), used.wave),
        asm={name: text for name, text in made.asm.items() if isinstance(text, str)},
        binary=binary,
    )


def _launch(
    spec: dict[str, Any], types: dict[str, str], constants: dict[str, Any], metadata: Any, count: int, wave: int
) -> Launch:
    visible = tuple((name, kind) for name, kind in types.items() if kind != "constexpr")
    hidden = count - len(visible)
    if not 0 <= hidden <= len(_HIDDEN):
        raise ValueError(f"the compiled kernel takes {count} parameters and the signature has {len(visible)}")
    scratch = getattr(metadata, "global_scratch_size", 0) or 0, getattr(metadata, "global_scratch_align", 1) or 1
    return Launch(
        symbol=metadata.name,
        arguments=visible + _HIDDEN[:hidden],
        constants={
            name: v if isinstance(v, (int, float, str, type(None))) else str(v) for name, v in constants.items()
        },
        grid=tuple(spec["grid"]),
        num_warps=metadata.num_warps,
        wave=wave,
        shared=metadata.shared,
        num_ctas=getattr(metadata, "num_ctas", 1),
        cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        scratch=scratch,
    )


def _key(kernel: Any, spec: dict[str, Any], target: Target) -> str:
    import triton

    parts = [_FORMAT, triton.__version__, kernel.cache_key, target.name, sorted(spec.items(), key=lambda item: item[0])]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _store(path: Path, row: LowerRow) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(row.dump()))
    part.replace(path)


def _line(error: BaseException) -> str:
    """The innermost reason, on one line: Triton puts it last, under the source it quotes."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:400]
