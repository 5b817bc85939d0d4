"""Reading MLIR text."""

import pytest

from capwise.kernel_access.parse import ParseError, Type, parse, parse_type, split_top

TEXT = """
#loc = loc("k.py":3:0)
#loc1 = loc("helper.py":90:4)
#loc2 = loc("k.py":7:8)
#loc3 = loc("x"(#loc2))
#loc4 = loc(callsite(#loc1 at #loc3))
module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) {
    %c = arith.constant dense<[1, 2]> : tensor<2xi32> loc(#loc)
    %r = tt.get_program_id x : i32 loc(#loc4)
    %0 = arith.cmpi slt, %r, %n : i32 loc(#loc3)
    cf.cond_br %0, ^bb1, ^bb2(%r : i32) loc(#loc)
  ^bb1:  // pred: ^bb0
    tt.return loc(#loc)
  ^bb2(%1: i32 loc("a: b (c)")):  // pred: ^bb0
    %2:2 = scf.for %i = %r to %n step %1 iter_args(%a = %r, %b = %n) -> (i32, i32)  : i32 {
      scf.yield %b, %a : i32, i32 loc(#loc)
    } {tt.flatten} loc(#loc2)
    %3 = "tt.reduce"(%c) <{axis = 0 : i32}> ({
    ^bb0(%p: i32 loc("p"), %q: i32 loc("q")):
      tt.reduce.return %p : i32 loc(#loc)
    }) : (tensor<2xi32>) -> i32 loc(#loc)
    %4 = scf.if %0 -> (i32) {
      scf.yield %3 : i32 loc(#loc)
    } else {
      scf.yield %1 : i32 loc(#loc)
    } loc(#loc)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""


@pytest.fixture(scope="module")
def function():
    return parse(TEXT)["k"]


def test_blocks_and_arguments(function):
    assert [(name, source) for name, source, _ in function.args] == [("%x", "x"), ("%n", "n")]
    assert [b.label for b in function.blocks] == ["^bb0", "^bb1", "^bb2"]
    assert function.blocks[2].args == (("%1", Type((), "i32")),)


def test_successors_carry_their_values(function):
    branch = function.blocks[0].ops[-1]
    assert branch.operands == ("%0",)
    assert branch.successors == (("^bb1", ()), ("^bb2", ("%r",)))


def test_lines_are_those_of_the_outermost_caller(function):
    assert [op.line for op in function.blocks[0].ops[:3]] == [3, 7, 7]


def test_regions_results_and_operands(function):
    loop, reduce, choice, _ = function.blocks[2].ops
    assert loop.results == ("%2#0", "%2#1") and loop.operands[:4] == ("%i", "%r", "%n", "%1")
    assert [op.operands for op in loop.regions[0][0].ops] == [("%b", "%a")]
    assert reduce.name == "tt.reduce" and reduce.regions[0][0].args[0][0] == "%p"
    assert len(choice.regions) == 2


def test_types():
    assert parse_type("tensor<16x4x!tt.ptr<f32>>") == Type((16, 4), "!tt.ptr<f32>")
    assert parse_type("!tt.ptr<tensor<4xf32>>").pointee == "tensor<4xf32>"
    assert split_top("tensor<2xi32>, (i32, i32) -> i32, a") == ["tensor<2xi32>", "(i32, i32) -> i32", "a"]


@pytest.mark.parametrize("text", ["", "module {\n tt.func @k() {\n", "module {\n tt.func @k() {\n ??? \n}\n}"])
def test_what_does_not_fit_is_an_error(text):
    with pytest.raises(ParseError):
        parse(text)
