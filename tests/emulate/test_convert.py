"""bfloat16 and 8-bit floats, against torch's conversions."""

import numpy as np
import pytest
import torch

from capwise.emulate.float_formats import Float8, f16_toward_zero, from_bf16, to_bf16

FORMATS = [
    (Float8(4, fnuz=False), torch.float8_e4m3fn),
    (Float8(4, fnuz=True), torch.float8_e4m3fnuz),
    (Float8(5, fnuz=False), torch.float8_e5m2),
    (Float8(5, fnuz=True), torch.float8_e5m2fnuz),
]
IDS = [str(dtype).removeprefix("torch.") for _, dtype in FORMATS]
CODES = np.arange(256, dtype=np.uint8)


def torch_values(dtype):
    return torch.from_numpy(CODES).view(dtype).float().numpy()


@pytest.mark.parametrize(("number", "dtype"), FORMATS, ids=IDS)
def test_every_code_decodes_as_in_torch(number, dtype):
    np.testing.assert_array_equal(number.decode(CODES), torch_values(dtype))


@pytest.mark.parametrize(("number", "dtype"), FORMATS, ids=IDS)
def test_every_code_and_every_midpoint_encodes_as_in_torch(number, dtype):
    values = torch_values(dtype)
    finite = np.sort(values[np.isfinite(values)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    points = np.concatenate(
        [finite, middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, -np.float32(np.inf))]
    )
    want = torch.from_numpy(points).to(dtype).view(torch.uint8).numpy()
    np.testing.assert_array_equal(number.encode(points), want)


@pytest.mark.parametrize(("number", "dtype"), FORMATS, ids=IDS)
def test_overflow_saturates_and_nan_stays_nan(number, dtype):
    values = torch_values(dtype)
    largest = values[np.isfinite(values)].max()
    assert number.decode(number.encode(np.array([1e9, -1e9], np.float32))).tolist() == [largest, -largest]
    assert np.isnan(number.decode(number.encode(np.array([np.nan], np.float32))))[0]


def test_bfloat16_rounds_as_in_torch():
    bits = np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32)
    x = bits.view(np.float32)
    want = torch.from_numpy(x).to(torch.bfloat16)
    got = to_bf16(x)
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(got[finite], want.view(torch.int16).numpy().view(np.uint16)[finite])
    assert np.isnan(from_bf16(got[~finite])).all()
    np.testing.assert_array_equal(from_bf16(got)[finite], want.float().numpy()[finite])


def test_half_rounded_toward_zero_never_grows():
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 100
    half = f16_toward_zero(x).view(np.float16).astype(np.float64)
    assert (np.abs(half) <= np.abs(x)).all()
    assert (
        np.abs(np.nextafter(half.astype(np.float16), np.float16(np.inf) * np.sign(x).astype(np.float16))) > np.abs(x)
    ).all()


@pytest.mark.parametrize(("gfx", "name", "dtype"), [
    ("gfx942", "fp8", torch.float8_e4m3fnuz), ("gfx942", "bf8", torch.float8_e5m2fnuz),
    ("gfx950", "fp8", torch.float8_e4m3fn), ("gfx1201", "bf8", torch.float8_e5m2),
])  # fmt: skip
def test_conversion_instructions_use_the_targets_format(execute, gfx, name, dtype):
    count = 32 if gfx == "gfx1201" else 64
    x = (np.random.default_rng(0).standard_normal((2, count)) * 4).astype(np.float32)
    codes = torch.from_numpy(x).to(dtype)
    low, high = codes.view(torch.uint8).numpy().astype(np.uint32)
    body = f"""
    v_cvt_pk_{name}_f32 v3, v1, v2
    v_cvt_pk_{name}_f32 v3, v2, v1 op_sel:[0,0,1]
    v_cvt_pk_f32_{name}_e32 v[4:5], v3
    v_cvt_pk_f32_{name}_e64 v[6:7], v3 op_sel:[1,0]"""
    out = execute(body, gfx=gfx, v={1: x[0], 2: x[1], 3: 0}, out=["v3", "v4", "v5", "v6", "v7"])
    np.testing.assert_array_equal(out["v3"], low | high << 8 | high << 16 | low << 24)
    np.testing.assert_array_equal(out["v4"].view(np.float32), codes[0].float().numpy())
    np.testing.assert_array_equal(out["v5"].view(np.float32), codes[1].float().numpy())
    np.testing.assert_array_equal([out["v6"], out["v7"]], [out["v5"], out["v4"]])  # the upper half has them swapped


def test_byte_selection(execute):
    code = np.uint32(0x38302820)
    values = torch.tensor([0x20, 0x28, 0x30, 0x38], dtype=torch.uint8)
    sdwa = "".join(f"v_cvt_f32_fp8_sdwa v{4 + i}, v1 src0_sel:BYTE_{i}\n" for i in range(4))
    out = execute(sdwa, v={1: int(code)}, out=["v4", "v5", "v6", "v7"])
    assert [float(out[f"v{4 + i}"].view(np.float32)[0]) for i in range(4)] == values.view(
        torch.float8_e4m3fnuz
    ).float().tolist()
    named = "".join(f"v_cvt_f32_fp8_e64 v{4 + i}, v1 byte_sel:{i}\n" for i in range(4))
    out = execute(named, gfx="gfx1201", v={1: int(code)}, out=["v4", "v5", "v6", "v7"])
    assert [float(out[f"v{4 + i}"].view(np.float32)[0]) for i in range(4)] == values.view(
        torch.float8_e4m3fn
    ).float().tolist()


def test_scaled_conversions_of_gfx950(execute):
    x = np.array([1.0, -3.0], np.float32)
    body = """
    v_cvt_scalef32_pk_fp8_f32 v3, v1, v2, v4
    v_cvt_scalef32_pk_f32_fp8 v[6:7], v3, v4"""
    out = execute(
        body,
        gfx="gfx950",
        v={1: np.resize(x[:1], 64), 2: np.resize(x[1:], 64), 3: 0, 4: np.full(64, 4, np.float32)},
        out=["v3", "v6", "v7"],
    )
    codes = torch.from_numpy(x / 4).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert out["v3"][0] == codes[0] | codes[1] << 8
    assert [float(out[r].view(np.float32)[0]) for r in ("v6", "v7")] == [1.0, -3.0]


def test_packed_conversions_to_halves(execute):
    x, y = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    body = "v_cvt_pk_bf16_f32 v3, v1, v2\nv_cvt_pkrtz_f16_f32 v4, v1, v2"
    out = execute(body, gfx="gfx950", v={1: x, 2: y}, out=["v3", "v4"])
    b = [
        torch.from_numpy(z).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
        for z in (x, y)
    ]
    np.testing.assert_array_equal(out["v3"], b[0] | b[1] << 16)
    np.testing.assert_array_equal(out["v4"] & 0xFFFF, f16_toward_zero(x))
