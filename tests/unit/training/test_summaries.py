"""Summaries, read back by TensorBoard itself."""

import io
import json
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stratagem as sg
from stratagem.training.cluster_status import status_figures
from stratagem.training.event_file import EventFile
from stratagem.training.summary_values import as_images, encode_png, histogram_of, histogram_of_counts

CHIEF = SimpleNamespace(is_chief=True)
OTHER = SimpleNamespace(is_chief=False)


def read(directory: Path) -> Any:
    """All that is in the directory; nothing is thinned out."""
    found = EventAccumulator(str(directory), {"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    found = read(directory)
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]
    }


def texts(directory: Path) -> dict[str, str]:
    found = read(directory)
    return {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}


def test_scalars_are_there_when_the_call_returns(tmp_path: Path) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        for step in range(3):
            writer.scalar("loss", jnp.float32(step) / 2, jnp.int32(step))
        assert scalars(tmp_path) == {"loss": [(0, 0.0), (1, 0.5), (2, 1.0)]}
        writer.flush()
    writer.close()


@pytest.mark.parametrize("value", [1, 1.0, np.float16(1), np.ones(1), np.ones((1, 1)), jnp.bfloat16(1), True])
def test_any_single_number_is_a_scalar(tmp_path: Path, value: Any) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        writer.scalar("one", value, 0)
    assert scalars(tmp_path) == {"one": [(0, 1.0)]}


@pytest.mark.parametrize("value", [np.ones(2), "much", None, np.ones(0)])
def test_other_values_are_refused_by_name(tmp_path: Path, value: Any) -> None:
    with (
        sg.SummaryWriter(tmp_path, CHIEF) as writer,
        pytest.raises(sg.DataError, match=r"'loss'.*one number"),
    ):
        writer.scalar("loss", value, 0)


def test_histograms_of_a_pytree_have_the_names_of_its_leaves(tmp_path: Path) -> None:
    tree = {"dense": {"w": jnp.arange(6.0).reshape(2, 3), "b": np.zeros(4)}, "scale": jnp.bfloat16(2)}
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        writer.histograms("gradients", tree, 7)
        writer.histograms("alone", np.ones(3), 7)
    found = read(tmp_path)
    assert sorted(found.Tags()["histograms"]) == [
        "alone",
        "gradients/dense/b",
        "gradients/dense/w",
        "gradients/scale",
    ]
    (event,) = found.Histograms("gradients/dense/w")
    spread = event.histogram_value
    assert (event.step, spread.num, spread.min, spread.max, spread.sum) == (7, 6, 0, 5, 15)
    assert sum(spread.bucket) == 6


def test_what_is_not_finite_is_counted(tmp_path: Path) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        writer.histogram("w", [1.0, np.nan, np.inf, 2.0], 0)
        writer.histogram("lost", [np.nan], 0)
        writer.histogram("nothing", [], 0)
    assert scalars(tmp_path) == {"w/not_finite": [(0, 2.0)], "lost/not_finite": [(0, 1.0)]}
    assert read(tmp_path).Tags()["histograms"] == ["w"]


@pytest.mark.parametrize(
    "values",
    [
        [3.0] * 5,
        [-1e308, 1e308],
        [1.0, 1.0 + 2e-16],
        [0.0, 5e-324],
        [-1.0, np.nextafter(-1, 0)],
        [0],
        np.arange(1000),
        [True, False],
        np.array([1, 2], np.float16),
    ],
)
def test_histograms_lose_no_value(values: Any) -> None:
    spread = histogram_of(values)
    assert sum(spread.counts) == np.size(values)
    assert len(spread.limits) == len(spread.counts)
    assert list(spread.limits) == sorted(spread.limits)
    assert spread.limits[-1] == spread.maximum == np.max(values)


def test_a_histogram_of_words_is_refused() -> None:
    with pytest.raises(sg.DataError, match="give numbers"):
        histogram_of(["a"])


def test_counts_have_a_bucket_each() -> None:
    spread = histogram_of_counts({1: 2, 3: 1, 9: 0})
    assert spread.counts == (2.0, 0.0, 1.0)
    assert spread.limits == (1.5, 2.5, 3.5)
    assert (spread.total, spread.squares) == (5.0, 11.0)


def decoded(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and rows of a PNG without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    stream, chunks = io.BytesIO(data[8:]), {}
    while head := stream.read(8):
        length, kind = struct.unpack(">I4s", head)
        body = stream.read(length)
        assert struct.unpack(">I", stream.read(4))[0] == zlib.crc32(kind + body)
        chunks[kind] = body
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert b"IEND" in chunks
    return width, height, zlib.decompress(chunks[b"IDAT"])


def test_images_of_every_shape(tmp_path: Path) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        writer.image("grey", np.eye(4), 1)
        writer.image("colour", np.zeros((4, 5, 3), np.uint8), 1)
        writer.image("batch", jnp.ones((3, 4, 5, 4)), 1, max_images=2)
        writer.image("digits", np.zeros((2, 8, 8), bool), 1)
    found = read(tmp_path)
    assert sorted(found.Tags()["images"]) == ["batch/0", "batch/1", "colour", "digits/0", "digits/1", "grey"]
    (grey,) = found.Images("grey")
    assert (grey.width, grey.height, grey.step) == (4, 4, 1)
    width, height, rows = decoded(grey.encoded_image_string)
    assert (width, height) == (4, 4)
    assert np.frombuffer(rows, np.uint8).reshape(4, 5)[:, 1:].tolist() == (255 * np.eye(4)).tolist()
    (colour,) = found.Images("colour")
    assert (colour.width, colour.height) == (5, 4)


def test_floats_are_rounded_and_held_between_black_and_white() -> None:
    (image,) = as_images([[0.5, 2.0, -1.0, np.nan]])
    assert image.ravel().tolist() == [128, 255, 0, 0]
    (image,) = as_images(np.array([[300, -1, 7]]))
    assert image.ravel().tolist() == [255, 0, 7]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_has_every_pixel(channels: int) -> None:
    image = np.random.default_rng(0).integers(256, size=(3, 2, channels), dtype=np.uint8)
    width, height, rows = decoded(encode_png(image))
    assert (width, height) == (2, 3)
    assert np.frombuffer(rows, np.uint8).reshape(3, -1)[:, 1:].tobytes() == image.tobytes()


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2, 2), (1, 2, 2, 2, 3), (0, 4)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(sg.DataError, match=r"height, width"):
        as_images(np.zeros(shape))


def test_texts(tmp_path: Path) -> None:
    cluster = sg.ClusterSpec({"worker": ["a:1", "b:2"], "ps": ["c:3"]})
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        writer.text("note", "*begun* größer")
        writer.cluster(cluster)
        writer.placement({"w": "/job:ps/task:0"})
    with sg.SummaryWriter(tmp_path / "variables", CHIEF) as writer:
        writer.placement([SimpleNamespace(name="b|c", device="/cpu:0")])
    found = texts(tmp_path)
    assert found["note"] == "*begun* größer"
    assert "| /job:worker/task:1 | b:2 |" in found["cluster"]
    assert found["placement"].splitlines()[-1] == "| w | /job:ps/task:0 |"
    assert "| b&#124;c | /cpu:0 |" in texts(tmp_path / "variables")["placement"]


def test_training_writes_all_that_a_step_tells(tmp_path: Path) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        for step in range(1, 151):
            metrics = {
                "loss": jnp.float32(1 / step),
                "global_step": step,
                "dropped": 0,
                "staleness": step % 3,
            }
            writer.training(metrics, examples_per_second=1200.0)
        writer.training(
            {"loss": 2.0, "gradients": np.arange(9)}, 151, examples_per_second={"/job:worker/task:1": 5}
        )
    found = read(tmp_path)
    told = scalars(tmp_path)
    assert told["training/loss"][149][0] == 150 and told["training/loss"][150] == (151, 2.0)
    assert told["training/staleness"][:3] == [(1, 1.0), (2, 2.0), (3, 0.0)]
    assert told["speed/examples_per_second"][-1] == (150, 1200.0)
    assert told["speed/examples_per_second/job:worker/task:1"] == [(151, 5.0)]
    windows = found.Histograms("training/staleness_histogram")
    assert [(event.step, list(event.histogram_value.bucket)) for event in windows] == [
        (100, [33, 34, 33]),
        (150, [17, 16, 17]),
    ]
    assert found.Histograms("training/gradients")[0].histogram_value.num == 9
    everything = [tag for kind in ("scalars", "histograms") for tag in found.Tags()[kind]]
    assert len(everything) == len(set(everything))  # TensorBoard shows one kind per name


def test_training_needs_a_step(tmp_path: Path) -> None:
    with (
        sg.SummaryWriter(tmp_path, CHIEF) as writer,
        pytest.raises(sg.DataError, match=r"loss.*give step="),
    ):
        writer.training({"loss": 1.0})


def status(step: int, seconds: float, staleness: dict[str, int], incarnation: str = "a") -> dict[str, Any]:
    model = {
        "global_step": step,
        "active": ["worker:0", "worker:1"],
        "dropped": {"/job:worker/task:1": 2},
        "staleness": staleness,
        "pushed": {"/job:worker/task:0": step, "/job:worker/task:1": 2 * step},
    }
    common = {"calls": {"push": step}, "seconds": seconds, "bytes_in": 10 * step, "bytes_out": step}
    return {
        "/job:ps/task:0": {**common, "incarnation": incarnation, "parameters": {"model-0": model}},
        "/job:ps/task:1": {**common, "incarnation": "b", "parameters": {"model-0": {"variables": []}}},
        "/job:worker/task:1": {"error": "unreachable"},
    }


def test_status_of_servers_becomes_figures(tmp_path: Path) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        writer.status(status(10, 1.0, {"0": 10}), 10)
        writer.status(status(30, 3.0, {"0": 20, "1": 10}), 30)
    told = scalars(tmp_path)
    assert told["servers/model-0/staleness"] == [(10, 0.0), (30, 0.5)]
    assert told["servers/model-0/updates_per_second"] == [(30, 10.0)]
    assert told["servers/model-0/dropped/job:worker/task:1"] == [(10, 2.0), (30, 2.0)]
    assert told["tasks/job:ps/task:1/bytes_in_per_second"] == [(30, 100.0)]
    assert told["workers/job:worker/task:1/steps_per_second"] == [(30, 20.0)]
    histograms = read(tmp_path).Histograms("servers/model-0/staleness_histogram")
    assert [list(event.histogram_value.bucket) for event in histograms] == [[10], [10, 10]]


def test_a_server_that_was_started_again_has_no_rates() -> None:
    figures = status_figures(status(5, 1.0, {"0": 5}, "new"), status(90, 9.0, {"0": 90}))
    assert figures.scalars["servers/model-0/global_step"] == 5
    assert "servers/model-0/updates_per_second" not in figures.scalars
    assert sum(figures.histograms["servers/model-0/staleness_histogram"].counts) == 5


class Untouchable:
    """Fails whoever looks at it, as arrays of a step under way make everyone wait who does."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def test_all_but_the_chief_write_nothing_and_look_at_nothing(tmp_path: Path) -> None:
    value: Any = Untouchable()
    with sg.SummaryWriter(tmp_path / "logs", OTHER) as writer:
        writer.scalar("loss", value, 0)
        writer.histogram("w", value, 0)
        writer.histograms("w", value, 0)
        writer.image("i", value, 0)
        writer.text("t", value)
        writer.training(value, 0)
        writer.status(value, 0)
        writer.cluster(value)
        writer.placement(value)
        writer.flush()
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("job", "index", "writes"),
    [("worker", 0, True), ("worker", 1, False), ("ps", 0, False), ("evaluator", 0, True)],
)
def test_the_environment_tells_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, index: int, writes: bool
) -> None:
    cluster = {"worker": ["a:1", "b:2"], "ps": ["c:3"], "evaluator": ["d:4"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))
    with sg.SummaryWriter(tmp_path / "logs") as writer:
        writer.scalar("loss", 1, 0)
    assert (tmp_path / "logs").exists() == writes
    with sg.SummaryWriter(tmp_path / "each", each_worker=True) as writer:
        writer.scalar("speed", 5, 0)
    assert scalars(tmp_path / "each" / f"{job}-{index}") == {"speed": [(0, 5.0)]}


def test_writers_are_read_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    for step in range(12):  # so that one number at the end of a name has a digit more than the one before
        with sg.SummaryWriter(tmp_path) as writer:
            writer.scalar("loss", 0.5, step)
    assert [each.step for each in EventAccumulator(str(tmp_path)).Reload().Scalars("loss")] == list(range(12))


def test_writers_of_one_second_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for number in range(3):
        with sg.SummaryWriter(tmp_path, CHIEF) as writer:
            writer.scalar("loss", number, number)
    assert scalars(tmp_path) == {"loss": [(0, 0.0), (1, 1.0), (2, 2.0)]}


def test_a_resumed_training_hides_what_it_does_again(tmp_path: Path) -> None:
    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        for step in range(5):
            writer.scalar("loss", 1, step)
    with sg.SummaryWriter(tmp_path, CHIEF, resumed_at=3) as writer:
        writer.scalar("loss", 2, 3)
    assert scalars(tmp_path)["loss"] == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0)]


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for step in range(50):
            writer.scalar(name, 1, step)

    with sg.SummaryWriter(tmp_path, CHIEF) as writer:
        threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {tag: len(events) for tag, events in scalars(tmp_path).items()} == {"a": 50, "b": 50, "c": 50}


def test_writing_after_the_end_is_refused(tmp_path: Path) -> None:
    writer = sg.SummaryWriter(tmp_path, CHIEF)
    writer.close()
    with pytest.raises(sg.KeepError, match="before `close`"):
        writer.scalar("loss", 1, 0)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(sg.KeepError, match=r"file: File exists; give a directory"):
        sg.SummaryWriter(tmp_path / "file", CHIEF)


def test_a_full_disk_is_told_of_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = EventFile(tmp_path)
    file._file.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        file._file = full
        file.scalar("loss", 1.0, 0)
        file.scalar("loss", 1.0, 1)
        file.flush()
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["No space left on device"]


def test_without_tensorboardx_the_extra_is_named(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["tensorboardX"] = None
import stratagem as sg
try:
    sg.SummaryWriter({str(tmp_path)!r})
except ImportError as error:
    assert isinstance(error, sg.MissingExtra)
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install 'stratagem[tensorboard]'" in out.stdout, out.stderr
