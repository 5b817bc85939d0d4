"""Kernels compile for six machines on this one; what differs is found; what kills a compiler is contained."""

from __future__ import annotations

import ctypes
import json
import os

import pytest
import triton
import triton.language as tl

from capwise.lower.machine_code import cuda_resources, hip_resources, matrix_instructions, parameter_count
from capwise.lower.triton_aot import (
    TARGETS,
    KernelSpec,
    LowerRow,
    ManifestError,
    Target,
    compile_kernel,
    compile_many,
    load_manifest,
    write_artifacts,
)

HIP = [t for t in TARGETS if t.backend == "hip"]


@triton.jit
def gather(x, index, y, n, stride, BLOCK: tl.constexpr = 128):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(index + o, mask=o < n, other=0).to(tl.int64)
    tl.store(y + o, tl.load(x + rows * stride, mask=o < n, other=0), mask=o < n)


@triton.jit
def row_sum(x, y, COLUMNS: tl.constexpr):
    r = tl.program_id(0)
    tl.store(y + r, tl.sum(tl.load(x + r * COLUMNS + tl.arange(0, COLUMNS)), 0))


@triton.jit
def product(a, b, c, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    at = o[:, None] * SIZE + o[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def cast(x, y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o).to(y.dtype.element_ty))


GATHER = KernelSpec(
    gather, {"x": "*fp32", "index": "*i32", "y": "*fp32", "n": "i32", "stride": "i64"}, grid=("cdiv(T, BLOCK)",)
)
SPECS = [
    GATHER,
    KernelSpec(row_sum, {"x": "*fp32", "y": "*fp32"}, {"COLUMNS": 1024}, grid=("R",)),
    KernelSpec(product, {"a": "*bf16", "b": "*bf16", "c": "*fp32"}, {"SIZE": 64}, attrs={"a": 16}, grid=("1",)),
    KernelSpec(product, {"a": "*fp32", "b": "*fp32", "c": "*fp32"}, {"SIZE": 32}, label="product_fp32", grid=("1",)),
    KernelSpec(cast, {"x": "*bf16", "y": "*fp8e4nv"}, {"BLOCK": 256}, label="cast_ocp", grid=("1",)),
    KernelSpec(cast, {"x": "*bf16", "y": "*fp8e4b8"}, {"BLOCK": 256}, label="cast_fnuz", grid=("1",)),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[tuple[str, str], LowerRow]:
    before = dict(os.environ)
    made = compile_many(SPECS, TARGETS)
    assert dict(os.environ) == before
    return {(r.kernel, r.target): r for r in made}


def test_rows_say_what_a_kernel_uses(rows):
    for target in TARGETS:
        row = rows["gather", target.name]
        assert row.ok and row.registers > 0 and row.bytes > 0 and row.wave == target.wave and row.spills == 0
        assert row.launch.arguments[:5] == tuple(GATHER.signature.items())
        assert ("ptx" if target.backend == "cuda" else "amdgcn") in row.asm and row.binary[:4] == b"\x7fELF"
        assert list(row.to_dict()) == [
            *("kernel", "target", "ok", "registers", "spills", "scratch", "shared", "wave", "matrix"),
            *("bytes", "codes", "error"),
        ]
        json.dumps(row.to_dict())


def test_matrix_instructions_are_named(rows):
    def used(target):
        return rows["product", target].matrix

    assert any(m.startswith("mma.sync") for m in used("cuda:80"))
    assert any(m.startswith(("wgmma", "mma.sync")) for m in used("cuda:90"))
    assert any(m.startswith(("tcgen05.mma", "mma.sync")) for m in used("cuda:100"))
    assert all(any(m.startswith("v_mfma") for m in used(f"hip:{arch}")) for arch in ("gfx942", "gfx950"))
    assert any(m.startswith("v_wmma") for m in used("hip:gfx1201"))


def test_a_kernel_that_runs_alike_everywhere_has_no_code(rows):
    assert [r.codes for (name, _), r in rows.items() if name == "gather"] == [()] * len(TARGETS)


def test_lanes_matter_where_floats_are_summed(rows):
    marked = {t for (name, t), r in rows.items() if name == "row_sum" and r.codes}
    assert marked == {"hip:gfx942", "hip:gfx950"}
    assert "64 lanes" in rows["row_sum", "hip:gfx942"].notes[0]


def test_fp32_products_differ_between_vendors(rows):
    assert any("tf32" in note for note in rows["product_fp32", "cuda:90"].notes)
    assert not any("tf32" in note for note in rows["product_fp32", "hip:gfx950"].notes)


def test_fp8_flavours(rows):
    ocp = {t: r for (name, t), r in rows.items() if name == "cast_ocp"}
    assert {t for t, r in ocp.items() if r.codes} == {"cuda:80", "hip:gfx942"}
    assert not ocp["cuda:80"].ok and "fp8e4nv" in ocp["cuda:80"].error and ocp["hip:gfx942"].ok
    fnuz = {t: r for (name, t), r in rows.items() if name == "cast_fnuz"}
    assert {t for t, r in fnuz.items() if not r.codes} == {"hip:gfx942"}
    assert {t for t, r in fnuz.items() if not r.ok} >= {"cuda:80", "cuda:90", "cuda:100"}


def test_fusion_is_off_unless_asked_for(rows):
    assert "fma.rn" not in rows["row_sum", "cuda:90"].asm["ptx"]


BAD = """
import os, time
class Kernel:
    @property
    def cache_key(self):
        {action}
kernel = Kernel()
"""


def test_a_compiler_that_dies_or_hangs_costs_one_row(tmp_path):
    for name, action in (("dies", "os.abort()"), ("hangs", "time.sleep(600)")):
        (tmp_path / f"{name}.py").write_text(BAD.format(action=action))
    bad = {name: KernelSpec(f"{tmp_path}/{name}.py:kernel", {}) for name in ("dies", "hangs")}
    dies, good = compile_many([bad["dies"], GATHER], TARGETS[:1])
    assert not dies.ok and "SIGABRT" in dies.error and dies.codes == ("CW601",)
    assert good.ok
    hangs = compile_kernel(bad["hangs"], TARGETS[0], timeout=2)
    assert not hangs.ok and "more than 2 s" in hangs.error


def test_cache_is_a_directory_that_was_asked_for(tmp_path):
    first = compile_kernel(GATHER, TARGETS[1], cache=tmp_path)
    (saved,) = tmp_path.iterdir()
    saved.write_text(saved.read_text().replace(f'"registers": {first.registers}', '"registers": 7777'))
    assert compile_kernel(GATHER, TARGETS[1], cache=tmp_path).registers == 7777
    other = KernelSpec(gather, GATHER.signature, {"BLOCK": 64})
    assert compile_kernel(other, TARGETS[1], cache=tmp_path).registers != 7777


def test_what_cannot_be_compiled_says_why():
    assert "no such parameter" in compile_kernel(KernelSpec(gather, {"z": "i32"}), TARGETS[0]).error
    assert (
        "stride: neither a type"
        in compile_kernel(
            KernelSpec(gather, {k: v for k, v in GATHER.signature.items() if k != "stride"}), TARGETS[0]
        ).error
    )
    with pytest.raises(ValueError, match="expected module:name"):
        KernelSpec("gather", {}).job()
    with pytest.raises(ValueError, match="top of a module"):
        KernelSpec(lambda x: x, {}).job()
    with pytest.raises(ValueError, match="nearest hip:gfx942"):
        Target.parse("hip:gfx94")


def test_manifest_holds_what_a_launch_needs(rows, tmp_path):
    path = write_artifacts(rows.values(), tmp_path, {"product": ["cdiv(T, 64) * R", "2"]})
    found = {(a.kernel, a.target): a for a in load_manifest(path)}
    assert found.keys() == {key for key, row in rows.items() if row.ok}
    one = found["gather", "hip:gfx942"]
    assert one.arguments[:5] == tuple(GATHER.signature.items()) and one.file.suffix == ".hsaco"
    assert one.threads == one.num_warps * 64 and one.constants == {"BLOCK": 128}
    assert one.grid_at(T=129, R=3) == (2, 1, 1)
    assert found["product", "cuda:90"].grid_at(T=65, R=3) == (6, 2, 1)
    with pytest.raises(ManifestError, match="needs T"):
        one.grid_at(R=3)


@pytest.mark.parametrize(
    "field, value, says",
    [
        ("num_warps", "4", r"kernels\[0\].num_warps: expected int"),
        ("grid", ["open(T)"], "may hold ints, names"),
        ("grid", ["T +"], "no expression"),
        ("grid", [], "one to three"),
        ("arguments", [{"name": "x"}], r"arguments\[0\]: expected name and type"),
        ("file", "gone.cubin", "no .*gone.cubin"),
        ("sha256", "0", "not the file that was written"),
    ],
)
def test_a_bad_manifest_names_the_field(rows, tmp_path, field, value, says):
    path = write_artifacts([rows["gather", "cuda:90"]], tmp_path)
    data = json.loads(path.read_text())
    data["kernels"][0][field] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ManifestError, match=says):
        load_manifest(path)


def test_no_manifest_and_no_grid(rows, tmp_path):
    with pytest.raises(ManifestError, match="No such file"):
        load_manifest(tmp_path / "manifest.json")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ManifestError, match="version 1"):
        load_manifest(tmp_path / "manifest.json")
    with pytest.raises(ManifestError, match="no grid"):
        write_artifacts([compile_kernel(KernelSpec(gather, GATHER.signature), TARGETS[0])], tmp_path)


def test_resources_are_read_off_text():
    log = "32 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\nUsed 40 registers, 128 bytes smem"
    used = cuda_resources(log)
    assert (used.registers, used.spills, used.scratch, used.shared) == (40, 3, 32, 128)
    text = """v_mfma_f32_16x16x16_bf16 a, b
    v_mfma_f32_16x16x16_bf16 c, d
    .amdgpu_metadata
      - .value_kind: global_buffer
      - .value_kind: by_value
    .group_segment_fixed_size: 64
    .private_segment_fixed_size: 20
    .sgpr_spill_count: 1
    .vgpr_count: 9
    .vgpr_spill_count: 4
    .wavefront_size: 64
    """
    used = hip_resources(text)
    assert (used.registers, used.spills, used.scratch, used.shared, used.wave) == (9, 5, 20, 64, 64)
    assert matrix_instructions(text) == ("v_mfma_f32_16x16x16_bf16",) and parameter_count(text) == 2


@pytest.mark.gpu
def test_a_cubin_launches_from_its_manifest(tmp_path):
    import torch

    major, minor = torch.cuda.get_device_capability()
    target = Target.parse(f"cuda:{major}{minor}")
    (kernel,) = load_manifest(write_artifacts([compile_kernel(GATHER, target)], tmp_path))
    x = torch.randn(50, 3, device="cuda")
    index, y = torch.randint(50, (300,), device="cuda", dtype=torch.int32), torch.zeros(300, device="cuda")
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, index, y)]
    values = [*pointers, ctypes.c_int32(300), ctypes.c_int64(3), *[ctypes.c_void_p(0)] * (len(kernel.arguments) - 5)]
    cuda, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), kernel.file.read_bytes()) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, kernel.symbol.encode()) == 0
    packed = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
    grid = kernel.grid_at(T=300)
    assert cuda.cuLaunchKernel(function, *grid, kernel.threads, 1, 1, kernel.shared, None, packed, None) == 0
    torch.cuda.synchronize()
    assert torch.equal(y, x[index.long(), 0])
