"""What users call: `torch.compile(backend="capwise")`, `capwise.compile`, `capwise.check`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from capwise.admission import DEFAULT_CAPACITY, OTHER_CAPACITY
from capwise.case import Case
from capwise.compiled import CompiledModel, TraceError
from capwise.labels import bind_extents, normalise
from capwise.options import Options
from capwise.program import Program
from capwise.report import Diagnostic, Report, SeamRow, Span

__all__ = [
    "CompiledModel",
    "TraceError",
    "capwise_backend",
    "case_options",
    "check",
    "check_case",
    "compile",
    "programs_of",
    "trace_case",
]


def compile(model: Callable[..., Any], **options: Any) -> CompiledModel:
    """Compiles a model for graph capture.

    Args:
        model: an nn.Module or a function of tensors and ints.
        options: see `Options`: inputs, key, capacity, capture_sizes, capture, repair, lower, outputs, guards, strict.

    Returns:
        a callable with the model's own call.

    Raises:
        OptionError: an unknown option, or a value that it cannot have.
    """
    return CompiledModel(model, Options.make(options))


def check(model: Callable[..., Any], batch: Mapping[str, Any], **options: Any) -> Report:
    """Finds what would go wrong under capture, without running the model.

    Raises:
        InputError: the batch contradicts `inputs`.
    """
    return check_case(Case(model, [batch], inputs=options.pop("inputs", None)), **options)


def check_case(case: Case, **options: Any) -> Report:
    """`check` over every batch of a case: each signature is a program of its own."""
    compiled = trace_case(case, **options)
    report = compiled.report
    report.case = case.name
    return report


def trace_case(case: Case, keep_texts: bool = False, **options: Any) -> CompiledModel:
    """Compiles every program that a case needs, without running a step."""
    made = case_options(case, **options)
    compiled = CompiledModel(case.model, made, keep_texts)
    seen: set[tuple[Any, ...]] = set()
    for batch in case.batches:
        given = {k: v for k, v in batch.items() if v is not None}
        compiled.admission.admit(given)
    _moving_inputs(compiled, case)
    _absent_inputs(compiled, case)
    for batch in case.batches:
        given = compiled.admission.bind((), batch)
        signature = compiled.admission.signature(given)
        if signature in seen:
            continue
        seen.add(signature)
        try:
            compiled.trace(given)
        except TraceError as error:
            compiled.report.add(error.diagnostic)
            compiled.report.seams.append(
                SeamRow("eager Python", error.diagnostic.code, error.diagnostic.file, error.diagnostic.line)
            )
    return compiled


def _moving_inputs(compiled: CompiledModel, case: Case) -> None:
    """An input that nobody named, at another address in every batch: a recording would read the first one."""
    addresses: dict[str, set[int]] = {}
    for batch in case.batches:
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and name not in (compiled.admission.specs):
                addresses.setdefault(name, set()).add(value.data_ptr())
    for name, seen in addresses.items():
        if len(seen) > 1:
            compiled.report.add(
                Diagnostic(
                    "CW301",
                    "refuted",
                    name,
                    f"the address of input {name!r} is not stable",
                    label="a captured piece reads it at the address of capture",
                    span=_definition(compiled.model),
                    repair="guard" if compiled.options.repair != "none" else None,
                    notes=(
                        f"{len(seen)} addresses in {len(case.batches)} batches; a guard miss runs the step eagerly",
                    ),
                    help=(f"name it in inputs={{{name!r}: ...}}, so that it is staged",),
                )
            )


def _absent_inputs(compiled: CompiledModel, case: Case) -> None:
    """An optional input that some batches leave out: a buffer that is not written then holds the last step's values."""
    for name, spec in compiled.admission.specs.items():
        absent = sum(batch.get(name) is None for batch in case.batches)
        if not absent or absent == len(case.batches):
            continue
        filled = spec.default is not None
        help = (f"say what absence means: inputs={{{name!r}: capwise.Input(..., default=0)}}",)
        compiled.report.add(
            Diagnostic(
                "CW302",
                "refuted",
                name,
                f"optional input {name!r} is absent on some steps",
                label="its buffer would hold what the last step with it left",
                span=_definition(compiled.model),
                repair="fill default each step" if filled else "program of its own",
                notes=(f"absent in {absent} of {len(case.batches)} batches",),
                help=() if filled else help,
                candidates=(("fill default each step", 0.1), ("program of its own", 0.0)),
            )
        )


def _definition(model: Callable[..., Any]) -> Span:
    """Where the model's call is defined."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    code = getattr(inspect.unwrap(target), "__code__", None)
    return Span(code.co_filename, code.co_firstlineno, 1) if code is not None else Span()


def programs_of(case: Case, **options: Any) -> list[Program]:
    """The programs of a case, with their texts after every pass."""
    return trace_case(case, keep_texts=True, **options).programs


def case_options(case: Case, **options: Any) -> Options:
    """A case's options, with capacities that hold every one of its batches."""
    made = case.make_options(**options)
    if made.inputs is None:
        return made
    specs = normalise(made.inputs)
    capacity = dict(made.capacity)
    for batch in case.batches:
        for symbol, extent in bind_extents(specs, batch).items():
            usual = DEFAULT_CAPACITY.get(symbol, OTHER_CAPACITY)
            if symbol not in made.capacity and extent > capacity.get(symbol, usual):
                capacity[symbol] = extent
    return replace(made, capacity=capacity)


def capwise_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **extra: Any
) -> Callable[..., Any]:
    """`torch.compile(model, backend="capwise")`."""
    from capwise.entry import backend

    return backend(gm, example_inputs, {**(options or {}), **extra})
