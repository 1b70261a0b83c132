"""The examples in the docstrings do what they say."""

import doctest
import tempfile
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "module", ["checked_json", "disk", "manifest", "records", "shard_files", "stored_snapshots"]
)
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what they write goes with the test
    result = doctest.testmod(import_module(f"stratagem.keep.{module}"))
    assert result.attempted > 0 and result.failed == 0
