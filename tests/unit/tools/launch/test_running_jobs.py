"""Notes of running jobs: found by their user, gone with their launcher, and never read or written where others could be."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from drills.processes import fork
from stratagem.errors import LaunchError
from stratagem.tools.launch.running_jobs import RunningJob, find_job, register_job, running_jobs

JOB = RunningJob("python train.py", 1.0, ("127.0.0.1:2000", "127.0.0.1:2001"), "a secret")
OTHER = RunningJob("python other.py", 2.0, ("127.0.0.1:3000",), None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where notes are kept."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "session").mkdir(mode=0o700)
    (tmp_path / "temporary").mkdir()
    return tmp_path / "session" / "stratagem"


def test_a_job_is_found_as_long_as_it_runs(place: Path) -> None:
    assert running_jobs() == []
    forget = register_job(JOB, "a")
    forget_other = register_job(OTHER, "b")
    assert (place.stat().st_mode & 0o777, (place / "a").stat().st_mode & 0o777) == (0o700, 0o600)
    assert running_jobs() == [JOB, OTHER]
    forget()
    assert running_jobs() == [OTHER]
    forget_other()
    assert not place.exists()


def test_the_secret_is_not_shown() -> None:
    assert "a secret" not in repr(JOB)


def test_without_a_directory_of_the_session_it_is_beside_temporary_files(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    forget = register_job(JOB, "a")
    assert (Path(tempfile.gettempdir()) / f"stratagem-{os.geteuid()}" / "a").exists()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.parent))
    assert running_jobs() == [JOB]  # asked from a session that has one
    forget()


def test_what_a_killed_launcher_has_left_is_removed(place: Path) -> None:
    ready, done = os.pipe()
    pid = fork()
    if pid == 0:
        register_job(JOB, "left")
        os.write(done, b"!")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"!"
        assert running_jobs() == [JOB]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert (place / "left").exists()
    assert running_jobs() == []
    assert not (place / "left").exists()


def as_a_link(place: Path) -> None:
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)


def open_to_others(place: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


def of_another(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)


def as_a_file(place: Path) -> None:
    place.touch()


@pytest.mark.parametrize("make", [as_a_link, open_to_others, of_another, as_a_file])
def test_a_directory_that_is_not_private_is_refused(
    make: Callable[[Path], None], place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if make is of_another and os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    make(place)
    with pytest.raises(LaunchError, match=f"{place} is no.*remove it"):
        register_job(JOB, "a")
    assert not list(place.parent.rglob("a")), "something was written"
    assert running_jobs() == []
    (message,) = caplog.messages
    assert str(place) in message and "ignoring it" in message


def test_files_of_others_and_links_are_not_read(place: Path) -> None:
    forget = register_job(JOB, "a")
    (place / "link").symlink_to(place / "a")
    (place / "open").write_bytes((place / "a").read_bytes())
    (place / "open").chmod(0o644)
    os.mkfifo(place / "pipe", 0o600)
    assert running_jobs() == [JOB]
    assert (place / "open").exists()
    forget()


def test_a_note_does_not_follow_a_link_or_replace_a_file(place: Path) -> None:
    place.mkdir(mode=0o700)
    victim = place.parent / "victim"
    victim.write_text("mine")
    (place / "a").symlink_to(victim)
    with pytest.raises(FileExistsError):
        register_job(JOB, "a")
    assert victim.read_text() == "mine"


def test_which_job_is_meant() -> None:
    assert find_job("sg://127.0.0.1:2001", [JOB, OTHER]) is JOB
    assert find_job("localhost:3000", [JOB, OTHER]) is OTHER
    assert find_job("sg://127.0.0.1:4000", [JOB, OTHER]) is None
    assert find_job("nonsense", [JOB]) is None
    assert find_job(None, [JOB]) is JOB
    with pytest.raises(LaunchError, match=r"no job of yours,.* is running on this machine; give the TARGET"):
        find_job(None, [])
    with pytest.raises(LaunchError, match=r"2 jobs .*\n  sg://127.0.0.1:2000  python train.py\n  sg://127"):
        find_job(None, [JOB, OTHER])
