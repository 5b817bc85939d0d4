"""What the emulator raises. Every error names the instruction and the line of Triton source it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from capwise.emulate.parser import Inst


class EmulatorError(Exception):
    """The kernel cannot be executed, or was launched wrongly.

    ``instruction`` is the assembly text and ``location`` the ``file.py:line`` of the Triton source; both are None for
    errors found before the first instruction runs.
    """

    instruction: str | None = None
    location: str | None = None


class Fault(EmulatorError):
    """The kernel touched memory it does not own: out of bounds, or a store to a read-only argument."""


class Unsupported(EmulatorError):
    """The assembly uses an instruction, an operand or a modifier that the emulator does not model."""


E = TypeVar("E", bound=EmulatorError)


def locate(error: E, inst: Inst) -> E:
    """The same kind of error with the instruction and its source line put in front of the message."""
    located = type(error)(f"{inst.location or 'unknown source line'}: `{inst.text}`: {error}")
    located.instruction, located.location = inst.text, inst.location
    return located
