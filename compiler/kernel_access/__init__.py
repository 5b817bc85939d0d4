"""Triton kernel -> access summary, read off its TTIR; no GPU and no driver is needed.

`summarize` gives for each pointer argument what is touched, by which index and stride, how far, and which hazards that
brings; `prove_sentinel` says whether a tail value keeps padded programs harmless; `evaluate` gives the concrete
elements, to be compared with what `interpret.record` sees in Triton's interpreter.
"""

from __future__ import annotations

from capwise.kernel_access.access import Access
from capwise.kernel_access.axes import Axis
from capwise.kernel_access.evaluate import NotFollowed, evaluate
from capwise.kernel_access.hazards import KernelHazard
from capwise.kernel_access.load import load_kernels
from capwise.kernel_access.sentinel import Proof, prove_sentinel
from capwise.kernel_access.signature import Guess, guess_signature
from capwise.kernel_access.summary import ArgumentAccess, KernelSummary, rows, summarize
from capwise.kernel_access.ttir import BuildError

__all__ = [
    "Access",
    "ArgumentAccess",
    "Axis",
    "BuildError",
    "Guess",
    "KernelHazard",
    "KernelSummary",
    "NotFollowed",
    "Proof",
    "evaluate",
    "guess_signature",
    "load_kernels",
    "prove_sentinel",
    "rows",
    "summarize",
]
