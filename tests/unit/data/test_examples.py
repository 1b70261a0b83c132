"""The examples in the docstrings do what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

MODULES = [
    "batch_pipeline",
    "batch_source",
    "digits",
    "example_parsing",
    "example_writing",
    "features",
    "grain_batches",
    "idx",
    "record_batch",
    "record_index",
    "stream_batches",
    "tfrecord_frames",
    "tfrecord_reader",
    "tfrecord_writer",
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what they write goes with the test
    result = doctest.testmod(import_module(f"stratagem.data.{module}"))
    assert result.attempted > 0 and result.failed == 0
