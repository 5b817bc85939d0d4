"""Assembly text: instructions, modifiers, metadata, source lines."""

import pytest

from capwise.emulate import EmulatorError
from capwise.emulate.parser import Program, parse_inst


def test_instruction_is_split_into_mnemonic_operands_and_modifiers():
    inst = parse_inst("v_mov_b32_dpp v3, v4 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0")
    assert (inst.mnemonic, inst.operands, inst.is_dpp) == ("v_mov_b32", ["v3", "v4"], True)
    assert inst.integer("row_mask") == 15 and inst.integer("row_shr") == 1 and inst.flag("bound_ctrl")


def test_lists_and_brackets_hold_together():
    inst = parse_inst("v_pk_fma_f32 v[0:1], v[2:3], s[4:5], v[0:1] op_sel_hi:[1,0,1]")
    assert inst.operands == ["v[0:1]", "v[2:3]", "s[4:5]", "v[0:1]"]
    assert inst.integers("op_sel_hi", [1, 1, 1]) == [1, 0, 1] and inst.integers("op_sel", [0, 0]) == [0, 0]


def test_swizzle_pattern_with_commas_is_one_modifier():
    assert parse_inst("ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)").word("offset") == "swizzle(SWAP,16)"


def test_modifiers_nobody_read_are_reported_but_hints_are_not():
    inst = parse_inst("global_load_dword v1, v[2:3], off offset:16 sc0 nt tfe")
    inst.integer("offset")
    assert inst.unread() == ["tfe"]


def test_renamed_instructions_get_the_older_name():
    assert parse_inst("v_max_num_f32_e32 v1, v2, v3").mnemonic == "v_max_f32"


def test_dual_issue_has_two_halves():
    inst = parse_inst("v_dual_mov_b32 v0, v1 :: v_dual_add_f32 v2, v3, v4")
    assert [(half.mnemonic, half.operands) for half in inst.pair] == [
        ("v_mov_b32", ["v0", "v1"]),
        ("v_add_f32", ["v2", "v3", "v4"]),
    ]


def test_program_has_code_labels_and_metadata(snippet):
    body = "\ts_nop 0 ; comment\n.LBB0_1:\n\ts_branch .LBB0_1\t// other comment"
    program = Program(snippet(body, gfx="gfx1201", pointers=2, threads=96))
    assert [inst.text for inst in program.instructions] == ["s_nop 0", "s_branch .LBB0_1", "s_endpgm"]
    assert program.labels == {".LBB0_1": 1}
    assert (program.gfx, program.wave_size, program.workgroup_size) == ("gfx1201", 32, 96)
    assert [(p.offset, p.size, p.kind) for p in program.parameters] == [
        (0, 8, "global_buffer"),
        (8, 8, "global_buffer"),
    ]
    assert program.descriptor["accum_offset"] == 64


def test_source_line_is_the_outermost_call():
    asm = """\t.file\t2 "/lib" "standard.py"
\t.loc\t2 293 36 is_stmt 1              ; standard.py:293:36 @[ helper.py:4:1 @[ mine.py:35:42 ] ]
\tv_nop
\t.loc\t2 0 0
\tv_nop"""
    program = Program(HEAD.replace("BODY", asm))
    assert [inst.location for inst in program.instructions] == ["mine.py:35 (in standard.py:293)"] * 2


HEAD = """\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
k:
BODY
.Lfunc_end0:
\t.amdhsa_kernel k
\t\t.amdhsa_kernarg_size 0
\t.end_amdhsa_kernel
\t.amdgpu_metadata
amdhsa.kernels:
  - .agpr_count: 0
    .max_flat_workgroup_size: 64
    .name: k
    .wavefront_size: 64
\t.end_amdgpu_metadata
"""


@pytest.mark.parametrize("text", ["", "not assembly", HEAD.replace("amdgcn_target", "target")])
def test_other_text_is_refused(text):
    with pytest.raises(EmulatorError, match="not AMDGPU assembly"):
        Program(text)


def test_missing_kernel_is_named():
    with pytest.raises(EmulatorError, match="'other'"):
        Program(HEAD, "other")
