"""Lines of tasks: cut, labelled, written without ever holding up the launcher."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import LaunchError
from stratagem.tools.launch.output import LONGEST_LINE, LineSplitter, LogFiles, OutputWriter, task_label
from stratagem.tools.launch.tasks import TaskName

WORKER = TaskName("worker", 1)


@given(
    st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and b"\r" not in line)), st.data()
)
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cutter = LineSplitter()
    found = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += cutter.feed(stream[:size])
        stream = stream[size:]
    assert found + cutter.flush() == lines


def test_last_line_without_an_end_is_a_line() -> None:
    cutter = LineSplitter()
    assert cutter.feed(b"a\nb") == [b"a"]
    assert cutter.flush() == [b"b"]
    assert cutter.flush() == []


def test_progress_bar_counts_as_its_last_state() -> None:
    assert LineSplitter().feed(b"10%\r50%\r100%\nnext\r\n") == [b"100%", b"next"]


def test_endless_line_is_shown_in_pieces() -> None:
    assert sum(map(len, LineSplitter().feed(b"x" * (LONGEST_LINE + 1)))) == LONGEST_LINE + 1


def test_labels() -> None:
    assert task_label(WORKER, 0, width=8, colour=False) == b"[worker:1] "
    assert task_label(WORKER, 0, width=10, colour=True) == b"\033[36m[worker:1]  \033[0m "


def test_writer_never_blocks_and_tells_when_there_is_room_again() -> None:
    reader, writing = os.pipe()
    changed = threading.Event()
    writer = OutputWriter(changed.set)
    for _ in range(40):
        writer.put(writing, b"x" * (1 << 16))  # far more than a pipe holds, and nobody reads
    assert writer.is_full
    read = 0
    while read < 40 << 16:
        read += len(os.read(reader, 1 << 16))
    assert changed.wait(10)
    assert not writer.is_full
    writer.close(10)
    os.close(reader)
    os.close(writing)


def test_writer_tells_of_a_closed_pipe() -> None:
    reader, writing = os.pipe()
    os.close(reader)
    changed = threading.Event()
    writer = OutputWriter(changed.set)
    writer.put(writing, b"nobody is there")
    assert changed.wait(10)
    assert writer.is_broken
    writer.close(10)
    os.close(writing)


def test_log_files(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "made" / "here", [WORKER])
    files.write(WORKER, [b"a", b"\xff"])
    files.write(WORKER, [b"c"])
    files.close()
    assert (tmp_path / "made" / "here" / "worker-1.log").read_bytes() == b"a\n\xff\nc\n"


def test_log_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"--log-dir .*file.* give a directory that you can write to"):
        LogFiles(tmp_path / "file", [WORKER])
    (tmp_path / "worker-1.log").mkdir()
    with pytest.raises(LaunchError, match=r"cannot write .*worker-1\.log: Is a directory"):
        LogFiles(tmp_path, [WORKER])


def test_log_that_fills_the_disk_ends_with_a_word_and_not_with_the_job(tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").symlink_to("/dev/full")
    files = LogFiles(tmp_path, [WORKER])
    assert files.write(WORKER, [b"a"]) == "the log of worker:1 ends here: No space left on device"
    assert files.write(WORKER, [b"b"]) is None
    files.close()
