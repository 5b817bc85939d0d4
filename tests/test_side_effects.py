"""Importing, checking and verifying leave the process as it was, also when they raise."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import triton
import triton.language as tl
from torch import nn
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

import capwise
from capwise import compat
from capwise.backend import TraceError
from capwise.compat.interpreter import launch_interpreted
from capwise.models.footguns import FOOTGUNS

CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch.compiler.config", "torch.fx.experimental._config")
PLACES: dict[str, Any] = {
    **{name: importlib.import_module(name) for name in ("os", "importlib", "random", "inspect", "torch", "triton")},
    **{f"torch.{name}": getattr(torch, name) for name in ("Tensor", "_C", "cuda", "library", "fx", "ops", "nn")},
    "torch.library.custom_ops": importlib.import_module("torch._library.custom_ops"),
    "torch.proxy": importlib.import_module("torch.fx.experimental.proxy_tensor"),
    "torch._dynamo.decorators": importlib.import_module("torch._dynamo.decorators"),
    "torch.nn.functional": nn.functional,
    "triton.language": tl,
    "triton.core": tl.core,
    "triton.math": tl.math,
    "triton.tensor": tl.core.tensor,
    "triton.dtype": tl.core.dtype,
    "triton.interpreter": interpreter,
    "triton.InterpretedFunction": interpreter.InterpretedFunction,
    "triton.GridExecutor": interpreter.GridExecutor,
    "triton.JITFunction": JITFunction,
}


def _process() -> dict[str, Any]:
    """What is global and comparable by value."""
    return {
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "meta_path": [id(m) for m in sys.meta_path],
        "hooks": (id(sys.excepthook), id(sys.displayhook), id(builtin_import())),
        "threads": threading.active_count(),
        "signals": {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)},
        "warnings": list(map(str, warnings.filters)),
        "log": (logging.root.level, list(logging.root.handlers)),
        "random": random.getstate(),
        "numpy": [str(part) for part in numpy.random.get_state()],
        "numpy errors": numpy.geterr(),
        "torch random": torch.get_rng_state().tolist(),
        "torch": (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
        ),
        "device": torch.cuda.is_initialized(),
        **{f"config {n}": repr(importlib.import_module(n).shallow_copy_dict()) for n in CONFIGS},
    }


def builtin_import() -> Any:
    return __builtins__["__import__"] if isinstance(__builtins__, dict) else __builtins__.__import__


def _names() -> dict[str, dict[str, Any]]:
    return {name: dict(vars(place)) for name, place in PLACES.items()}


def _changes(process: dict[str, Any], names: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it was. A submodule that was imported meanwhile hangs on its package: that is no change."""
    found = [key for key, value in _process().items() if value != process[key]]
    for place, now in _names().items():
        before = names[place]
        new = [n for n in now.keys() - before.keys() if not _may_appear(now[n], n)]
        gone = before.keys() - now.keys()
        other = [n for n in now.keys() & before.keys() if now[n] is not before[n] and not _is_cache(n)]
        found += [f"{place}.{n}" for n in (*new, *gone, *other)]
    return sorted(found)


def _may_appear(value: Any, name: str) -> bool:
    return isinstance(value, (types.ModuleType, torch._ops._OpNamespace)) or _is_cache(name)


def _is_cache(name: str) -> bool:
    return name in ("__warningregistry__", "__annotations__", "__annotations_cache__", "_dir")


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    process, names = _process(), _names()
    yield
    assert _changes(process, names) == []


@pytest.fixture(scope="module", autouse=True)
def _torch_has_settled():
    """What torch itself sets up at its first compilation is not ours."""
    torch.compile(lambda x: x.reshape(-1).cumsum(0), backend="aot_eager", fullgraph=True)(torch.ones(2, 2))
    capwise.check(lambda x: x + 1, {"x": torch.ones(3, 4)}, inputs={"x": ("T", 4)})
    torch._dynamo.reset()


# ---------------------------------------------------------------------------------------------------------- the probe
def test_a_change_is_seen(monkeypatch):
    process, names = _process(), _names()
    monkeypatch.setenv("CAPWISE_PROBE", "1")
    monkeypatch.setattr(torch, "arange", lambda *a: None)
    monkeypatch.setattr(JITFunction, "run", lambda *a: None)
    monkeypatch.setattr(tl, "capwise_probe", 1, raising=False)
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False), torch.random.fork_rng(devices=[]):
        torch.rand(1)
        found = _changes(process, names)
    expected = {"environ", "torch.arange", "triton.JITFunction.run", "triton.language.capwise_probe", "torch random"}
    assert {*expected, "config torch._dynamo.config"} <= set(found)


# ---------------------------------------------------------------------------------------------------------- importing
IMPORT = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("probe", sys.argv[1])
source = spec.loader.get_source("probe")
ours = [line for line in source.splitlines() if line.startswith(("import capwise", "from capwise"))]
scope = {"__name__": "probe", "__builtins__": __builtins__}
exec(compile("\\n".join(l for l in source.splitlines() if l not in ours), sys.argv[1], "exec"), scope)
import torch._dynamo, torch._inductor.config, torch.fx.passes.infra.pass_base
assert not any(m.split(".")[0] == "capwise" for m in sys.modules)
process, names = scope["_process"](), scope["_names"]()
import capwise, capwise.entry, capwise.models.demo_cases, capwise.ops
print(json.dumps(scope["_changes"](process, names)))
"""


def test_importing_changes_nothing():
    done = subprocess.run([sys.executable, "-c", IMPORT, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


# ---------------------------------------------------------------------------------------------------------- fine runs
@pytest.mark.parametrize("name", ["times the number of tokens", "write to a prefix"])
def test_checking_and_verifying_change_nothing(name):
    case = FOOTGUNS[name].case()
    state = {n: t.clone() for n, t in case.model.state_dict().items()}
    batches = [{n: t.clone() for n, t in batch.items()} for batch in case.batches]
    with _unchanged():
        capwise.check(case.model, case.batches[0], inputs=case.inputs)
        assert capwise.verify(case).ok
        assert not capwise.verify(case, unsafe=True).ok
    assert all(torch.equal(state[n], t) for n, t in case.model.state_dict().items())
    for batch, kept in zip(case.batches, batches):
        assert all(torch.equal(kept[n], t) and not hasattr(t, "_dynamo_unbacked_indices") for n, t in batch.items())


def test_calling_a_compiled_model_marks_nothing_on_the_callers_tensors():
    x = torch.ones(3, 4)
    before = set(vars(x))
    with _unchanged():
        model = capwise.compile(lambda x: x + 1, inputs={"x": ("T", 4)}, capture="tape", lower="eager")
        model(x=x), model(x=x[:2])
    assert set(vars(x)) == before


def test_the_bare_backend_marks_nothing_on_the_callers_tensors():
    """A mark that stays makes the next compilation of anything see a symbol there."""
    x = torch.ones(3, 4)
    before = set(vars(x))
    options = {"inputs": {"x": ("T", 4)}, "capture": "tape", "lower": "eager"}
    with _unchanged():
        torch.compile(lambda x: x + 1, backend="capwise", options=options)(x)
    assert not (set(vars(x)) - before) & {"_dynamo_unbacked_indices", "_dynamo_shape_ids"}


# ---------------------------------------------------------------------------------------------------------- failures
class RaisesInTrace(nn.Module):
    def forward(self, x):
        raise ValueError("on purpose")


class NotOneGraph(nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x + 1


@pytest.mark.parametrize("model", [RaisesInTrace, NotOneGraph])
def test_a_model_that_cannot_be_traced_leaves_nothing_behind(model, make_case):
    case = make_case(model())
    with _unchanged():
        with pytest.raises(Exception):  # noqa: B017 - the user's own, or what Dynamo makes of it
            capwise.compile(model(), inputs=case.inputs)(**case.batches[0])
        report = None
        with contextlib.suppress(ValueError, TraceError, RuntimeError):
            report = capwise.check(model(), case.batches[0], inputs=case.inputs)
        with pytest.raises(Exception):  # noqa: B017
            capwise.verify(case)
    if model is NotOneGraph:
        assert report is not None and report.codes() == {"CW002"}


def test_a_model_that_the_tape_refuses_leaves_nothing_behind():
    with _unchanged():
        result = capwise.verify(FOOTGUNS["item"].case(), unsafe=True)
    assert {m.kind for m in result.mismatches} == {"capture"}


@triton.jit
def faulty(out_ptr, rows, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, at + no_such_name, mask=at < rows)  # noqa: F821


@torch.library.custom_op("side_effects::faulty", mutates_args=())
def faulty_op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    faulty[(1,)](out, x.shape[0], BLOCK=16)
    return out


@faulty_op.register_fake
def _(x):
    return torch.empty_like(x)


class LaunchesFaulty(nn.Module):
    def forward(self, x):
        return torch.ops.side_effects.faulty(x) + 1


def test_a_kernel_that_raises_in_the_interpreter_leaves_nothing_behind(make_case):
    with _unchanged():
        with pytest.raises(Exception, match="no_such_name"), compat.interpreted():
            faulty[(1,)](torch.zeros(4), 4, BLOCK=16)
        assert not compat.interpreting()
        with pytest.raises(Exception):  # noqa: B017
            capwise.verify(make_case(LaunchesFaulty()))


def test_an_error_inside_the_interpreted_block_puts_everything_back():
    with _unchanged(), pytest.raises(KeyError), compat.interpreted(), compat.interpreted():
        assert JITFunction.run is launch_interpreted
        raise KeyError("on purpose")


def test_a_rejected_option_or_batch_leaves_nothing_behind():
    model = capwise.compile(lambda x: x + 1, inputs={"x": ("T", 4)})
    with _unchanged():
        with pytest.raises(capwise.OptionError):
            capwise.compile(lambda x: x, captures="tape")
        with pytest.raises(capwise.InputError):
            model(x=torch.ones(3, 5))
