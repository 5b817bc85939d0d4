"""Arguments: aliasing, strides, sizes, wrong numbers of them."""

import numpy as np
import pytest

from capwise.emulate import EmulatorError, Sparse, run

# adds one to the first element behind the first pointer, then copies it behind the second
BODY = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_mov_b32_e32 v0, 0
	global_load_dword v1, v0, s[4:5]
	v_add_u32_e32 v1, 1, v1
	s_mov_b64 exec, 1
	global_store_dword v0, v1, s[4:5]
	global_load_dword v2, v0, s[6:7]
	v_lshlrev_b32_e32 v2, 4, v2
	global_store_dword v0, v2, s[6:7]"""


@pytest.fixture(scope="module")
def asm(snippet):
    return snippet(BODY, gfx="gfx942", pointers=2, threads=64)


def test_same_array_twice_is_one_buffer(asm):
    x = np.array([5], np.uint32)
    run(asm, (1,), [x, x])
    assert x[0] == 6 * 16


def test_overlapping_views_alias(asm):
    x = np.arange(8, dtype=np.uint32)
    run(asm, (1,), [x[2:6], x[1:3]])
    assert x.tolist() == [0, 16, 3, 3, 4, 5, 6, 7]


def test_separate_arrays_do_not_alias(asm):
    x, y = np.array([5], np.uint32), np.array([7], np.uint32)
    run(asm, (1,), [x, y])
    assert (x[0], y[0]) == (6, 7 * 16)


def test_strided_view_is_placed_as_it_lies_in_memory(asm):
    x = np.arange(12, dtype=np.uint32).reshape(3, 4)
    run(asm, (1,), [x[:, 1], np.zeros(1, np.uint32)])
    assert x[0, 1] == 2 and x[1, 1] == 5


def test_negative_strides_start_at_the_first_element(asm):
    x = np.arange(4, dtype=np.uint32)
    run(asm, (1,), [x[::-1], np.zeros(1, np.uint32)])
    assert x.tolist() == [0, 1, 2, 4]


def test_sparse_window_before_the_pointer(snippet):
    body = """
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	s_sub_u32 s4, s4, 0x40000000
	s_subb_u32 s5, s5, 0
	v_mov_b32_e32 v0, 0
	v_mov_b32_e32 v1, 3
	global_store_dword v0, v1, s[4:5]"""
    x = np.zeros(1, np.uint32)
    run(snippet(body, gfx="gfx942", pointers=1, threads=64), (1,), [Sparse(-(2**30), x)])
    assert x[0] == 3


def test_sparse_argument_must_not_overlap_another(asm):
    x = np.zeros(4, np.uint32)
    with pytest.raises(EmulatorError, match="a Sparse argument overlaps"):
        run(asm, (1,), [Sparse(2**33, x), x])


def test_sparse_offset_beyond_the_address_space_is_refused(asm):
    with pytest.raises(EmulatorError, match="no address space left"):
        run(asm, (1,), [Sparse(2**50, np.zeros(4, np.uint32)), np.zeros(1, np.uint32)])


def test_empty_array_has_no_byte_to_touch(asm):
    with pytest.raises(EmulatorError, match=r"argument 0 \(uint32\[0\]\) \(0 bytes\)"):
        run(asm, (1,), [np.zeros(0, np.uint32), np.zeros(1, np.uint32)])


@pytest.mark.parametrize("count", [1, 3])
def test_wrong_number_of_arguments_is_refused(asm, count):
    if count == 1:  # a missing trailing pointer is null, as Triton's own scratch pointers are
        with pytest.raises(EmulatorError, match="out of bounds"):
            run(asm, (1,), [np.zeros(1, np.uint32)])
        return
    with pytest.raises(EmulatorError, match="takes 2 arguments, 3 were given"):
        run(asm, (1,), [np.zeros(1, np.uint32)] * count)


def test_kinds_of_arguments_are_checked(kernels, compiled):
    asm = compiled("gather", "gfx942", False).asm["amdgcn"]
    args, _ = kernels.CASES["gather"].data(np.random.default_rng(0))
    for change, message in (
        ({"x": 3}, "argument x: a pointer is expected, got int"),
        ({"n": args["y"]}, "argument n: a number is expected, got ndarray"),
        ({"n": 2**32}, "argument n: 4294967296 does not fit 32 bits"),
        ({"n": np.int64(3)}, "argument n: 4 bytes are expected, got 8"),
    ):
        with pytest.raises(EmulatorError, match=message):
            run(asm, (3,), args | change)
