"""The examples in the docstrings do what they say."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "cores",
    "device_spec",
    "local",
    "placement_rules",
    "device_scope",
    "shard_rules",
    "threads",
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    result = doctest.testmod(import_module(f"stratagem.devices.{module}"))
    assert result.attempted > 0 and result.failed == 0
