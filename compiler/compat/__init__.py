"""Every difference between versions of torch and Triton, and the only place that patches. Every idea is a file:

sources, aten, dynamo, breaks, guarded and writes read and steer Dynamo's traces; op_bodies finds what custom ops run;
interpreter runs Triton's kernels on CPU tensors, program_order and one_program change how, launches records or watches
them; no_device traces and runs models with kernels where no GPU is, and kernel_nodes reads their launches off graphs;
randomness and addresses are what compiled code must share with eager. What they patch is patched in a context manager,
and put back also when it raises (patching). Nothing runs at import.
"""

from __future__ import annotations

from capwise.compat.addresses import addresses_hold
from capwise.compat.aten import fake_tracing, make_aten
from capwise.compat.breaks import branch_errors, graph_break_errors, resumed_place, user_span
from capwise.compat.dynamo import dynamo_settings, restart_with_names, unmark
from capwise.compat.guarded import guarded_expressions, guarded_values, python_scope
from capwise.compat.interpreter import interpreted, interpreting, run_interpreted, widened
from capwise.compat.kernel_nodes import HopLaunch, hop_launch, is_kernel_node
from capwise.compat.launches import recording_launches, watching_launches
from capwise.compat.no_device import TargetOnly, eager_kernels, tracing_kernels
from capwise.compat.one_program import interpreted_programs
from capwise.compat.op_bodies import custom_op_body, custom_op_functions, custom_ops, triton_op_body, written_op_body
from capwise.compat.program_order import UsesAtomics, programs_in_order, stores_deferred
from capwise.compat.randomness import random_as_eager
from capwise.compat.sources import TORCH_ROOT, source_line, source_of
from capwise.compat.writes import PythonWrite, python_writes

__all__ = [
    "TORCH_ROOT",
    "HopLaunch",
    "PythonWrite",
    "TargetOnly",
    "UsesAtomics",
    "addresses_hold",
    "branch_errors",
    "custom_op_body",
    "custom_op_functions",
    "custom_ops",
    "dynamo_settings",
    "eager_kernels",
    "fake_tracing",
    "graph_break_errors",
    "guarded_expressions",
    "guarded_values",
    "hop_launch",
    "interpreted",
    "interpreted_programs",
    "interpreting",
    "is_kernel_node",
    "make_aten",
    "programs_in_order",
    "python_scope",
    "python_writes",
    "random_as_eager",
    "recording_launches",
    "restart_with_names",
    "resumed_place",
    "run_interpreted",
    "source_line",
    "source_of",
    "stores_deferred",
    "tracing_kernels",
    "triton_op_body",
    "unmark",
    "user_span",
    "watching_launches",
    "widened",
    "written_op_body",
]
