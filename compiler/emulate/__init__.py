"""Executes Triton's ROCm output on a CPU.

``run`` executes ``compiled.asm["amdgcn"]``, the very text that Triton assembles into the code object, with numpy
only. It checks the whole lowering: layouts, LDS swizzles, cross-lane moves, matrix operand layouts, buffer resources,
masks and barriers. Every access is bounds-checked per lane, registers and LDS start as poison, an unknown instruction
raises.

Not modelled: timing, caches, memory ordering, missing waits (loads complete at once), the error of up to 1 ulp that the
hardware makes in exp, log, rcp, rsq and sin, rounding inside matrix instructions, and the flush-denormal mode.
"""

from capwise.emulate.arguments import Argument, Sparse
from capwise.emulate.errors import EmulatorError, Fault, Unsupported
from capwise.emulate.machine import TARGETS, Report, run

__all__ = ["TARGETS", "Argument", "EmulatorError", "Fault", "Report", "Sparse", "Unsupported", "run"]
