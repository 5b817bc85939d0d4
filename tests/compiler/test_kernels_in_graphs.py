"""Models that launch their own Triton kernels: traced without a device, understood from the kernels alone.

Nothing here is declared. Each known answer is checked twice: in the report, and by replay on the tape.
"""

from __future__ import annotations

import pytest
import torch
import triton
from torch.library import triton_op, wrap_triton

import capwise
from capwise import compat
from capwise.backend import check_case, programs_of
from capwise.compat import no_device
from capwise.models import kernel_cases as k
from capwise.runtime.kernel_call import call_of
from capwise.testing import withheld_contracts

tl = k.tl


@k.jit
def rounds_kernel(starts_ptr, out_ptr, requests, ROUNDS: tl.constexpr, SKIP: tl.constexpr):
    t = tl.program_id(0)
    low = 1
    high = 1 + requests
    for _ in tl.static_range(ROUNDS):
        middle = (low + high) // 2
        before = tl.load(starts_ptr + middle, mask=middle <= requests, other=0) <= t
        low = tl.where(before, middle + 1 + SKIP, low)
        high = tl.where(before, high, middle)
    tl.store(out_ptr + t, low - 1)


class WrittenOut(torch.nn.Module):
    """The request of every token, by a search whose rounds are written out."""

    def __init__(self, rounds, skip=0):
        super().__init__()
        self.rounds, self.skip = rounds, skip

    def forward(self, x, starts):
        out = torch.empty(x.shape[0], dtype=torch.int32)
        rounds_kernel[(x.shape[0],)](starts, out, starts.shape[0] - 1, ROUNDS=self.rounds, SKIP=self.skip)
        return out


@k.jit
def any_kernel(x_ptr, weight_ptr, out_ptr, tokens, B: tl.constexpr, H: tl.constexpr):
    """Adds x * weight to rows of a positive first element; looks at none where no row of the tile has one."""
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    mine = (tl.load(x_ptr + t * H, mask=t < tokens, other=0.0) > 0) & (t < tokens)
    total = tl.zeros((B, H), tl.float32)
    if tl.max(mine.to(tl.int32), 0) > 0:
        x = tl.load(x_ptr + at, mask=mine[:, None], other=0.0)
        total += x * tl.load(weight_ptr + h)[None, :]
    tl.store(out_ptr + at, total, mask=(t < tokens)[:, None])


class AnyRow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(1.0, k.WIDTH + 1))

    def forward(self, x):
        out = torch.empty_like(x)
        any_kernel[(-(-x.shape[0] // 4),)](x, self.weight, out, x.shape[0], B=4, H=k.WIDTH)
        return out


def _found(report, code):
    return [d for d in report if d.code == code]


def _patched():
    return torch.utils._triton.has_triton, triton.runtime.driver._active, triton.runtime.jit.JITFunction.run


@triton_op("kernels_in_graphs::rows", mutates_args={})
def rows_op(state: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    out = state.new_empty(slots.shape[0], state.shape[1])
    wrap_triton(k.slot_passed_kernel)[(slots.shape[0],)](
        state, slots, out, slots.stride(0), state.stride(0), out.stride(0), H=k.WIDTH
    )
    return out


class ByOp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.randn(k.SLOTS, k.WIDTH))

    def forward(self, x, table):
        return x + 1, rows_op(self.state, table[:, 0])


class Optioned(torch.nn.Module):
    """Launch options and an autotuned kernel: the first configuration speaks for all."""

    tuned = triton.autotune([triton.Config({"B": 4}, num_warps=2), triton.Config({"B": 8})], key=[])(k.scale_kernel)

    def forward(self, x):
        out, again = torch.empty_like(x), torch.empty_like(x)
        k.scale_kernel[(-(-x.shape[0] // 4),)](x, out, x.shape[0], B=4, H=k.WIDTH, num_warps=1)
        self.tuned[lambda meta: (triton.cdiv(x.shape[0], meta["B"]),)](x, again, x.shape[0], H=k.WIDTH)
        return out + again


# ------------------------------------------------------------------------------------------------------------- tracing
def test_tracing_patches_nothing_for_good():
    before = _patched()
    report = check_case(k.case(k.Searches(), "x", "starts"))
    assert report.pieces == 1 and _patched() == before


def test_what_tracing_patches_is_put_back_when_it_raises():
    class Breaks(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("not today")

    before = _patched()
    model = capwise.compile(Breaks(), inputs={"x": ("T", k.WIDTH)})
    with pytest.raises((RuntimeError, AssertionError)):
        model(x=torch.randn(3, k.WIDTH))
    assert _patched() == before
    for context in (compat.tracing_kernels, compat.eager_kernels):
        with pytest.raises(ZeroDivisionError), context():
            raise ZeroDivisionError
        assert _patched() == before


def test_with_a_device_nothing_is_patched(monkeypatch):
    monkeypatch.setattr(no_device, "has_device", lambda: True)
    before = _patched()
    with compat.tracing_kernels(), compat.eager_kernels():
        assert _patched() == before


def test_a_launch_is_an_op_of_its_own_with_its_numbers_in_sight():
    (program,) = programs_of(k.case(k.Gathers(True), "x", "table"))
    (node,) = [n for n in program.module.graph.nodes if call_of(n.target) is not None]
    assert [a.name for a in node.target._schema.arguments if a.alias_info is not None] == ["out_ptr"]
    assert node.target._schema.arguments[-1].name == "grid_z"
    assert call_of(node.target).kernel is k.slot_passed_kernel
    assert "capwise_kernel.slot_passed_kernel.default(" in program.text()


@pytest.mark.parametrize("make", [lambda: k.case(ByOp(), "x", "table"), lambda: k.case(Optioned(), "x")])
def test_triton_ops_and_tuned_kernels_are_opened(make):
    result = capwise.verify(make())
    assert result.ok and not result.report.seams and result.report.pieces == 1


def test_uncaptured_runs_and_direct_calls_launch_in_the_interpreter():
    case = k.case(k.Gathers(True), "x", "table")
    model = capwise.compile(case.model, inputs=case.inputs, capacity=case.capacity, lower="eager")
    for batch in (*case.batches, case.batches[0]):
        out = model(**batch)[1]
        assert torch.equal(out, case.model.state[batch["table"][:, 0].long()])


def test_a_piece_with_a_launch_lowers_or_falls_back():
    case = k.case(k.Tokens("scale"), "x")
    model = capwise.compile(case.model, inputs=case.inputs, capacity=case.capacity, lower="inductor")
    for batch in case.batches:
        assert torch.equal(model(**batch), batch["x"] * 2)


# ------------------------------------------------------------------------------------------------------ known answers
def test_a_slot_load_that_ignores_the_stride_gets_a_contiguous_copy():
    case = k.case(k.Gathers(False), "x", "table", reference=k.Gathers(False, dense=True))
    with withheld_contracts():
        safe, unsafe = capwise.verify(case), capwise.verify(case, unsafe=True)
    assert safe.ok and not unsafe.ok
    (found,) = _found(safe.report, "CW401")
    assert found.repair == "contiguous copy" and "slot_unit_kernel" in found.op
    assert safe.report.copies == 1 and not safe.report.seams


def test_with_the_stride_passed_nothing_is_copied():
    result = capwise.verify(k.case(k.Gathers(True), "x", "table"))
    assert result.ok and "CW401" not in result.report.codes() and not result.report.copies


@pytest.mark.parametrize("passed", [(True, False), (False, True)])
def test_one_kernel_of_two_repaired_still_raises_it_on_the_other(passed):
    case = k.case(k.Gathers(*passed), "x", "table", reference=k.Gathers(*passed, dense=True))
    result = capwise.verify(case)
    assert result.ok and ["slot_unit" in d.op for d in _found(result.report, "CW401")] == [True]
    assert result.report.copies == 1


def test_a_search_over_a_frozen_request_count_is_filled_with_the_last_boundary():
    case = k.case(k.Searches(), "x", "starts")
    safe, unsafe = capwise.verify(case), capwise.verify(case, unsafe=True)
    assert safe.ok and not unsafe.ok
    assert safe.report.codes() == {"CW101", "CW201"}
    assert {d.repair for d in _found(safe.report, "CW201")} == {"fill last"} and not safe.report.seams


def test_a_search_that_is_written_out_is_filled_like_any_other():
    case = k.case(WrittenOut(3), "x", "starts")
    safe, unsafe = capwise.verify(case), capwise.verify(case, unsafe=True)
    assert safe.ok and not unsafe.ok
    assert {d.repair for d in _found(safe.report, "CW201")} == {"fill last"} and not safe.report.seams


def test_a_search_with_too_few_rounds_for_the_captured_rows_is_a_seam():
    """Four rows are captured, and two rounds settle three: eager finds every row of the steps that have no more."""
    case = k.case(WrittenOut(2), "x", "starts")
    result = capwise.verify(case)
    (found,) = [d for d in _found(result.report, "CW101") if d.repair == "seam"]
    assert result.ok and [s.code for s in result.report.seams] == ["CW101"]
    assert found.label == "2 rounds settle 3 rows; 4 are captured"


def test_a_search_that_is_not_proved_is_a_seam_that_says_so():
    result = capwise.verify(k.case(WrittenOut(3, skip=1), "x", "starts"))
    (found,) = _found(result.report, "CW001")
    assert any("starts_ptr" in note for note in found.notes) and len(result.report.seams) == 1


@pytest.mark.parametrize("clamp", [True, False])
def test_a_row_that_a_padded_token_does_not_find_is_captured_only_where_it_exists(clamp):
    result = capwise.verify(k.case(k.Scales(clamp), "x", "starts", "slots"))
    assert result.ok and bool(result.report.seams) is not clamp
    if not clamp:
        (found,) = _found(result.report, "CW001")
        assert any("may read past the end of scale_ptr in a padded program" in note for note in found.notes)


@pytest.mark.parametrize("null", [0, -1])
def test_a_null_checked_write_is_proved_to_do_nothing_for_padded_rows(null):
    case = k.case(k.Writes(null), "x", "rows", "slots")
    safe, unsafe = capwise.verify(case), capwise.verify(case, unsafe=True)
    assert safe.ok and not unsafe.ok
    assert "CW204" not in safe.report.codes() and not safe.report.seams
    (found,) = _found(safe.report, "CW201")
    assert found.repair == "null slot fill" and any(note.startswith("proved for padded") for note in found.notes)


def test_an_unchecked_write_goes_to_the_null_row_that_the_user_names():
    case = k.case(k.Writes(None), "x", "rows", "slots", null=0)
    safe, unsafe = capwise.verify(case), capwise.verify(case, unsafe=True)
    assert safe.ok and not unsafe.ok
    assert [d.repair for d in _found(safe.report, "CW204")] == ["null slot fill"] and not safe.report.seams


def test_an_unchecked_write_with_no_null_row_is_a_seam():
    result = capwise.verify(k.case(k.Writes(None), "x", "rows", "slots"))
    assert result.ok and [s.code for s in result.report.seams] == ["CW204"]


@pytest.mark.parametrize("programs", [1, 2])
def test_an_in_place_shift_is_out_of_order(programs):
    (found,) = _found(check_case(k.case(k.Shifts(programs), "x", "slots")), "CW304")
    assert found.verdict == "refuted" and found.severity == "error" and found.repair is None


def test_a_slot_times_a_row_size_in_32_bits_names_its_bound():
    (found,) = _found(check_case(k.case(k.Narrow(), "x", "slots")), "CW403")
    assert found.verdict == "assumed" and found.label == "needs stride_state*max(idx_ptr) < 2**31"
    assert found.repair == "bound guard"


# --------------------------------------------------------------------------------------------------- rows and numbers
@pytest.mark.parametrize("what", ["scale", "previous"])
def test_what_stays_within_earlier_rows_is_captured(what):
    result = capwise.verify(k.case(k.Tokens(what), "x"))
    assert result.ok and not result.report.seams


def test_a_branch_taken_for_any_row_of_a_tile_leaves_rows_alone_as_long_as_weights_are_finite():
    result = capwise.verify(k.case(AnyRow(), "x"))
    assert result.ok and not result.report.seams
    assert any("any_kernel" in said and "finite" in said for said in result.report.assumptions)


SEAMS = {
    "divide": ("CW102", "host value computed from T is frozen at capture"),
    "centre": ("CW001", "the kernel was read: values of several rows are combined in one program"),
    "total": ("CW001", "the kernel was read: the loop at line"),
    "next": ("CW001", "is of another row of x_ptr than the program's own"),
}


@pytest.mark.parametrize("what", SEAMS)
def test_what_does_not_is_a_seam_that_says_why(what):
    code, why = SEAMS[what]
    case = k.case(k.Tokens(what), "x")
    safe, unsafe = capwise.verify(case), capwise.verify(case, unsafe=True)
    assert safe.ok and not unsafe.ok
    assert [s.code for s in safe.report.seams] == [code]
    (found,) = _found(safe.report, code)
    assert any(why in text for text in (found.message, *found.notes))
