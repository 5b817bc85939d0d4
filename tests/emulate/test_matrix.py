"""MFMA and WMMA: operands laid out by explicit loops after AMD's instruction set documents, the product by numpy."""

import numpy as np
import pytest
import torch

# name suffix -> torch dtype of an element, registers are filled with little-endian elements
TYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "bf16_1k": torch.bfloat16, "f32": torch.float32, "i8": torch.int8,
    "fp8_fp8": torch.float8_e4m3fnuz, "bf8_bf8": torch.float8_e5m2fnuz,
}  # fmt: skip


def random_matrix(rows, columns, dtype, seed):
    """Small integers, exact in every format and in every sum."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(-3, 4, (rows, columns)).astype(np.float32)).to(dtype)


def registers(elements):
    """torch (lanes, elements) -> {offset: uint32 per lane}."""
    raw = elements.contiguous().view(torch.uint8).numpy().view(np.uint32)
    return {i: raw[:, i].copy() for i in range(raw.shape[1])}


def operand(matrix, lanes, row, column_of, count):
    """Lane l holds ``matrix[row(l), column_of(l, j)]`` for j < count."""
    return torch.stack([torch.stack([matrix[row(l), column_of(l, j)] for j in range(count)]) for l in range(lanes)])


MFMA = [
    ("f32_32x32x8_f16", "f16", 32, 8), ("f32_16x16x16_f16", "f16", 16, 16), ("f32_32x32x8_bf16_1k", "bf16_1k", 32, 8),
    ("f32_32x32x2_f32", "f32", 32, 2), ("f32_16x16x4_f32", "f32", 16, 4), ("i32_32x32x16_i8", "i8", 32, 16),
    ("f32_16x16x32_fp8_fp8", "fp8_fp8", 16, 32), ("f32_32x32x16_bf8_bf8", "bf8_bf8", 32, 16),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "size", "depth"), MFMA, ids=[m[0] for m in MFMA])
@pytest.mark.parametrize("file", "va")
def test_mfma(execute, name, kind, size, depth, file):
    a, b = random_matrix(size, depth, TYPES[kind], 1), random_matrix(depth, size, TYPES[kind], 2)
    groups = 64 // size
    per_lane = depth // groups
    place = lambda l, j: (l // size) * per_lane + j
    a_lanes = operand(a, 64, lambda l: l % size, place, per_lane)
    b_lanes = operand(b.T, 64, lambda l: l % size, place, per_lane)
    count = size * size // 64
    v = {10 + i: w for i, w in registers(a_lanes).items()} | {20 + i: w for i, w in registers(b_lanes).items()}
    integer = name.startswith("i32")
    c = np.arange(count * 64).reshape(count, 64) % 11 - 5
    v |= {30 + i: (row.astype(np.int32 if integer else np.float32)) for i, row in enumerate(c)}
    last = lambda first, n: f"v[{first}:{first + n - 1}]" if n > 1 else f"v{first}"
    words = max(per_lane * a.element_size() // 4, 1)
    target = last(30, count) if file == "v" else f"a[0:{count - 1}]"
    moves = [f"v_accvgpr_write_b32 a{i}, v{30 + i}" for i in range(count)]
    back = [f"v_accvgpr_read_b32 v{30 + i}, a{i}" for i in range(count)]
    code = f"v_mfma_{name} {target}, {last(10, words)}, {last(20, words)}, {target}"
    out = execute(
        "\n".join([code] if file == "v" else [*moves, code, *back]), v=v, out=[f"v{30 + i}" for i in range(count)]
    )
    product = a.float().numpy().astype(np.float64) @ b.float().numpy().astype(np.float64)
    for i in range(count):
        got = out[f"v{30 + i}"].view(np.int32 if integer else np.float32)
        lane = np.arange(64)
        row = 8 * (i // 4) + 4 * (lane // 32) + i % 4 if size == 32 else 4 * (lane // 16) + i
        np.testing.assert_array_equal(got, product[row, lane % size] + c[i])


def test_mfma_with_a_constant_accumulator_and_inactive_lanes(execute):
    """EXEC does not matter to a matrix instruction."""
    ones = np.float32(1)
    body = "s_mov_b64 exec, 1\nv_mfma_f32_16x16x4_f32 v[4:7], v1, v2, 0"
    out = execute(body, v={1: np.full(64, ones), 2: np.full(64, ones)}, out=["v4", "v7"])
    assert (out["v4"].view(np.float32) == 4).all() and (out["v7"].view(np.float32) == 4).all()


def test_mfma_4x4_has_sixteen_blocks(execute):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (16, 4, 4)).astype(np.float16) for _ in range(2))  # block, row of A or column of B, K
    v = {
        10 + i: x.reshape(64, 4).view(np.uint32)[:, j].copy()
        for i, (x, j) in enumerate(((a, 0), (a, 1), (b, 0), (b, 1)))
    }
    out = execute(
        "v_mfma_f32_4x4x4_16b_f16 v[4:7], v[10:11], v[12:13], 0".replace("_16b", ""), v=v, out=["v4", "v5", "v6", "v7"]
    )
    want = np.einsum("zik,zjk->zij", a.astype(np.float64), b.astype(np.float64))
    for row in range(4):
        np.testing.assert_array_equal(out[f"v{4 + row}"].view(np.float32).reshape(16, 4), want[:, row])


def test_mfma_double(execute):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 4)), rng.standard_normal((4, 16))
    lane = np.arange(64)
    pair = lambda first, values: {
        first + i: (values.view(np.uint64) >> np.uint64(32 * i)).astype(np.uint32) for i in range(2)
    }
    v = pair(10, a[lane % 16, lane // 16]) | pair(12, b[lane // 16, lane % 16])
    names = [f"v{r}" for r in range(20, 28)]
    out = execute("v_mfma_f64_16x16x4_f64 v[20:27], v[10:11], v[12:13], 0", v=v, out=names)
    for i in range(4):
        got = (out[f"v{21 + 2 * i}"].astype(np.uint64) << np.uint64(32) | out[f"v{20 + 2 * i}"]).view(np.float64)
        np.testing.assert_allclose(got, (a @ b)[4 * i + lane // 16, lane % 16], rtol=1e-14)


WMMA = [
    ("f32_16x16x16_f16", torch.float16), ("f32_16x16x16_bf16", torch.bfloat16), ("i32_16x16x16_iu8", torch.int8),
]  # fmt: skip


@pytest.mark.parametrize("gfx", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize(("name", "dtype"), WMMA, ids=[w[0] for w in WMMA])
def test_wmma(execute, gfx, name, dtype):
    a, b = random_matrix(16, 16, dtype, 1), random_matrix(16, 16, dtype, 2)
    new = gfx == "gfx1201"
    per_lane = 8 if new else 16
    column = (lambda l, j: 8 * (l // 16) + j) if new else (lambda l, j: j)
    a_lanes, b_lanes = (operand(x, 32, lambda l: l % 16, column, per_lane) for x in (a, b.T))
    v = {10 + i: w for i, w in registers(a_lanes).items()} | {20 + i: w for i, w in registers(b_lanes).items()}
    integer = name.startswith("i32")
    c = np.arange(256).reshape(8, 32) % 11 - 5
    v |= {30 + i: row.astype(np.int32 if integer else np.float32) for i, row in enumerate(c)}
    words = per_lane * a.element_size() // 4
    signs = " neg_lo:[1,1,0]" if integer else ""
    code = f"v_wmma_{name} v[30:37], v[10:{9 + words}], v[20:{19 + words}], v[30:37]{signs}"
    out = execute(code, gfx=gfx, v=v, out=[f"v{30 + i}" for i in range(8)])
    product = a.double().numpy() @ b.double().numpy()
    lane = np.arange(32)
    for i in range(8):
        row = 8 * (lane // 16) + i if new else 2 * i + lane // 16
        got = out[f"v{30 + i}"].view(np.int32 if integer else np.float32)
        np.testing.assert_array_equal(got, product[row, lane % 16] + c[i])


def test_wmma_with_a_half_accumulator_packs_two_rows_a_register_on_gfx12(execute):
    a, b = random_matrix(16, 16, torch.float16, 1), random_matrix(16, 16, torch.float16, 2)
    column = lambda l, j: 8 * (l // 16) + j
    v = {10 + i: w for i, w in registers(operand(a, 32, lambda l: l % 16, column, 8)).items()}
    v |= {20 + i: w for i, w in registers(operand(b.T, 32, lambda l: l % 16, column, 8)).items()}
    out = execute(
        "v_wmma_f16_16x16x16_f16 v[30:33], v[10:13], v[20:23], 1.0",
        gfx="gfx1201",
        v=v,
        out=[f"v{30 + i}" for i in range(4)],
    )
    want, lane = a.double().numpy() @ b.double().numpy() + 1, np.arange(32)
    for i in range(8):
        half = (out[f"v{30 + i // 2}"] >> np.uint32(16 * (i % 2))).astype(np.uint16).view(np.float16)
        np.testing.assert_array_equal(half, want[8 * (lane // 16) + i, lane % 16].astype(np.float16))
