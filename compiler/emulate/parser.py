"""Reads the AMDGPU assembly text of one kernel: instructions, labels, descriptor, parameters, source lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from capwise.emulate.errors import EmulatorError

_MODIFIER = re.compile(
    r"(offset|offset0|offset1|row_shl|row_shr|row_ror|row_share|row_xmask|row_newbcast|row_bcast|wave_shl|wave_shr|wave_rol"
    r"|wave_ror|row_mask|bank_mask|bound_ctrl|fi|quad_perm|dpp8|mul|div|op_sel|op_sel_hi|neg_lo|neg_hi|dst_sel|dst_unused"
    r"|src0_sel|src1_sel|cbsz|blgp|abid|bitop3|th|scope|byte_sel|index_key|matrix_[ab]_\w+):(.*)$"
)
_FLAGS = frozenset("offen idxen sc0 sc1 nt glc slc dlc lds clamp row_mirror row_half_mirror gds nv tfe addr64".split())
# Cache policy and encoding hints: they change timing or coherence, which the emulator does not model.
_HINTS = frozenset({"sc0", "sc1", "nt", "glc", "slc", "dlc", "th", "scope", "nv"})
_ENCODING_SUFFIX = re.compile(r"(_e64_dpp|_e32|_e64|_dpp|_sdwa)$")


@dataclass(slots=True)
class Inst:
    """One instruction. Modifiers are read through the methods, which record what was read: see ``unread``."""

    text: str
    opcode: str
    mnemonic: str  # the opcode without its encoding suffix
    operands: list[str]
    modifiers: dict[str, str]
    location: str | None = None
    pair: tuple[Inst, Inst] | None = None  # the halves of a dual-issue instruction
    _read: set[str] = field(default_factory=set)

    @property
    def is_dpp(self) -> bool:
        return self.opcode.endswith("_dpp")

    def flag(self, name: str) -> bool:
        """True iff the modifier is present in any form (``offen``, ``bound_ctrl:0``)."""
        self._read.add(name)
        return name in self.modifiers

    def word(self, name: str, default: str = "") -> str:
        self._read.add(name)
        return self.modifiers.get(name, default)

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.word(name, str(default)), 0)

    def integers(self, name: str, default: list[int]) -> list[int]:
        """A bracketed list such as ``op_sel:[0,1]``; absent entries at its end take the default's value."""
        values = [int(v) for v in self.word(name).strip("[]").split(",") if v]
        return values + default[len(values) :]

    def unread(self) -> list[str]:
        """Modifiers that no decoder looked at, hints apart: executing the instruction would ignore them."""
        return sorted(self.modifiers.keys() - self._read - _HINTS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel parameter: byte offset and size in the kernarg segment, and its metadata ``value_kind``."""

    offset: int
    size: int
    kind: str


def _split(text: str, separators: str) -> list[str]:
    """Split at any of ``separators`` that stands outside brackets; empty pieces are dropped."""
    if "[" not in text and "(" not in text:  # most operand lists
        return text.split() if separators.isspace() else [p for p in map(str.strip, text.split(separators)) if p]
    pieces, depth, current = [], 0, ""
    for ch in text:
        depth += (ch in "[(") - (ch in "])")
        if depth == 0 and ch in separators:
            pieces.append(current.strip())
            current = ""
        else:
            current += ch
    pieces.append(current.strip())
    return [p for p in pieces if p]


def parse_inst(text: str) -> Inst:
    """Parse one line of assembly without comments. Dual-issue lines (``a :: b``) also get ``pair``."""
    opcode, *arguments = text.split(None, 1)
    rest = arguments[0] if arguments else ""
    mnemonic = _ENCODING_SUFFIX.sub("", opcode).replace("_num_", "_")
    if "::" in text:
        first, second = (parse_inst(p.strip().replace("v_dual_", "v_", 1)) for p in text.split("::"))
        return Inst(text, opcode, mnemonic, [], {}, pair=(first, second))
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for part in _split(rest, ","):
        words = []
        for token in _split(part, " \t"):
            match = _MODIFIER.match(token)
            if match:
                modifiers[match.group(1)] = match.group(2)
            elif token in _FLAGS:
                modifiers[token] = "1"
            else:
                words.append(token)
        if words:
            operands.append(" ".join(words))
    return Inst(text, opcode, mnemonic, operands, modifiers)


def _find(pattern: str, text: str, what: str, flags: int = 0) -> str:
    match = re.search(pattern, text, flags)
    if match is None:
        raise EmulatorError(f"this is not AMDGPU assembly of a Triton kernel: it has no {what}")
    return match.group(1)


def _integers(pairs: list[tuple[str, str]]) -> dict[str, int]:
    """The pairs whose value is a number; expressions over symbols are left out."""
    return {name: int(value, 0) for name, value in pairs if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", value)}


class Program:
    """One kernel of an assembly file.

    ``descriptor`` maps ``.amdhsa_*`` names to their integer values, ``labels`` maps a label to an instruction index.
    Raises EmulatorError if the text has no such kernel.
    """

    def __init__(self, asm: str, kernel: str | None = None) -> None:
        self.gfx = _find(r'\.amdgcn_target\s+"[^"]*?(gfx[0-9a-f]+)', asm, ".amdgcn_target")
        self.name = kernel or _find(r"^\s*\.amdhsa_kernel\s+(\S+)", asm, ".amdhsa_kernel", re.M)
        name = re.escape(self.name)
        block = _find(rf"\.amdhsa_kernel\s+{name}\n(.*?)\.end_amdhsa_kernel", asm, f"kernel {self.name!r}", re.S)
        self.descriptor = _integers(re.findall(r"\.amdhsa_(\w+)\s+(\S+)", block))
        self.symbols = _integers(re.findall(r"^\s*\.set\s+(\S+),\s*(\S+)\s*$", asm, re.M))
        self._read_metadata(asm)
        self.instructions: list[Inst] = []
        self.labels: dict[str, int] = {}
        self._read_code(asm)

    def _read_metadata(self, asm: str) -> None:
        text = _find(r"\.amdgpu_metadata(.*?)\.end_amdgpu_metadata", asm, ".amdgpu_metadata", re.S)
        entries = re.split(r"\n  - (?=\.)", text)[1:]
        named = [e for e in entries if re.search(rf"\.name:\s+{re.escape(self.name)}\s", e)]
        if not named:
            raise EmulatorError(f"the metadata does not describe kernel {self.name!r}")
        entry = named[0]
        self.parameters = []
        for text in re.findall(r"\n      - (.*?)(?=\n      - |\n    \.[a-z])", entry, re.S):
            fields = dict(re.findall(r"\.(\w+):\s*(\S+)", text))
            self.parameters.append(Parameter(int(fields["offset"]), int(fields["size"]), fields["value_kind"]))
        self.wave_size = int(_find(r"\.wavefront_size:\s*(\d+)", entry, "wavefront size"))
        self.workgroup_size = int(_find(r"\.max_flat_workgroup_size:\s*(\d+)", entry, "workgroup size"))

    def _read_code(self, asm: str) -> None:
        location: str | None = None
        files = _file_table(asm)
        for line in self._body(asm):
            code = re.sub(r"\s*(;|//).*$", "", line).strip()
            label = re.fullmatch(r"([.\w$]+):", code)
            if label:
                self.labels[label.group(1)] = len(self.instructions)
            elif code.startswith(".loc"):
                location = _source_line(line, files) or location
            elif code and not code.startswith("."):
                inst = parse_inst(code)
                inst.location = location
                self.instructions.append(inst)

    def _body(self, asm: str) -> Iterator[str]:
        """The lines between the kernel's label and the end of its function."""
        lines = iter(asm.split("\n"))
        if not any(line.startswith(f"{self.name}:") for line in lines):
            raise EmulatorError(f"the assembly has no label {self.name!r}")
        for line in lines:
            if line.lstrip().startswith((".section", ".Lfunc_end")):
                return
            yield line


def _file_table(asm: str) -> dict[str, str]:
    """The number of each ``.file`` directive -> file name without its directory."""
    table = {}
    for number, rest in re.findall(r"^\s*\.file\s+(\d+)\s+(.*)$", asm, re.M):
        table[number] = re.findall(r'"([^"]*)"', rest)[-1].rsplit("/", 1)[-1]
    return table


def _source_line(directive: str, files: dict[str, str]) -> str | None:
    """``file.py:line`` of a ``.loc`` directive, or None if it has no line.

    For code inlined from another function the outermost call is the line of the kernel itself, which is what its author
    knows; the line inside the inlined function follows in brackets.
    """
    match = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", directive)
    if match is None or match.group(2) == "0":
        return None
    inner = f"{files.get(match.group(1), match.group(1))}:{match.group(2)}"
    callers = re.findall(r"@\[ ([^\s:]+:\d+)", directive)
    return f"{callers[-1]} (in {inner})" if callers else inner
