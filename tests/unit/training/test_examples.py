"""The examples in the docstrings do what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

MODULES = ["cluster_status", "progress", "progress_display", "summary_values"]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(f"stratagem.training.{module}"))
    assert result.attempted > 0 and result.failed == 0
