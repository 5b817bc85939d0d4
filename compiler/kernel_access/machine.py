"""Runs a kernel's TTIR on expressions instead of numbers: every path, every loop once.

Straight-line operations are in `arith` and `access`; here stand regions, branches and calls. Loops are in `loops`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from capwise.kernel_access import access, loops
from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.arith import MEANINGS, bits_of, is_int
from capwise.kernel_access.cfg import Conditions, Flow, flow
from capwise.kernel_access.neutral import asks_any, is_neutral
from capwise.kernel_access.parse import Block, Func, Op, Type, parse_type, split_top
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.seen import Seen, Watcher
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly
from capwise.kernel_access.values import Bool, Case, Int, Ptr, Shape, Unknown, Value, choose, lanes

_MEMORY: dict[str, Callable[[Machine, Op, Sequence[Value], Type], Value | None]] = {
    "tt.load": access.load,
    "tt.store": access.store,
    "tt.atomic_rmw": access.atomic,
    "tt.atomic_cas": access.atomic,
    "tt.make_tensor_ptr": access.make_block,
    "tt.advance": access.advance,
    "tt.int_to_ptr": access.from_int,
    "tt.make_tensor_descriptor": access.make_descriptor,
    "tt.make_tensor_desc": access.make_descriptor,
}
_BARRIERS = frozenset({"gpu.barrier", "ttg.barrier", "ttg.local_barrier"})
_PURE = ("arith.", "math.", "tt.reduce", "tt.scan", "tt.dot", "tt.fp_to_fp", "tt.clampf", "tt.precise_", "tt.mulhiui",
         "tt.gather", "tt.histogram", "tt.cat", "tt.split", "tt.assert", "tt.print", "tt.unsplat", "ub.poison",
         "tt.bitcast", "tt.map_elementwise")  # fmt: skip
_EXACT_PURE = frozenset({"tt.return", "llvm.intr.assume"})


class Unfollowed(Exception):
    """The kernel as a whole cannot be followed; the message says what stands in the way."""


class Machine:
    """State of one run: SSA values, conditions that hold, loops that enclose, and what was found."""

    def __init__(self, functions: Mapping[str, Func], unsigned: frozenset[str] = frozenset()) -> None:
        self.space = Space()
        self.functions = functions
        self.unsigned = unsigned
        self.env: dict[str, Value] = {}
        self.accesses: list[Access] = []
        self.watcher = Watcher()
        self.seen = Seen()
        # The operation behind each name; of truth values, what asks whether any is true.
        self.made: dict[str, Op] = {}
        self.any_of: dict[Node, Node] = {}
        self.loops: dict[int, Loop] = {}
        self.unknown: dict[str, None] = {}
        self.assumed: list[tuple[tuple[Node, ...], Node]] = []
        self.guards: list[Node] = []
        self.inside: list[int] = []
        self.step = 0
        self.barriers = 0
        self.muted = 0
        self._fresh = 0
        self._calls: list[str] = []
        self._counts: dict[str, Counter[str]] = {}

    # what handlers use --------------------------------------------------------------------------------------------

    def get(self, name: str) -> Value:
        """The value of an SSA name."""
        value = self.env.get(name)
        if value is None:
            raise Unfollowed(f"a value that is used before it is made: {name}")
        return value

    def note(self, reason: str) -> None:
        """Something that is not followed."""
        self.unknown[reason] = None

    def note_access(self, found: Access) -> None:
        """Keep an access, unless this is a trial run of a loop body."""
        if not self.muted:
            self.accesses.append(found)

    def fresh(self) -> int:
        """A number not used before."""
        self._fresh += 1
        return self._fresh

    def truth(self, shape: Shape) -> Bool:
        """A truth value of which nothing is known."""
        return Bool(self.space.make("obool", self.fresh(), *lanes(self.space, shape)), shape)

    def opaque(self, kind: Type) -> Value:
        """A value of this type of which nothing is known."""
        if kind.elem == "i1":
            return self.truth(kind.shape)
        if is_int(kind):
            leaf = self.space.leaf("opaque", self.fresh(), *lanes(self.space, kind.shape))
            return Int(leaf, kind.shape, bits_of(kind))
        if kind.pointee is not None:
            return Ptr((Case(self.space.true, None, Poly.of(0)),), kind.shape, kind.pointee)
        return Unknown(kind.shape)

    def guards_with(self, node: Node) -> tuple[Node, ...]:
        """Conditions that hold here, and one more."""
        parts = self.space.both([*self.guards, node])
        if parts is self.space.true:
            return ()
        return tuple(a for a in parts.args if isinstance(a, Node)) if parts.op == "and" else (parts,)

    @contextmanager
    def under(self, *nodes: Node) -> Iterator[None]:
        """Within: these conditions hold."""
        depth = len(self.guards)
        self.guards += [n for n in nodes if n is not self.space.true]
        try:
            yield
        finally:
            del self.guards[depth:]

    def rewrite(self, rewriter: Rewriter) -> None:
        """Replace parts of every expression that was found."""
        self.accesses = [a.mapped(rewriter) for a in self.accesses]
        self.seen = self.seen.mapped(rewriter.poly, rewriter.truth)
        self.assumed = [(tuple(map(rewriter.truth, where)), rewriter.truth(node)) for where, node in self.assumed]
        for loop in self.loops.values():
            loop.rewrite(rewriter)

    def _any(self, value: Int) -> Int | None:
        """The largest of 0 and 1: 1 where a condition holds in any lane."""
        node = value.poly.node
        if node is None or node.op != "ite" or [p.const for p in node.polys()] != [1, 0]:
            return None
        leaf = self.space.leaf("opaque", self.fresh(), low=0, high=1)
        assert leaf.node is not None and isinstance(node.args[0], Node)
        self.any_of[leaf.node] = node.args[0]
        return Int(leaf)

    def judge_any(self, op: Op, node: Node) -> None:
        """A branch taken where any lane needs it, which leaves the others as they are, combines no lanes."""
        test = self.made.get(op.operands[0])
        leaves = [n for n in node.leaves if n in self.any_of]
        if self.muted or test is None or node.op != "ge" or len(leaves) != 1 or node.leaves != set(leaves):
            return
        mine = self.any_of[leaves[0]]
        asked = next((n for n in test.operands if (o := self.made.get(n)) is not None and asks_any(o)), None)
        if asked is None or self._uses(asked) != 1 or self._uses(op.operands[0]) != 1:
            return
        others = [o for block in op.regions[1] for o in block.ops] if len(op.regions) > 1 else []
        without = others[0].operands if len(others) == 1 and others[0].name == "scf.yield" else ()
        plain = len(without) == len(op.results) and len(others) <= 1
        if plain and is_neutral(op.regions[0], without, mine, self.made, self.env):
            self.watcher.combined.pop(asked, None)
            self.watcher.finite[op.line] = None

    def _uses(self, name: str) -> int:
        """How often the function that runs uses a name."""
        function = self._calls[-1]
        if function not in self._counts:
            self._counts[function] = Counter(_operands(self.functions[function].blocks))
        return self._counts[function][name]

    # functions and blocks -----------------------------------------------------------------------------------------

    def run(self, names: Sequence[str]) -> None:
        """Execute the public function; `names` are the run-time arguments in order."""
        function = next(iter(self.functions.values()))
        args = [self._argument(name, kind) for name, (_, _, kind) in zip(names, function.args, strict=True)]
        self.call(function, args)

    def _argument(self, name: str, kind: Type) -> Value:
        if kind.pointee is not None and not kind.pointee.startswith("tensor"):
            return Ptr((Case(self.space.true, name, Poly.of(0)),), (), kind.pointee)
        if is_int(kind):
            return Int(self.space.leaf("sym", name, low=0 if name in self.unsigned else None), (), bits_of(kind))
        if kind.elem == "i1":
            return Bool(self.space.negate(self.space.eq(self.space.leaf("sym", name, low=0, high=1))))
        return Unknown(reason=f"descriptor@{name}" if "tensordesc" in kind.elem else "")

    def call(self, function: Func, args: Sequence[Value]) -> list[Value]:
        """Execute a function on values; its results."""
        if len(self._calls) > 16:
            raise Unfollowed("calls nested too deep")
        self._calls.append(function.name)
        caller, self.env = self.env, {}
        for (name, _, _), value in zip(function.args, args, strict=True):
            self.env[name] = value
        results = self.blocks(function.blocks)
        self.env = caller
        self._calls.pop()
        return results

    def blocks(self, blocks: Sequence[Block]) -> list[Value]:
        """Execute a region of one or more blocks; what it yields or returns."""
        if len(blocks) == 1:
            return self.block(blocks[0])
        graph = flow(blocks)
        if graph.cyclic:
            raise Unfollowed("branches that go back (no structured loop)")
        conditions = Conditions(self.space, graph)
        returned: list[Value] = []
        phis: dict[str, dict[str, list[Value]]] = {}
        for label in graph.order:
            condition = conditions.enter(label)
            block = graph.blocks[label]
            self._bind_phis(block, phis.get(label, {}), conditions)
            with self.under(condition):
                results = self.block(block)
            self._branch(block, graph, conditions, phis)
            if block.ops[-1].name == "tt.return":
                pairs = zip(returned, results, strict=True)
                returned = [choose(self.space, condition, new, old) for old, new in pairs] if returned else results
        return returned

    def _bind_phis(self, block: Block, incoming: dict[str, list[Value]], conditions: Conditions) -> None:
        for position, (name, _) in enumerate(block.args):
            merged: Value | None = None
            for source, values in incoming.items():
                value = values[position]
                when = conditions.arrival(source, block.label)
                merged = value if merged is None else choose(self.space, when, value, merged)
            if merged is not None:
                self.env[name] = merged

    def _branch(
        self, block: Block, graph: Flow, conditions: Conditions, phis: dict[str, dict[str, list[Value]]]
    ) -> None:
        """Conditions and block arguments on the edges out of a block."""
        last = block.ops[-1]
        space = self.space
        if not last.successors:
            return
        taken = [space.true]
        if len(last.successors) == 2:
            test = self.get(last.operands[0])
            node = test.node if isinstance(test, Bool) else self.truth(()).node
            taken = [node, space.negate(node)]
        for (label, names), condition in zip(last.successors, taken, strict=True):
            values = [self.get(n) for n in names]
            old = phis.setdefault(label, {}).get(block.label)
            if old is not None:
                values = [choose(space, condition, new, was) for new, was in zip(values, old, strict=True)]
            phis[label][block.label] = values
            conditions.edge(block.label, label, condition)

    def block(self, block: Block) -> list[Value]:
        """Execute one block; the operands of its terminator."""
        for op in block.ops:
            if op.name in ("scf.yield", "tt.return", "scf.condition"):
                return [self.get(n) for n in op.operands]
            if not op.name.startswith("cf."):
                self.execute(op)
        return []

    # operations ---------------------------------------------------------------------------------------------------

    def execute(self, op: Op) -> None:
        """Give the results of an operation their values."""
        self.step += 1
        args = [self.env[n] for n in op.operands if n in self.env]
        structured = _STRUCTURED.get(op.name)
        if structured is not None:
            values = structured(self, op)
        else:
            values = self._simple(op)
        if not self.muted:
            self.watcher.watch(op, args, values)
        for name, value in zip(op.results, values, strict=True):
            self.env[name], self.made[name] = value, op

    def _simple(self, op: Op) -> list[Value]:
        kinds = result_types(op)
        args = [self.get(n) for n in op.operands if n in self.env or op.name in MEANINGS]
        first = kinds[0] if kinds else Type((), "")
        value: Value | None = None
        if op.name in MEANINGS:
            value = MEANINGS[op.name](self.space, op, args, first)
        elif op.name in _MEMORY:
            value = _MEMORY[op.name](self, op, args, first)
        elif op.name.startswith("tt.descriptor") or op.name.startswith("tt.experimental_descriptor"):
            value = access.descriptor(self, op, args, first)
        else:
            value = self._special(op, args, first)
        if len(kinds) == 1:
            return [value if value is not None else self.opaque(first)]
        return [self.opaque(kind) for kind in kinds]

    def _special(self, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
        if op.name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = "xyz".index(op.text[0])
            if op.name == "tt.get_program_id":
                return Int(self.space.leaf("pid", axis, low=0))
            return Int(self.space.leaf("grid", axis, low=1))
        if op.name in _BARRIERS:
            self.barriers += 1
        elif asks_any(op) and isinstance(args[0], Int) and is_int(kind):
            return self._any(args[0])
        elif op.name == "llvm.intr.assume" and isinstance(args[0], Bool):
            self.assumed.append((tuple(self.guards), args[0].node))
        elif op.name == "tt.bitcast" and isinstance(args[0], Ptr):
            return _recast(args[0], kind)
        elif op.name not in _EXACT_PURE and not op.name.startswith(_PURE):
            self.note(f"{op.name} (line {op.line})")
        return None


def _operands(blocks: Sequence[Block]) -> Iterator[str]:
    """Names that operations use, those in regions too."""
    for op in (op for block in blocks for op in block.ops):
        yield from op.operands
        yield from (name for _, names in op.successors for name in names)
        for region in op.regions:
            yield from _operands(region)


def _recast(pointer: Ptr, kind: Type) -> Value | None:
    """A pointer to elements of another type of the same size points at the same element."""
    one = {"i1": "8", "i8": "8"}
    old, new = (one.get(t, "".join(c for c in t if c.isdigit())[:2]) for t in (pointer.pointee, kind.pointee or ""))
    return Ptr(pointer.cases, kind.shape, kind.pointee or "") if old == new else None


def result_types(op: Op) -> list[Type]:
    """Types of the results, read off the text."""
    if not op.results:
        return []
    if "->" in op.types or "->" in op.text:
        text = (op.types if "->" in op.types else op.text).rpartition("->")[2]
        kinds = [parse_type(t) for t in split_top(text.strip().removeprefix("(").removesuffix(")"))]
        return kinds if len(kinds) == len(op.results) else [kinds[0]] * len(op.results)
    if not op.types:
        return [Type((), "i1")]
    if " to " in op.types:
        return [parse_type(op.types.rpartition(" to ")[2])]
    parts = [parse_type(t) for t in split_top(op.types)]
    if op.name in ("tt.load", "tt.atomic_cas"):
        pointee = parts[0].pointee or ""
        return [parse_type(pointee) if pointee.startswith("tensor<") else Type(parts[0].shape, pointee)]
    if op.name in ("arith.cmpi", "arith.cmpf"):
        return [Type(parts[0].shape, "i1")]
    return [parts[-1] if op.name == "arith.select" else parts[0]] * len(op.results)


def _if(machine: Machine, op: Op) -> list[Value]:
    """scf.if: both sides, each under its condition; results chosen by it."""
    test = machine.get(op.operands[0])
    node = test.node if isinstance(test, Bool) else machine.truth(()).node
    with machine.under(node):
        yes = machine.blocks(op.regions[0])
    no: list[Value] = []
    if len(op.regions) > 1:
        with machine.under(machine.space.negate(node)):
            no = machine.blocks(op.regions[1])
    machine.judge_any(op, node)
    if not op.results:
        return []
    return [choose(machine.space, node, a, b) for a, b in zip(yes, no, strict=True)]


def _call(machine: Machine, op: Op) -> list[Value]:
    """tt.call: the function's body, on these operands."""
    name = op.text.partition("@")[2].partition("(")[0].strip('"')
    function = machine.functions.get(name)
    if function is None:
        raise Unfollowed(f"call of {name}, whose body is not here")
    return machine.call(function, [machine.get(n) for n in op.operands])


_STRUCTURED: dict[str, Callable[[Machine, Op], list[Value]]] = {
    "scf.if": _if,
    "scf.for": loops.for_loop,
    "scf.while": loops.while_loop,
    "tt.call": _call,
}
