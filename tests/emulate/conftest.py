"""Compiled Triton kernels, each compiled once a session, and a harness for hand-written instructions."""

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from capwise.emulate import run

_HEADER = """
	.amdgcn_target "amdgcn-amd-amdhsa--{gfx}"
snippet:
	.file	1 "/somewhere" "snippet.py"
	.loc	1 12 3
{body}
	s_endpgm
.Lfunc_end0:
	.amdhsa_kernel snippet
		.amdhsa_group_segment_fixed_size {lds}
		.amdhsa_private_segment_fixed_size {scratch}
		.amdhsa_kernarg_size {kernarg}
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_next_free_vgpr 128
		.amdhsa_accum_offset 64
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
{args}
    .max_flat_workgroup_size: {threads}
    .name:           snippet
    .wavefront_size: {lanes}
...
	.end_amdgpu_metadata
"""


@cache
def _kernels() -> ModuleType:
    """kernels.py under a name of its own: Triton looks the module of a kernel up."""
    name = "emulate_test_kernels"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("kernels.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _compiled(name: str, gfx: str, specialised: bool) -> Any:
    return _kernels().CASES[name].compile(gfx, specialised=specialised)


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    return _kernels()


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Any]:
    """compiled(case name, gfx, specialised) -> what Triton made of it."""
    return _compiled


def _wave(gfx: str) -> int:
    return 64 if gfx.startswith("gfx9") else 32


def _text(body: str, *, gfx: str, pointers: int, threads: int, lds: int = 1024, scratch: int = 0) -> str:
    args = "\n".join(
        f"      - .offset:         {8 * i}\n        .size:           8\n        .value_kind:     global_buffer"
        for i in range(pointers)
    )
    return _HEADER.format(
        gfx=gfx, body=body, lds=lds, scratch=scratch, kernarg=8 * pointers, args=args, threads=threads, lanes=_wave(gfx)
    )


@pytest.fixture(scope="session")
def snippet() -> Callable[..., str]:
    """snippet(body, gfx=, pointers=, threads=) -> the assembly of a kernel with that body and pointer parameters."""
    return _text


@pytest.fixture(scope="session")
def launch() -> Callable[..., None]:
    """launch(body, arrays, gfx=) runs one wavefront with the arrays' pointers in s[4:5], s[6:7], ..."""

    def launch_one(body: str, arrays: list[np.ndarray], gfx: str = "gfx942") -> None:
        pointers = f"s_load_dwordx{2 * len(arrays)} s[4:{3 + 2 * len(arrays)}], s[0:1], 0x0"
        code = "\n".join("\t" + line.strip() for line in [pointers, *body.strip().splitlines()])
        run(_text(code, gfx=gfx, pointers=len(arrays), threads=_wave(gfx)), (1,), arrays)

    return launch_one


@pytest.fixture(scope="session")
def execute() -> Callable[..., dict[str, np.ndarray]]:
    """Run a few instructions in one wavefront.

    execute(body, v={1: lanes}, s={4: number}, out=["v3", "s6", "vcc", "scc"], gfx=...) sets the registers, runs the
    body and gives back what ``out`` names: uint32 per lane for a vector register, a Python int for a scalar, bool per
    lane for vcc. v100 and up and s80 and up belong to the harness; EXEC is all lanes unless the body changes it.
    """
    return _execute


def _execute(
    body: str,
    *,
    gfx: str = "gfx942",
    v: dict[int, Any] | None = None,
    s: dict[int, int] | None = None,
    out: list[str],
    lds: int = 1024,
    scratch: int = 0,
) -> dict[str, Any]:
    lanes, v, s = _wave(gfx), v or {}, s or {}
    inputs = np.zeros((max(len(v), 1), lanes), np.uint32)
    for row, values in enumerate(v.values()):
        inputs[row] = np.uint32(values) if isinstance(values, int) else np.asarray(values).view(np.uint32)
    words = {"v": 1, "s": 1, "scc": 1, "vcc": lanes // 32}
    rows = [name for name in out for _ in range(words[name.rstrip("0123456789")])]
    outputs = np.zeros((len(rows), lanes), np.uint32)
    row_bytes = 4 * lanes
    everywhere = f"s_mov_b{lanes} exec{'' if lanes == 64 else '_lo'}, -1"
    prologue = ["s_load_dwordx4 s[80:83], s[0:1], 0x0", everywhere, "v_lshlrev_b32_e32 v100, 2, v0"]
    prologue += [f"global_load_dword v{r}, v100, s[80:81] offset:{i * row_bytes}" for i, r in enumerate(v)]
    prologue += [f"s_mov_b32 s{r}, {value & 0xFFFFFFFF:#x}" for r, value in s.items()]
    epilogue = ["s_cselect_b32 s84, 1, 0", everywhere]
    place = 0
    for name in out:
        sources = {"scc": ["s84"], "vcc": ["vcc_lo", "vcc_hi"][: lanes // 32]}.get(name, [name])
        for source in sources:
            epilogue += [f"v_mov_b32_e32 v101, {source}"]
            epilogue += [f"global_store_dword v100, v101, s[82:83] offset:{place * row_bytes}"]
            place += 1
    lines = [*prologue, *body.strip().splitlines(), *epilogue]
    code = "\n".join("\t" + line.strip() for line in lines)
    run(_text(code, gfx=gfx, pointers=2, threads=lanes, lds=lds, scratch=scratch), (1,), [inputs, outputs])
    return _collect(out, rows, outputs, lanes)


def _collect(out: list[str], rows: list[str], outputs: np.ndarray, lanes: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in out:
        found = outputs[[i for i, row in enumerate(rows) if row == name]]
        if name == "vcc":
            mask = sum(int(word[0]) << (32 * i) for i, word in enumerate(found))
            results[name] = np.array([(mask >> lane) & 1 for lane in range(lanes)], bool)
        else:
            results[name] = found[0] if name.startswith("v") else int(found[0][0])
    return results
