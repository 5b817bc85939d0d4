"""`capwise env`: versions, who provides Triton, what can be checked here."""

from __future__ import annotations

import importlib.metadata
import json
import platform

import pytest
import torch

from capwise import env


def test_environment_states_versions_and_is_json() -> None:
    found = env.environment()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert json.loads(json.dumps(found)) == found


def test_environment_names_the_distribution_that_provides_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    providers = {"triton": ["triton-rocm"], "two": ["b", "a", "a"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: providers)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"triton-rocm": "3.6.0"}.get(name, "1"))
    assert env.distribution("triton") == "triton-rocm 3.6.0"
    assert env.distribution("two") == "a 1, b 1"
    assert env.distribution("absent") is None


def test_checks_follow_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "_installed", lambda module: False)
    monkeypatch.setattr(env, "_compiler", lambda: None)
    possible = {name: row["possible"] for name, row in env._checks(False, False).items()}
    assert possible == {
        "capture=graph": False,
        "capture=tape": True,
        "lower=inductor": False,
        "kernels": False,
        "mlir": False,
    }
    monkeypatch.setattr(env, "_installed", lambda module: True)
    monkeypatch.setattr(env, "_compiler", lambda: "/usr/bin/g++")
    assert all(row["possible"] for row in env._checks(True, True).values())
    assert env._checks(True, True)["capture=graph"]["why"] == "HIP graphs"
    assert env._checks(False, False)["lower=inductor"] == {"possible": True, "why": "CPU code by /usr/bin/g++"}


def test_text_has_one_aligned_line_a_fact() -> None:
    facts = {"torch": "2", "devices": [], "driver": None, "checks": {"mlir": {"possible": False, "why": "missing"}}}
    assert env.as_text(facts) == "torch    2\ndevices  none\ndriver   none\nmlir     no: missing"
