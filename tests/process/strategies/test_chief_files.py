"""Files that every worker saves: the chief writes them once, and nobody waits in vain."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import stratagem as sg
from stratagem.engines import chief_files
from stratagem.engines.chief_files import ChiefFiles
from stratagem.errors import DeadlineExceeded, TaskLost
from stratagem.tools.launch.tasks import ReservedPort

CHIEF = "/job:worker/task:0"


@dataclass
class Pair:
    """A chief and another worker, each with its server, in this process."""

    chief_server: sg.Server
    other_server: sg.Server
    path: Path
    writers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chief = ChiefFiles(self.chief_server, CHIEF)
        self.other = ChiefFiles(self.other_server, CHIEF)

    def write(self, who: str, path: Path) -> Callable[[], None]:
        def write() -> None:
            self.writers.append(who)
            path.write_text(who)

        return write

    def chief_saves(self, path: Path | None = None) -> None:
        self.chief.save(str(path or self.path), self.write("chief", path or self.path))

    def other_saves(self, path: Path | None = None) -> None:
        self.other.save(str(path or self.path), self.write("other", path or self.path))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    ports = [ReservedPort() for _ in range(2)]
    cluster = {"worker": [port.address for port in ports]}
    for port in ports:
        port.close()
    with sg.Server(cluster, "worker", 0) as chief, sg.Server(cluster, "worker", 1) as other:
        yield Pair(chief, other, tmp_path / "file")


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_the_chief_writes_and_waits_for_nobody(pair: Pair, thread: ThreadPoolExecutor) -> None:
    pair.chief_saves()
    pair.other_saves()
    waiting = thread.submit(pair.other_saves)  # once more, before the chief
    pair.chief_saves()
    waiting.result(60)
    assert pair.writers == ["chief", "chief"]


def test_another_worker_writes_what_the_chief_goes_by_without(pair: Pair, thread: ThreadPoolExecutor) -> None:
    waiting = thread.submit(pair.other_saves)
    pair.chief_saves(pair.path.with_name("chief's own"))
    assert not waiting.done()
    pair.chief.next_call()
    waiting.result(60)
    assert pair.writers == ["chief", "other"]


def test_another_worker_writes_what_it_does_not_find(pair: Pair) -> None:
    pair.chief_saves()
    pair.path.unlink()
    pair.other_saves()
    assert pair.writers == ["chief", "other"]


def test_a_chief_that_has_finished_holds_nobody_up(pair: Pair, thread: ThreadPoolExecutor) -> None:
    waiting = thread.submit(pair.other_saves)
    pair.chief_server.stop()
    waiting.result(60)
    assert pair.writers == ["other"]


def test_after_the_end_everybody_writes(pair: Pair) -> None:
    pair.other_server.stop()
    pair.other_saves()
    assert pair.writers == ["other"]


def test_a_lost_chief_holds_nobody_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chief_files, "_LOST_SECONDS", 0.0)
    pair.chief_server.__exit__(KeyError, KeyError(), None)  # it has failed: nobody hears that it has finished
    with pytest.raises(
        TaskLost, match=r"waited for /job:worker/task:0, the chief, to save .*file, and has had no answer"
    ):
        pair.other_saves()


def test_a_chief_that_stands_still_holds_nobody_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chief_files, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(chief_files, "_STILL_SECONDS", 0.0)
    with pytest.raises(
        DeadlineExceeded, match=r"the chief, to save .*file, which has not gone on .*is_chief"
    ):
        pair.other_saves()


def test_what_brings_the_workers_to_an_end_ends_the_wait(pair: Pair) -> None:
    def check() -> None:
        raise sg.WorkerLost("the chief is lost")

    other = ChiefFiles(pair.other_server, CHIEF, check)
    with pytest.raises(sg.WorkerLost, match="the chief is lost"):
        other.save(str(pair.path), pair.write("other", pair.path))


def test_a_worker_catches_up_with_the_chief(pair: Pair, thread: ThreadPoolExecutor) -> None:
    pair.other.next_call()
    waiting = thread.submit(pair.other.catch_up, "to end fit")
    pair.chief.catch_up("for nobody")
    pair.chief.next_call()
    waiting.result(60)
