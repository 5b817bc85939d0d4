"""A contract read off a kernel and the arguments that it is launched with.

A launch is understood iff every access of a batch argument is of the program's own row, or of rows that boundaries,
lengths or slots name, and every number that changes with the batch does no more than end those rows. Whatever else a
kernel does is a reason not to derive a contract, and the launch is a seam.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import sympy
from torch import fx

from capwise.axes import as_expr
from capwise.derived_scalars import check_scalars
from capwise.derived_strides import Strides, dense_strides
from capwise.kernel_access import prove_sentinel
from capwise.kernel_access.access import Access
from capwise.kernel_access.hazards import null_values
from capwise.kernel_access.sentinel import Index, Tail
from capwise.kernel_access.symbolic import Node, Poly, addressing
from capwise.launch import ENDS, Launch, Row
from capwise.ops import contract as c
from capwise.runtime.kernel_call import GRID, KernelCall, call_of


@dataclass(frozen=True)
class Unproved:
    """Padded programs may write this argument, through this slot argument if any; path: where and when."""

    arg: str
    slot: str | None
    path: tuple[str, ...]


@dataclass(frozen=True)
class Rounds:
    """A search that ends in so many rounds iff `room` is below 2**rounds."""

    arg: str
    line: int
    rounds: int
    room: sympy.Expr

    def suffice(self, most: Mapping[sympy.Symbol, int]) -> bool:
        """Whether they do at these extents."""
        room = self.room.subs(most)
        return bool(room.is_Integer and room < 2**self.rounds)


@dataclass
class Derivation:
    """What was read off one launch.

    contract: None where the launch is not understood; `reasons` say why. strides: what the kernel takes for granted of
    them. nulls: slot values with which nothing is written. in_range: slot arguments whose every value is used as a row
    of another argument. unproved: writes that no tail value rules out. proofs: what keeps padded programs from writing.
    rounds: searches that need so many rounds.
    """

    call: KernelCall
    contract: c.Contract | None = None
    reasons: list[str] = field(default_factory=list)
    nulls: dict[str, tuple[int, ...]] = field(default_factory=dict)
    in_range: dict[str, str] = field(default_factory=dict)
    unproved: list[Unproved] = field(default_factory=list)
    proofs: tuple[str, ...] = ()
    strides: Mapping[str, c.Stride] = field(default_factory=dict)
    rounds: list[Rounds] = field(default_factory=list)


def derive(node: fx.Node, names: Mapping[sympy.Symbol, str] | None = None) -> Derivation:
    """The contract of a kernel node.

    Args:
        names: the symbols that batches decide; all of the graph's where None.
    """
    call = call_of(node.target)
    assert call is not None
    return derive_launch(call, lambda: Launch.of(call, node, names), names or {})


def derive_launch(call: KernelCall, make: Callable[[], Launch], names: Mapping[sympy.Symbol, str]) -> Derivation:
    """The contract of one launch; `make` gives it, where the kernel can be read."""
    found = Derivation(call, reasons=list(call.summary.unknown))
    if found.reasons:
        return found
    _Deriver(make(), found, names).run()
    return found


class _Deriver:
    def __init__(self, launch: Launch, found: Derivation, names: Mapping[sympy.Symbol, str]) -> None:
        self.launch, self.found, self.names = launch, found, names
        self.roles = launch.view.roles
        self.rows: dict[str, list[tuple[Access, Row]]] = {}
        self.fixed_writes: list[Access] = []
        self.strides = Strides(launch, found.reasons)
        # What counts the rows: programs, or the lanes of a tile that every program has whole.
        self.by: Index = "pid"

    def run(self) -> None:
        """Collects rows, then asks each question; any reason on the way leaves the contract open."""
        pointers = self.launch.call.pointers
        mistaken: dict[str, c.Stride] = {n: c.Contiguous() for n in pointers if self.strides.is_mistaken(n)}
        for name in mistaken:
            tensor = self.launch.tensors[name]
            self.launch.tensors[name] = replace(tensor, strides=dense_strides(tensor.shape))
        strides = {n: s for n in self.launch.call.pointers if (s := self.strides.need(n)) is not None} | mistaken
        self.found.strides = strides
        for name in self.launch.call.pointers:
            self._classify(name)
        self.by = "lane" if self._has_all_rows() else "pid"
        self._agree()
        self._searches()
        host = check_scalars(self.launch, self.rows, self.found.reasons)
        if self.found.reasons:
            return
        arguments = {name: self._axes(name) for name in self.launch.call.pointers}
        self._slots(arguments)
        self._prove(arguments)
        if self.found.reasons:
            return
        requests = {n: a for n, a in arguments.items() if n in self.roles}
        rows = {n: a for n, a in arguments.items() if n not in requests}
        written = tuple(n for n, a in arguments.items() if a.write)
        codes = {(h.code, h.verdict) for row in self.launch.call.summary.arguments for h in row.hazards}
        self.found.contract = c.Contract(
            rows=rows, requests=requests, locality=self._locality(), strides=strides, host=tuple(sorted(host)),
            state=written, overlap=("CW304", "refuted") in codes, source="derived",
            offset_bits=32 if any(code == "CW403" for code, _ in codes) else 64,
        )  # fmt: skip

    def _reason(self, text: str) -> None:
        self.found.reasons.append(text)

    # ------------------------------------------------------------------------------------------------ rows
    def _classify(self, name: str) -> None:
        """Own rows of a batch argument; what is read elsewhere must be named by memory or by a search."""
        launch, batch = self.launch, self.launch.is_batch(name)
        if sum(bool(launch.depends(as_expr(s))) for s in launch.tensors[name].shape) > 1:
            self._reason(f"{name} changes along more than one dimension")
            return
        for access in (a for a in launch.view.accesses if a.arg == name):
            row = launch.row(name, access) if batch else None
            if row is not None:
                self.rows.setdefault(name, []).append((access, row))
            elif access.kind != "load":
                self.fixed_writes.append(access)
            elif batch and self.roles.get(name) != "boundary" and not self._is_named(access):
                self._reason(f"line {access.line} reads rows of {name} other than the program's own")
            elif not launch.stays_inside(name, access):
                self._reason(f"line {access.line} may read past the end of {name} in a padded program")

    def _is_named(self, access: Access) -> bool:
        """Rows that a loaded value or the end of a search names: live ones, for a live program."""
        return any(n.op == "load" or n.op in ENDS for n in addressing(access.poly))

    def _has_all_rows(self) -> bool:
        """Every program has all rows, a lane each; how many programs there are then does not say what is touched."""
        if any(row.pids for found in self.rows.values() for _, row in found):
            return False
        highs = [high for row in self.launch.call.summary.arguments for high in row.extents]
        return all(high is not None and not self.launch.open_in(*high.leaves) & set(GRID) for high in highs)

    def _agree(self) -> None:
        """All own rows of one axis are the same row; reads may be of earlier ones."""
        groups: dict[frozenset[sympy.Symbol], list[tuple[str, Access, Row]]] = {}
        for name, found in self.rows.items():
            if self.roles.get(name) == "boundary":
                continue
            for access, row in found:
                self._check_grid(name, access, row)
                groups.setdefault(self.launch.depends(self.launch.size(name)), []).append((name, access, row))
        for group in groups.values():
            self._check_group(group)

    def _check_grid(self, name: str, access: Access, row: Row) -> None:
        launch = self.launch
        wanted = launch.depends(launch.size(name))
        over = [launch.depends(launch.grid[k]) for k in sorted(row.pids)]
        whole = self.by == "lane" and not row.pids and bool(row.lanes)
        if not whole and (frozenset().union(*over) != wanted or any(o and o != wanted for o in over)):
            self._reason(f"the grid does not run over the rows of {name} (line {access.line})")
        padded = {k for k, g in enumerate(launch.grid) if launch.depends(g) and not whole}
        if access.kind != "load" and not padded <= row.pids:
            self.fixed_writes.append(access)

    def _check_group(self, group: list[tuple[str, Access, Row]]) -> None:
        first = next((row for _, a, row in group if a.kind != "load"), group[0][2])
        view = self.launch.view
        if any(view.seen.mixes(access.shape, *lane) for _, access, row in group for lane in row.lanes):
            self._reason("values of several rows are combined in one program")
        for name, access, row in group:
            alike = row.scale == first.scale
            here, there = (row.poly, first.poly) if alike else (row.index(view.space), first.index(view.space))
            gap = (here - there).const
            if gap != 0 and not (access.kind == "load" and gap is not None and gap < 0):
                self._reason(f"line {access.line} is of another row of {name} than the program's own")

    # ------------------------------------------------------------------------------------------------ searches
    def _searches(self) -> None:
        """Every search of batch boundaries is proved, and finds the same row however often the last boundary is
        repeated: it goes on to the last one, and has rounds enough for that."""
        launch, proved = self.launch, {s.loop for s in self.launch.view.searches}
        for name in (n for n, role in self.roles.items() if role == "boundary" and launch.is_batch(n)):
            for access in (a for a in launch.view.accesses if a.arg == name):
                if {n.args[0] for n in access.poly.leaves if n.op in ("trip", "carry")} - proved:
                    where = f"the search of {name} at line {access.line}"
                    self._reason(f"{where} is not proved to end at the row of its key")
        for search in (s for s in launch.view.searches if launch.is_batch(s.arg)):
            where = f"the search of {search.arg} at line {search.line}"
            if launch.open_in(*search.first.leaves):
                self._reason(f"{where} begins where the batch says")
            if search.last is not None and not launch.reaches(search.arg, search.last):
                self._reason(f"{where} does not go on to the last boundary")
            room = launch.expr(search.room) if search.room is not None else None
            if search.rounds is not None and room is None:
                self._reason(f"{where} has {search.rounds} rounds for an unknown number of rows")
            elif search.rounds is not None and room is not None:
                self.found.rounds.append(Rounds(search.arg, search.line, search.rounds, room))

    # ------------------------------------------------------------------------------------------------ arguments
    def _axes(self, name: str) -> c.Axes:
        tensor = self.launch.tensors[name]
        labels = tuple(self._label(as_expr(s)) for s in tensor.shape)
        write = any(a.kind != "load" for a in self.launch.view.accesses if a.arg == name)
        role = self.roles.get(name)
        tail: c.Tail = c.Any()
        if self.launch.is_batch(name) and role == "boundary":
            tail = c.Last()
        elif self.launch.is_batch(name) and role == "length":
            tail = c.Fill(0)
        return c.Axes(labels, tail, write)

    def _label(self, size: sympy.Expr) -> str | int | None:
        if size.is_Integer:
            return int(size)
        named = str(size.xreplace({s: sympy.Symbol(n) for s, n in self.names.items() if n.isidentifier()}))
        return named if size.is_Symbol or size.is_Add and len(size.free_symbols) == 1 else None

    def _slots(self, arguments: dict[str, c.Axes]) -> None:
        """What a padded program's slot must be: the null that stops its writes, or at least a row that exists."""
        summary = self.launch.call.summary
        for name in [n for n, role in self.roles.items() if role == "slot" and self.launch.is_batch(n)]:
            writes = [a.arg for a in self.fixed_writes if self._is_row_number(a, name)]
            nulls = [set(summary[w].nulls.get(name, ())) for w in writes if w]
            common = set.intersection(*nulls) if nulls else set()
            self.found.nulls[name] = tuple(sorted(common))
            if common and writes and writes[0]:
                null = 0 if 0 in common else max(common)
                arguments[name] = replace(arguments[name], tail=c.Fill(null), into=writes[0], null=null)
            else:
                arguments[name] = self._reading(name, arguments[name])
                self._reads_through(name)

    def _reading(self, slot: str, axes: c.Axes) -> c.Axes:
        """A slot that rows of one argument are only read through; its null, where nothing is read with that."""
        accesses = [a for a in self.launch.view.accesses if self._is_row_number(a, slot)]
        leaves = [(a, n) for a in accesses for n in addressing(a.poly) if _is_load(n, slot)]
        nulls = [set(null_values(a, n)) for a, n in leaves]
        common = set.intersection(*nulls) if nulls else set()
        into = {a.arg for a in accesses}
        if len(into) != 1 or not common:
            return axes
        return replace(axes, into=into.pop(), null=0 if 0 in common else max(common))

    def _is_row_number(self, access: Access, slot: str) -> bool:
        """The slot, or the page that it is on, is multiplied by the argument's leading stride: it counts no columns."""
        if access.arg not in self.launch.tensors or self.launch.is_batch(access.arg) or not self._names(access, slot):
            return False
        step = as_expr(self.launch.tensors[access.arg].strides[0])
        poly = self.launch.poly(access.poly)
        made = [n for n in poly.nodes() if any(_is_load(leaf, slot) for leaf in addressing(Poly({(n,): 1})))]
        return any(self.launch.expr(poly.coefficient(n)) == step for n in made)

    def _reads_through(self, slot: str) -> None:
        for access in self.launch.view.accesses:
            if self._names(access, slot) and access.arg and self._takes_any(access, slot):
                self.found.in_range[slot] = access.arg

    def _takes_any(self, access: Access, slot: str) -> bool:
        """No condition bounds the slot: its largest value is in the extent."""
        row = self.launch.call.summary[access.arg or ""]
        return f"max({slot})" in row.extent or row.extent == "unknown"

    def _names(self, access: Access, slot: str) -> bool:
        return any(_is_load(n, slot) for n in addressing(access.poly))

    # ------------------------------------------------------------------------------------------------ writes
    def _prove(self, arguments: dict[str, c.Axes]) -> None:
        """Padded programs write nothing that lives, rows of their own apart, given the contract's tails."""
        targets = tuple(dict.fromkeys(a.arg for a in self.fixed_writes if a.arg))
        if not targets or not self.rows and not any(self.launch.depends(g) for g in self.launch.grid):
            return
        summary = self.launch.call.summary
        nulls = {n for n, axes in arguments.items() if axes.null is not None}
        without = {n: a for n, a in arguments.items() if n not in nulls}
        proof = prove_sentinel(summary, _tails(without), targets, self.by)
        if proof.verdict == "proved":
            # Whatever the slot, nothing is written: the boundaries' own tail is enough.
            for name in nulls:
                arguments[name] = replace(arguments[name], tail=c.Any())
                self.found.nulls.pop(name)
                self._reads_through(name)
        else:
            proof = prove_sentinel(summary, _tails(arguments), targets, self.by)
        if proof.verdict == "proved":
            self.found.proofs = proof.path
            return
        for target in targets:
            through = [s for s in self.roles if any(self._names(a, s) for a in self.fixed_writes if a.arg == target)]
            only = through[0] if len(through) == 1 and not self.found.nulls.get(through[0]) else None
            self.found.unproved.append(Unproved(target, only, proof.path))
            self.found.in_range.pop(only or "", None)

    # ------------------------------------------------------------------------------------------------ the op
    def _locality(self) -> c.Locality:
        if self.found.unproved:
            return "global"
        rows = [row.index(self.launch.view.space) for found in self.rows.values() for _, row in found]
        apart = any(r != rows[0] for r in rows)
        if "boundary" in self.roles.values() and (apart or any(map(self._is_in_a_chunk, self.launch.view.accesses))):
            return "segment"
        return "prefix" if apart else "row"

    def _is_in_a_chunk(self, access: Access) -> bool:
        """Rows that are counted from a boundary; which request a row is of is no other row."""
        name = access.arg or ""
        loads = [n for n in addressing(access.poly, through_loads=False) if n.op == "load"]
        boundary = any(self.roles.get(str(n.args[0])) == "boundary" for n in loads)
        return boundary and self.launch.is_batch(name) and self.roles.get(name) != "boundary"


def _is_load(node: Node, name: str) -> bool:
    return node.op == "load" and node.args[0] == name


def _tails(arguments: Mapping[str, c.Axes]) -> dict[str, Tail]:
    """The tails that a contract asks for, as `prove_sentinel` takes them."""
    tails: dict[str, Tail] = {}
    for name, axes in arguments.items():
        if isinstance(axes.tail, c.Last):
            tails[name] = "last"
        elif isinstance(axes.tail, c.Fill):
            tails[name] = int(axes.tail.value)
    return tails
