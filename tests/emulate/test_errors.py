"""Faults and refusals: each names the instruction, the Triton source line and the argument."""

import re
from pathlib import Path

import numpy as np
import pytest

from capwise.emulate import EmulatorError, Fault, Sparse, Unsupported, run

GFX = ("gfx942", "gfx1201")
KERNELS = Path(__file__).with_name("kernels.py")


def line_of(text):
    """The line number in kernels.py that holds ``text``."""
    (number,) = [i for i, line in enumerate(KERNELS.read_text().splitlines(), 1) if text in line]
    return number


def gather_args(kernels, **changes):
    args, _ = kernels.CASES["gather"].data(np.random.default_rng(0))
    return args | changes


@pytest.mark.parametrize("gfx", GFX)
@pytest.mark.parametrize("specialised", (False, True), ids=("plain", "specialised"))
def test_load_out_of_bounds_names_argument_and_source_line(kernels, compiled, gfx, specialised):
    binary = compiled("gather", gfx, specialised)
    args = gather_args(kernels, idx=np.full(300, 60, np.int32))  # 60 * 3 is past the 148 elements of x
    with pytest.raises(Fault) as caught:
        run(binary.asm["amdgcn"], (3,), args, shared=binary.metadata.shared)
    line = line_of("v = tl.load(x + i * stride")
    assert caught.value.location == f"kernels.py:{line}"
    assert re.match(r"(global|buffer)_load", caught.value.instruction)
    assert f"kernels.py:{line}: `{caught.value.instruction}`: load of 4 bytes out of bounds" in str(caught.value)
    assert "at byte 720, 132 bytes past the end of argument x (float32[148]) (592 bytes)" in str(caught.value)


@pytest.mark.parametrize("gfx", GFX)
def test_store_out_of_bounds_names_the_output_and_leaves_it_alone(kernels, compiled, gfx):
    binary, y = compiled("gather", gfx, False), np.zeros(200, np.float32)
    with pytest.raises(Fault, match=r"store of 4 bytes out of bounds in \d+ lane\(s\).*argument y \(float32\[200\]\)"):
        run(binary.asm["amdgcn"], (3,), gather_args(kernels, y=y), shared=binary.metadata.shared)
    assert not y.any()


def test_positional_arguments_are_named_by_position(kernels, compiled):
    args = list(gather_args(kernels, idx=np.zeros(100, np.int32)).values())
    with pytest.raises(Fault, match=r"argument 1 \(int32\[100\]\)"):
        run(compiled("gather", "gfx942", False).asm["amdgcn"], (3,), args)


def test_access_before_the_start_is_said_to_be_so(kernels, compiled):
    args = gather_args(kernels, idx=np.full(300, 1, np.int32), stride=-2)
    with pytest.raises(Fault, match="8 bytes before the start of argument x"):
        run(compiled("gather", "gfx942", False).asm["amdgcn"], (3,), args)


def test_store_to_a_read_only_array_is_refused(kernels, compiled):
    y = np.zeros(320, np.float32)
    y.flags.writeable = False
    with pytest.raises(Fault, match=r"store to argument y .* read-only"):
        run(compiled("gather", "gfx942", False).asm["amdgcn"], (3,), gather_args(kernels, y=y))


def test_inlined_code_is_located_at_the_kernels_own_line(kernels, compiled):
    """tl.max comes from Triton's standard library; the kernel's author knows the line that calls it."""
    asm = compiled("softmax", "gfx942", False).asm["amdgcn"]
    broken = asm.replace("v_max_f32", "v_frobnicate_f32")
    assert broken != asm
    with pytest.raises(Unsupported) as caught:
        run(broken, (3,), kernels.CASES["softmax"].data(np.random.default_rng(0))[0], shared=4096)
    line = line_of("e = tl.exp(v - tl.max(v, 0))")
    assert str(caught.value).startswith(f"kernels.py:{line} (in standard.py:")
    assert "`v_frobnicate_f32" in str(caught.value) and "unknown instruction" in str(caught.value)


def test_unknown_instruction_matters_only_if_it_is_reached(snippet):
    body = "\ts_branch .LBB0_2\n\tv_frobnicate_b32 v1, v2\n.LBB0_2:\n\ts_nop 0"
    report = run(snippet(body, gfx="gfx942", pointers=0, threads=64), (1,), [])
    assert report.unsupported == ("v_frobnicate_b32 v1, v2 (unknown instruction)",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v_add_co_u32_e64 v1, vcc, v2, v3 clamp", "clamp"),
        ("v_addc_co_u32_e64 v1, vcc, v2, v3, vcc clamp", "clamp"),
        ("v_mad_u64_u32 v[4:5], vcc, v2, v3, v[6:7] clamp", "clamp"),
        ("v_pk_add_u16 v1, v2, v3 clamp", "clamp"),
        ("v_mul_lo_u32 v1, v2, v3 clamp", "clamp"),
        ("v_add_u32_e64 v1, v2, v3 mul:2", "output factor"),
        ("v_and_b32_e32 v1, -v2, v3", "sign modifier"),
        ("v_dot4_i32_i8 v1, v2, v3, v4 clamp", "clamp"),
        ("global_load_dword v1, v[2:3], off tfe", "tfe"),
        ("buffer_load_dword v1, v2, s[4:7], 0 idxen", "structured buffer"),
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15] cbsz:1", "broadcast"),
        ("v_fma_f32 v1, v2, v3", "sources"),
        ("v_mov_b32_e32 v1, nonsense", "operand 'nonsense'"),
        ("s_getreg_b32 s4, hwreg(HW_REG_HW_ID)", "unknown instruction"),
        ("s_branch .LBB9_9", "not a label"),
        ("ds_swizzle_b32 v1, v2 offset:0xC020", "rotating swizzle"),
        ("global_atomic_frob v[2:3], v1, off", "unknown atomic"),
    ],
)
def test_what_is_not_modelled_is_refused_with_its_text(snippet, text, reason):
    with pytest.raises(Unsupported) as caught:
        run(snippet("\t" + text, gfx="gfx942", pointers=0, threads=64), (1,), [])
    assert caught.value.instruction == text and caught.value.location == "snippet.py:12"
    assert reason in str(caught.value)


def test_register_beyond_the_declared_ones_is_an_error(snippet):
    with pytest.raises(EmulatorError, match="a register beyond those the kernel declares"):
        run(snippet("\tv_mov_b32_e32 v1, v200", gfx="gfx942", pointers=0, threads=64), (1,), [])


def test_falling_off_the_end_is_an_error(snippet):
    asm = snippet("\ts_nop 0", gfx="gfx942", pointers=0, threads=64).replace("\ts_endpgm\n", "")
    with pytest.raises(EmulatorError, match="ran past the end"):
        run(asm, (1,), [])


# -- tensors of more than 2 GiB
def big_gather(kernels, gfx, name):
    signature = {"x": "*fp32", "rows": "*i32", "y": "*fp32", "stride": "i32"}
    return kernels.compile_kernel(getattr(kernels, name), signature, {"B": 128}, gfx, specialised=False)


ROW, STRIDE = 9000, 300_000  # element 2.7e9 of a float32 tensor: past 2**31 elements and 2**33 bytes
WINDOW = ROW * STRIDE * 4


@pytest.mark.parametrize("gfx", GFX)
def test_gather_deep_inside_a_sparse_argument(kernels, gfx):
    x, y = np.random.default_rng(3).standard_normal(128).astype(np.float32), np.zeros((2, 128), np.float32)
    asm = big_gather(kernels, gfx, "gather_rows_64").asm["amdgcn"]
    run(asm, (2,), [Sparse(WINDOW, x), np.full(2, ROW, np.int32), y, STRIDE])
    np.testing.assert_array_equal(y, np.stack([x, x]))


@pytest.mark.parametrize("gfx", GFX)
def test_only_the_window_of_a_sparse_argument_exists(kernels, gfx):
    asm = big_gather(kernels, gfx, "gather_rows_64").asm["amdgcn"]
    args = {
        "x": Sparse(WINDOW, np.zeros(128, np.float32)), "rows": np.array([ROW, 0], np.int32),
        "y": np.zeros((2, 128), np.float32), "stride": STRIDE,
    }  # fmt: skip
    with pytest.raises(Fault, match=rf"{WINDOW} bytes before the start of argument x"):
        run(asm, (2,), args)


@pytest.mark.parametrize("gfx", GFX)
def test_int32_offset_that_overflows_is_out_of_bounds(kernels, gfx):
    asm = big_gather(kernels, gfx, "gather_rows_32").asm["amdgcn"]
    args = {
        "x": Sparse(WINDOW, np.zeros(128, np.float32)), "rows": np.array([ROW], np.int32),
        "y": np.zeros((1, 128), np.float32), "stride": STRIDE,
    }  # fmt: skip
    with pytest.raises(Fault, match="before the start of argument x") as caught:
        run(asm, (1,), args)
    distance = int(re.search(r"(\d+) bytes before", str(caught.value)).group(1))
    assert distance == 2**34  # the element index came out 2**32 too small


@pytest.mark.parametrize("gfx", GFX)
def test_int32_offset_overflow_of_a_whole_tensor_hits_no_neighbour(kernels, gfx):
    """Each argument is its own island: a wrapped offset must fault even with many buffers around."""
    asm = big_gather(kernels, gfx, "gather_rows_32").asm["amdgcn"]
    args = [np.zeros(128, np.float32), np.array([2**24], np.int32), np.zeros((1, 128), np.float32), 2**8]
    run(asm, (1,), args)  # 2**32 wraps to 0
    args[3] = 2**7  # 2**31 wraps to -2**31: 8 GiB before x
    with pytest.raises(Fault, match=rf"{2**33} bytes before the start"):
        run(asm, (1,), args)
