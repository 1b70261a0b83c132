"""`stratagem convert idx-to-tfrecord`."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from stratagem.data import FixedLenFeature, RawFeature, parse_example, read_tfrecord
from stratagem.errors import DataError
from stratagem.tools.launch.cli import stratagem

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 4, 3), dtype=np.uint8)
LABELS = np.arange(10, dtype=np.uint8)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    images = bytes([0, 0, 8, 3]) + np.array(IMAGES.shape, ">u4").tobytes() + IMAGES.tobytes()
    (tmp_path / "images.gz").write_bytes(gzip.compress(images))
    (tmp_path / "labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 10]) + LABELS.tobytes())
    return tmp_path


def convert(directory: Path, *options: str, images: str = "images.gz", labels: str = "labels") -> Result:
    names = [str(directory / name) for name in (images, labels, "out")]
    return CliRunner().invoke(stratagem, ["convert", "idx-to-tfrecord", *names, *options])


@pytest.mark.parametrize("options", [(), ("--shards", "3"), ("--shards", "3", "--compression", "gzip")])
def test_all_images_with_their_labels(directory: Path, options: tuple[str, ...]) -> None:
    result = convert(directory, *options)
    assert result.exit_code == 0, result.output
    assert "Wrote 10 records" in result.output
    assert 'RawFeature((4, 3), "uint8")' in result.output
    paths = sorted(directory.glob("out*"))
    assert [path.name for path in paths] == (
        [f"out-0000{shard}-of-00003" for shard in range(3)] if options else ["out"]
    )
    assert {len(list(read_tfrecord(path))) for path in paths} <= {3, 4, 10}
    (batch,) = read_tfrecord(paths).batches(100)
    parsed = parse_example(batch, {"image": RawFeature((4, 3)), "label": FixedLenFeature((), np.int64)})
    np.testing.assert_array_equal(parsed["image"], IMAGES)
    np.testing.assert_array_equal(parsed["label"], LABELS)


def test_help_shows_an_example_on_a_line_of_its_own() -> None:
    output = CliRunner().invoke(stratagem, ["convert", "idx-to-tfrecord", "--help"]).output
    assert "Example:\n    stratagem convert idx-to-tfrecord images-idx3-ubyte.gz" in output


def test_overwrites_only_when_asked(directory: Path) -> None:
    (directory / "out").write_text("precious")
    result = convert(directory)
    assert result.exit_code == 2
    assert "exists already; give another OUTPUT, or --overwrite" in result.output
    assert (directory / "out").read_text() == "precious"
    assert convert(directory, "--overwrite").exit_code == 0
    assert len(list(read_tfrecord(directory / "out"))) == 10


def test_files_that_do_not_belong_together(directory: Path) -> None:
    (directory / "few").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 5]))
    for images, labels, problem in [
        ("images.gz", "few", "two files that belong together"),
        ("labels", "images.gz", "give the images first, then the labels"),
    ]:
        result = convert(directory, images=images, labels=labels)
        assert isinstance(result.exception, DataError)
        assert problem in str(result.exception)
        assert not (directory / "out").exists()
