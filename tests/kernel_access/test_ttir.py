"""Building TTIR with no GPU and no driver."""

import pytest
import triton

from capwise.kernel_access import BuildError, rows, summarize
from capwise.kernel_access.parse import parse
from capwise.kernel_access.ttir import build, unwrap

SIGNATURE = {"src_ptr": "*fp32", "dst_ptr": "*fp32", "n": "i32"}


def test_builds_without_a_driver(kernel, monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", None, raising=False)
    text = build(kernel("masked_copy"), SIGNATURE, {"B": 16})
    assert "tt.func public @masked_copy" in text and "tt.store" in text


def test_other_targets_give_the_same_accesses(kernel):
    loads = {
        target: [op.name for block in next(iter(parse(text).values())).blocks for op in block.ops]
        for target in (("cuda", 80, 32), ("hip", "gfx942", 64))
        if (text := build(kernel("masked_copy"), SIGNATURE, {"B": 16}, target=target))
    }
    assert loads["cuda", 80, 32] == loads["hip", "gfx942", 64]


def test_a_wrong_signature_is_an_error_with_tritons_reason(kernel):
    with pytest.raises(BuildError, match="Unsupported ptr type"):
        summarize(kernel("masked_copy"), {**SIGNATURE, "src_ptr": "i32"}, {"B": 16})


def test_wrappers_are_looked_through(kernel):
    inner = kernel("masked_copy")
    tuned = triton.autotune(configs=[triton.Config({"B": 32})], key=["n"])(inner)
    ruled = triton.heuristics({"B": lambda args: 64})(inner)
    assert unwrap(tuned) is unwrap(ruled) is inner
    assert summarize(tuned).constexprs["B"] == 32 and summarize(ruled).constexprs["B"] == 64


def test_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="not a triton.jit kernel"):
        unwrap(lambda x: x)


def test_specialised_arguments_are_said(kernel):
    found = summarize(
        kernel("slot_passed"),
        {"state_ptr": "*fp32", "out_ptr": "*fp32", "idx_ptr": "*i32", "stride_state": "i32", "stride_out": "i32"},
        {"stride_idx": 1, "H": 16},
        {"stride_state": [["tt.divisibility", 16]]},
    )
    assert found.specialised == ("stride_idx == 1", "stride_state % 16 == 0")
    assert [a.stride for a in found["idx_ptr"].axes] == ["unit"]
    assert "CW401" in {h.code for h in found["idx_ptr"].hazards}


def test_without_clean_up_the_summary_says_the_same(kernel, summary):
    clean = summary("state_masked")
    raw = summarize(kernel("state_masked"), clean.signature, clean.constexprs, clean=False)
    assert [r["extent"] for r in rows(raw)] == [r["extent"] for r in rows(clean)]
