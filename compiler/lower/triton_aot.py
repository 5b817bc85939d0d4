"""Triton kernels compiled for other machines, on any machine, each with a time limit.

    rows = compile_many([KernelSpec(my_kernel, {"x": "*bf16", "n": "i32"}, {"BLOCK": 128})], TARGETS)

Compiling happens in a process of its own, since some versions of Triton abort the process on what they cannot compile;
the job at which it dies becomes a row with an error and the next process goes on after it. No variable of this process
is set. Contraction of a * b + c is off unless asked for, so that targets round alike.
"""

from __future__ import annotations

import inspect
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capwise.lower.artifacts import Artifact, ManifestError, load_manifest, write_artifacts
from capwise.lower.differences import mark_differences
from capwise.lower.row import Launch, LowerRow
from capwise.lower.targets import TARGETS, Target

__all__ = [
    "TARGETS",
    "Artifact",
    "KernelSpec",
    "Launch",
    "LowerRow",
    "ManifestError",
    "Target",
    "compile_kernel",
    "compile_many",
    "load_manifest",
    "write_artifacts",
]

# Seconds a worker may take to begin.
_STARTUP = 60.0

_RUN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from capwise.lower.aot_worker import main; main({!r}, {})"
)


@dataclass(frozen=True)
class KernelSpec:
    """A kernel with everything its compilation depends on.

    Args:
        kernel: a jitted function at the top of a module, or `module:name`, or `path/file.py:name`.
        signature: parameter -> Triton type (`*bf16`, `i32`, `fp32`), for those that are passed at launch.
        constexprs: parameter -> value, for those compiled in. Defaults of the kernel fill what is in neither.
        attrs: parameter -> 16 (what its value is divisible by), or pairs as `("tt.pointer_range", 32)`.
        num_stages: of software pipelining; None for Triton's own choice for the target.
        options: more of Triton's options, by its names.
        grid: expressions over T, R and integer arguments; recorded for whoever launches the kernel.
        label: the kernel's name in the table; needed where one kernel is compiled in two ways.
        fp_fusion: let the compiler contract a * b + c.
    """

    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: Sequence[str] = ()
    label: str = ""
    fp_fusion: bool = False

    def job(self) -> dict[str, Any]:
        """What the worker is sent. Raises ValueError for a kernel it could not find again."""
        module, name, file = _reference(self.kernel)
        pairs = {a: [("tt.divisibility", v)] if isinstance(v, int) else list(v) for a, v in self.attrs.items()}
        stages = {} if self.num_stages is None else {"num_stages": self.num_stages}
        fixed = {"num_warps": self.num_warps, "enable_fp_fusion": self.fp_fusion, **stages}
        return {
            "module": module,
            "name": name,
            "file": file,
            "label": self.label or name,
            "signature": dict(self.signature),
            "constexprs": dict(self.constexprs),
            "attrs": pairs,
            "options": {**self.options, **fixed},
            "grid": list(self.grid),
        }


def compile_kernel(spec: KernelSpec, target: Target, *, cache: Path | None = None, timeout: float = 120.0) -> LowerRow:
    """One kernel for one target; see `compile_many`."""
    return compile_many([spec], [target], cache=cache, timeout=timeout)[0]


def compile_many(
    specs: Sequence[KernelSpec], targets: Sequence[Target], *, cache: Path | None = None, timeout: float = 120.0
) -> list[LowerRow]:
    """Compiles every kernel for every target.

    Args:
        cache: a directory that keeps compiled rows; without one nothing outlives the call.
        timeout: seconds one kernel may take on one target, the import of its module included.

    Returns: rows in the order of `specs`, within one of `targets`, with what differs between targets marked (CW601). A
        kernel that does not compile, takes too long or kills the compiler is a row with `ok` False and `error`.

    Raises:
        ValueError: a kernel that is not at the top of a module.
    """
    jobs = [(i, spec, target) for i, (spec, target) in enumerate((s.job(), t) for s in specs for t in targets)]
    rows: dict[int, LowerRow] = {}
    with tempfile.TemporaryDirectory(prefix="capwise-aot-") as folder:
        while len(rows) < len(jobs):
            before = len(rows)
            _round([job for job in jobs if job[0] not in rows], rows, Path(folder), cache, timeout)
            assert len(rows) > before, "a worker that settles nothing"
    return mark_differences([rows[i] for i in range(len(jobs))])


def _reference(kernel: Any) -> tuple[str, str, str | None]:
    """(module, name, file) by which another process finds a kernel."""
    if isinstance(kernel, str):
        place, _, name = kernel.rpartition(":")
        if not place or not name:
            raise ValueError(f"kernel: expected module:name; got {kernel!r}")
        if not place.endswith(".py"):
            return place, name, None
        return f"capwise_kernels_{Path(place).stem}", name, str(Path(place).resolve())
    function = kernel
    while not inspect.isfunction(function) and hasattr(function, "fn"):
        function = function.fn
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or "<locals>" in name:
        raise ValueError(f"kernel: expected a jitted function at the top of a module; got {name or kernel!r}")
    return function.__module__, name, inspect.getsourcefile(function)


def _round(
    jobs: Sequence[tuple[int, dict[str, Any], Target]],
    rows: dict[int, LowerRow],
    folder: Path,
    cache: Path | None,
    timeout: float,
) -> None:
    """One worker over the jobs, until it is done or dies at one; that one gets a row with the error."""
    (folder / "jobs").write_bytes(pickle.dumps((list(jobs), str(folder), cache and str(cache))))
    ours, theirs = os.pipe()
    command = [sys.executable, "-c", _RUN.format(str(folder / "jobs"), theirs), json.dumps(sys.path)]
    with (folder / "stderr").open("wb") as stderr, os.fdopen(ours, "rb", buffering=0) as pipe:
        worker = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=_environment(folder), pass_fds=[theirs]
        )
        os.close(theirs)
        try:
            at, late = _follow(pipe, rows, folder, timeout)
        finally:
            worker.kill()
            code = worker.wait()
    left = [job for job in jobs if job[0] not in rows]
    if left:
        index, spec, target = next((job for job in left if job[0] == at), left[0])
        error = f"took more than {timeout:g} s" if late else _death(code, folder / "stderr")
        rows[index] = LowerRow(
            spec["label"], target.name, False, wave=target.wave, error=error, signature=spec["signature"]
        )


def _follow(pipe: Any, rows: dict[int, LowerRow], folder: Path, timeout: float) -> tuple[int | None, bool]:
    """Reads rows as they are done. Returns the job under way at the end, and whether it ran out of time."""
    at: int | None = None
    text, deadline = b"", time.monotonic() + _STARTUP + timeout
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return at, True
        data = pipe.read(4096)
        if not data:
            return at, False
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            word, index = line.decode().split()
            at = int(index)
            deadline = time.monotonic() + timeout
            if word == "done":
                rows[at] = LowerRow.load(json.loads((folder / f"{at}.json").read_text()))


def _environment(folder: Path) -> dict[str, str]:
    """The worker's: no Triton setting of this process, such as TRITON_INTERPRET, reaches it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_") or k.endswith("_PATH")}
    own = {"TRITON_CACHE_DIR": str(folder / "triton"), "TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1"}
    return {**kept, **own}


def _death(code: int, stderr: Path) -> str:
    lines = [line.strip() for line in stderr.read_text(errors="replace").splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "LLVM ERROR" in line), lines[-1] if lines else "")
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    return f"the compiler was {how}: {said}"[:400] if code < 0 else f"the compiler {how}: {said}"[:400]
