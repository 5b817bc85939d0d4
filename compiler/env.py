"""What is installed and which checks are possible here, as `capwise env` prints it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Versions, the distribution that provides Triton, devices and driver, and the possible checks.

    JSON-ready. `checks` maps a check to `{"possible": bool, "why": str}`. Asks the driver for its devices, and neither
    allocates nor runs anything on them.
    """
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "capwise": _version("capwise"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "torch_build": _build(torch.version.cuda, torch.version.hip),
        "triton": _version_of_module("triton"),
        "triton_distribution": distribution("triton"),
        "numpy": _version("numpy"),
        "devices": devices,
        "driver": driver(),
        "checks": _checks(bool(devices), torch.version.hip is not None),
    }


def as_text(env: dict[str, Any]) -> str:
    """The same, one line a fact, aligned."""
    checks = env["checks"]
    rows = [(name, _plain(value)) for name, value in env.items() if name != "checks"]
    rows += [(name, f"{'yes' if c['possible'] else 'no'}: {c['why']}") for name, c in checks.items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def distribution(module: str) -> str | None:
    """`name version` of the installed distribution that provides a module; several are joined, since they clash."""
    names = sorted(set(importlib.metadata.packages_distributions().get(module, [])))
    return ", ".join(f"{name} {_version(name)}" for name in names) or None


def driver() -> str | None:
    """The kernel driver's version, from /proc or /sys: needs no tool and wakes no device."""
    nvidia, amd = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")
    if nvidia.is_file():
        return nvidia.read_text().splitlines()[0]
    return f"amdgpu {amd.read_text().strip()}" if amd.is_file() else None


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)


def _build(cuda: str | None, hip: str | None) -> str:
    if hip is not None:
        return f"rocm {hip}"
    return f"cuda {cuda}" if cuda is not None else "cpu"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_of_module(module: str) -> str | None:
    names = importlib.metadata.packages_distributions().get(module, [])
    return _version(names[0]) if names else None


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _compiler() -> str | None:
    """The C++ compiler that Inductor needs for CPU code."""
    names = [os.environ.get("CXX"), "g++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _checks(device: bool, hip: bool) -> dict[str, dict[str, Any]]:
    triton, compiler = _installed("triton"), _compiler()
    graphs = "HIP graphs" if hip else "CUDA graphs"
    rows = {
        "capture=graph": (device, graphs if device else "no CUDA or ROCm device"),
        "capture=tape": (True, "on CPU, Triton kernels too" if triton else "on CPU, but Triton is missing"),
        "lower=inductor": _inductor(device, triton, compiler),
        "kernels": (triton, "Triton's compiler is here" if triton else "Triton is missing: install capwise[cpu]"),
        "mlir": (_installed("torch_mlir"), "torch-mlir" if _installed("torch_mlir") else "install capwise[mlir]"),
    }
    return {name: {"possible": possible, "why": why} for name, (possible, why) in rows.items()}


def _inductor(device: bool, triton: bool, compiler: str | None) -> tuple[bool, str]:
    if device:
        return triton, "Triton on the device" if triton else "Triton is missing"
    return compiler is not None, f"CPU code by {compiler}" if compiler else "no C++ compiler: lower='eager' works"
