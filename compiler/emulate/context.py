"""What a decoder needs to know about the kernel, and the types that decoders return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from capwise.emulate.arrays import Array
from capwise.emulate.memory import GlobalMemory, Lds, Scratch
from capwise.emulate.operands import Operand, Read, parse_operand, vector_source
from capwise.emulate.parser import Inst, Program
from capwise.emulate.wave import Waves

Step = Callable[[Waves], None]
Evaluate = Callable[[Waves], Array]
Write = Callable[[Waves, Array], None]


@dataclass(frozen=True, slots=True)
class Branch:
    """Jump to instruction ``target`` in the waves for which ``condition`` gives True (every wave if None)."""

    target: int
    condition: Evaluate | None


@dataclass(frozen=True, slots=True)
class Barrier:
    """Wait until every live wave of the workgroup waits."""


@dataclass(frozen=True, slots=True)
class End:
    """The wave is done."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The instruction is not modelled; executing it raises Unsupported with ``reason``."""

    reason: str


Control = Branch | Barrier | End | Refuse


class Context:
    """The target's traits and the memories. ``lds`` and ``scratch`` are those of the batch being executed."""

    lds: Lds
    scratch: Scratch

    def __init__(self, program: Program) -> None:
        self.program = program
        self.gfx = program.gfx
        self.lanes = program.wave_size
        self.is_gfx9 = program.gfx.startswith("gfx9")
        self.is_gfx12 = program.gfx.startswith("gfx12")
        self.m0_row = 124 if self.is_gfx9 else 125
        self.memory = GlobalMemory()
        self._parsed: dict[str, Operand] = {}

    def operand(self, text: str) -> Operand:
        operand = self._parsed.get(text)
        if operand is None:
            operand = self._parsed[text] = parse_operand(text, self.program.symbols, self.m0_row)
        return operand

    def operands(self, inst: Inst) -> list[Operand]:
        return [self.operand(text) for text in inst.operands]

    def vcc(self) -> Operand:
        return self.operand("vcc" if self.lanes == 64 else "vcc_lo")

    def exec(self) -> Operand:
        return self.operand("exec" if self.lanes == 64 else "exec_lo")

    def sources(self, operands: list[Operand], *kinds: str) -> list[Read]:
        """Vector readers without DPP, SDWA or operand selection."""
        return [vector_source(op, kind) for op, kind in zip(operands, kinds, strict=True)]
