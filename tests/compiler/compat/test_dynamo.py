"""Dynamo has capwise's settings for one call."""

from __future__ import annotations

import pytest
import torch

from capwise import compat


def test_dynamo_settings_last_one_call():
    before = torch._dynamo.config.capture_scalar_outputs
    with pytest.raises(KeyError), compat.dynamo_settings("L['n']", False):
        assert torch._dynamo.config.capture_scalar_outputs and torch.compiler.config.unbacked_sources == "L['n']"
        raise KeyError
    assert torch._dynamo.config.capture_scalar_outputs == before and torch.compiler.config.unbacked_sources != "L['n']"
