"""capwise: a torch.compile backend that makes graph-capture correctness a compiler pass."""

from capwise import testing
from capwise.allow import allow
from capwise.backend import check, compile
from capwise.case import Case
from capwise.labels import Buffer, Input, InputError, Live
from capwise.ops.contract import Contract, contract
from capwise.options import OptionError
from capwise.report import Diagnostic, Report
from capwise.verify import VerifyResult, verify

__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "Case",
    "Contract",
    "Diagnostic",
    "Input",
    "InputError",
    "Live",
    "OptionError",
    "Report",
    "VerifyResult",
    "allow",
    "check",
    "compile",
    "contract",
    "testing",
    "verify",
]
