"""`stratagem emit` as a command: where it writes, what it mounts, and what is wrong usage."""

import sys
from pathlib import Path

import pytest

from stratagem.tools.launch.cli import main
from unit.tools.emit.reading import objects, of_compose


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with scripts in it, which is the current one."""
    here = tmp_path / "here"
    (here / "deep er").mkdir(parents=True)
    monkeypatch.chdir(here)
    for place in (here / "train.py", here / "deep er" / "it's.py", tmp_path / "other.py"):
        place.write_text("print('a script')\n")
    (here / "text.txt").write_text("no script")
    (here / "bytes.py").write_bytes(b"\xff")
    return here


class Emitted:
    """How the command ended, and what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["stratagem", "emit", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = self._capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def emitted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Emitted:
    return Emitted(capsys, monkeypatch)


def test_prints_or_writes_the_same(emitted: Emitted, in_directory: Path) -> None:
    for kind in ("compose", "k8s", "slurm"):
        code, out, _ = emitted(kind, "train.py", "--workers", "7")
        assert code == 0
        assert "1 parameter server and 3 workers" in out  # what follows SCRIPT is SCRIPT's
        assert emitted(kind, "-o", "file", "train.py", "--workers", "7") == (0, "", "")
        assert Path("file").read_text() == out
        code, _, err = emitted(kind, "--output", "file", "train.py")
        assert code == 2
        assert "file exists already; give another --output, or --overwrite" in err
        assert emitted(kind, "--overwrite", "--output", "file", "train.py")[0] == 0
        Path("file").unlink()


@pytest.mark.parametrize(
    ("output", "script", "mounted", "path"),
    [
        (None, "train.py", ".", "train.py"),
        (None, "deep er/it's.py", ".", "deep er/it's.py"),
        ("deep er/compose.yaml", "train.py", "..", "train.py"),
        ("../compose.yaml", "train.py", "./here", "train.py"),
    ],
)
def test_the_current_directory_is_mounted(
    emitted: Emitted, output: str | None, script: str, mounted: str, path: str
) -> None:
    code, out, _ = emitted("compose", *(["-o", output] if output else []), script)
    assert code == 0
    worker = of_compose(Path(output).read_text() if output else out)["worker-0"]
    assert worker.mounts == {"/job": mounted}
    assert worker.command == ["python", path]


def test_a_script_elsewhere_brings_its_directory(emitted: Emitted, in_directory: Path) -> None:
    worker = of_compose(emitted("compose", "../other.py")[1])["worker-0"]
    assert worker.mounts == {"/job": str(in_directory.parent)}
    assert worker.command == ["python", "other.py"]


def test_a_script_in_the_image_is_not_looked_for(emitted: Emitted) -> None:
    code, out, _ = emitted("compose", "--script-in-image", "/app/train.py", "-x")
    assert code == 0
    assert of_compose(out)["worker-0"].command == ["python", "/app/train.py", "-x"]
    code, out, _ = emitted("k8s", "--script-in-image", "/app/train.py")
    assert code == 0
    assert objects(out, "ConfigMap") == []


def test_kinds_of_kubernetes(emitted: Emitted) -> None:
    _, jobs, _ = emitted("k8s", "train.py")
    _, tfjob, _ = emitted("k8s", "--kind", "tfjob", "train.py")
    assert (len(objects(jobs, "Job")), len(objects(jobs, "TFJob"))) == (2, 0)
    assert (len(objects(tfjob, "Job")), len(objects(tfjob, "TFJob"))) == (0, 1)
    for text in (jobs, tfjob):
        assert objects(text, "ConfigMap")[0]["data"] == {"train.py": "print('a script')\n"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compose"], "Missing argument 'SCRIPT'"),
        (["compose", "absent.py"], "there is no file 'absent.py'"),
        (["slurm", "deep er"], "is a directory"),
        (["slurm", "text.txt"], "neither a .py file nor executable"),
        (["k8s", "a\nb.py"], "cannot be written into a file"),
        (["k8s", "--name", "x", "deep er/it's.py"], "cannot be a key of a ConfigMap"),
        (["k8s", "bytes.py"], "cannot put 'bytes.py' into a ConfigMap"),
        (["compose", "--workers", "0", "train.py"], "0 is not in the range"),
        (["compose", "--grace", "nan", "train.py"], "--grace"),
        (["compose", "--port", "70000", "train.py"], "--port 70000"),
        (["slurm", "--nodes", "9", "train.py"], "--nodes 9: the cluster has 4 tasks"),
        (["slurm", "-o", "absent/file", "train.py"], "cannot write absent/file"),
        (["slurm", "--image", "a", "train.py"], "No such option"),
        (["nomad", "train.py"], "No such command"),
    ],
)
def test_wrong_usage(emitted: Emitted, arguments: list[str], message: str) -> None:
    code, out, err = emitted(*arguments)
    assert (code, out) == (2, "")
    assert message in err
