"""What `stratagem emit` writes, really run: Slurm's script under a stand-in for srun, compose's commands on loopback."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from drills.processes import Marked, until
from unit.tools.emit.reading import of_compose

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "jax_parameter_servers.py"
BIN = Path(sys.executable).parent
SECONDS = 90

SRUN = f"""\
#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
# Stands in for srun: tasks of one step, in blocks, on nodes that are all this machine; ends with the worst of them.
import os, subprocess, sys, threading, time

options, words = {{}}, sys.argv[1:]
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    options[name] = value
allowed = {{"export", "ntasks", "nodes", "cpus-per-task", "distribution", "kill-on-bad-exit", "wait", "label"}}
assert set(options) <= allowed, options
tasks, nodes = int(options["ntasks"]), int(options["nodes"])
counts = [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]
places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
step = {{
    "SLURM_STEP_NODELIST": "127.0.0.[1-%d]" % nodes if nodes > 1 else "127.0.0.1",
    "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
    "SLURM_STEP_NUM_TASKS": str(tasks),
}}
scratch = os.path.dirname(os.path.abspath(__file__))
running, readers, speaking = [], [], threading.Lock()

def pass_on(rank, lines):
    for line in lines:
        with speaking:
            sys.stdout.buffer.write(b"%d: " % rank + line)
            sys.stdout.buffer.flush()

for rank, (node, local) in enumerate(places):
    own = {{"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}}
    running.append(subprocess.Popen(words, env={{**os.environ, **step, **own}}, stdout=subprocess.PIPE))
    readers.append(threading.Thread(target=pass_on, args=(rank, running[-1].stdout)))
    readers[-1].start()
with open(os.path.join(scratch, "tasks"), "w") as file:
    file.write(" ".join(str(task.pid) for task in running))
codes = []
while running:
    for task in [task for task in running if task.poll() is not None]:
        running.remove(task)
        codes.append(task.returncode if task.returncode >= 0 else 128 - task.returncode)
        if codes[-1] and options.get("kill-on-bad-exit") == "1":
            for other in running:
                other.terminate()
    time.sleep(0.01)
for reader in readers:
    reader.join()
sys.exit(max(codes))
"""

SCANCEL = """\
#!/bin/bash
[[ $* == "--signal=TERM 4711" ]] && kill -TERM $(cat "$(dirname "$0")/tasks")
"""

TELLS = """\
import json, os, sys
path = os.environ["STRATAGEM_SECRET_FILE"]
with open(path) as file:
    secret = file.read().strip()
rank = os.environ["SLURM_PROCID"]
with open(f"said-0-{rank}", "w") as file:
    json.dump({
        "config": json.loads(os.environ["TF_CONFIG"]),
        "arguments": sys.argv[1:],
        "modes": [os.stat(path).st_mode & 0o777, os.stat(os.path.dirname(path)).st_mode & 0o777],
        "length": len(secret),
        "shown": secret in str(dict(os.environ)),
        "keras": os.environ["KERAS_BACKEND"],
    }, file)
"""


def free_ports(count: int) -> int:
    """The first of so many ports that nobody listens at, and that the kernel gives to no connection."""
    ends = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        first = random.randrange(1024, ends - count)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
            except OSError:
                continue
            return first
    pytest.fail("no free ports")


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A directory to submit from, with Slurm's commands beside it."""
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": SRUN, "scancel": SCANCEL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    here = tmp_path / "it's here"
    here.mkdir()
    return here


def emit(*arguments: str | Path, directory: Path) -> str:
    words = [sys.executable, "-m", "stratagem", "emit", *map(str, arguments)]
    result = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == 0, result.stderr
    return result.stdout


def submit(text: str, directory: Path, end_when: str | None = None) -> tuple[int, str, str]:
    """Runs a script for sbatch as Slurm would on the first node; tells it to end when a file is there."""
    path = directory / "job.sbatch"
    path.write_text(text)
    subprocess.run(["bash", "-n", path], check=True, timeout=SECONDS)
    environ = {"SLURM_JOB_ID": "4711", "PATH": f"{directory.parent / 'bin'}:{os.environ['PATH']}"}
    with Marked(["env", "-C", str(directory), "bash", str(path)], environ=environ) as job:
        if end_when is not None:
            until("the tasks run", (directory / end_when).exists)
            job.process.terminate()
        out, err = job.process.communicate(timeout=SECONDS)
        left = job.processes()
    assert left == {}
    assert not list(directory.glob(".*")), "the secret has gone with the job"
    return job.process.returncode, out.decode(), err.decode()


def left_over(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"job.sbatch", "train.py"}


def write_training(path: Path) -> None:
    """A script whose workers all take part: in step, none can be late for all of it."""
    text = EXAMPLE.read_text()
    assert "update=sg.Async()" in text
    path.write_text(text.replace("update=sg.Async()", "update=sg.Sync()"))


def test_slurm_trains(slurm: Path) -> None:
    port = free_ports(2)
    write_training(slurm / "train.py")
    options = ["--workers", "2", "--nodes", "2", "--max-restarts", "1", "--port", str(port)]
    code, out, err = submit(emit("slurm", *options, "train.py", directory=slurm), slurm)
    assert code == 0, err
    assert f"/job:ps/task:0 serves at sg://127.0.0.1:{port}" in out
    found = re.findall(r"(\d+) updates, accuracy ([\d.]+)", out)
    assert len(found) == 2
    assert all(400 <= int(updates) <= 401 and float(accuracy) > 0.9 for updates, accuracy in found)
    assert left_over(slurm) == set()  # neither the secret nor the snapshots


def test_slurm_tells_each_task_who_it_is_and_hides_the_secret(slurm: Path) -> None:
    (slurm / "train.py").write_text(TELLS)
    words = ["a b", "it's", "$HOME", "`id`", "a\nb", ""]
    options = ["--ps", "0", "--workers", "3", "--evaluator", "--nodes", "2"]
    code, _, err = submit(emit("slurm", *options, "train.py", *words, directory=slurm), slurm)
    assert code == 0, err
    said = [json.loads((slurm / f"said-0-{rank}").read_text()) for rank in range(4)]
    port = 20000 + 4711 % 750 * 16
    workers = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}", f"127.0.0.2:{port}"]
    tasks = [*({"type": "worker", "index": index} for index in range(3)), {"type": "evaluator", "index": 0}]
    for task, words_of_task in zip(tasks, said, strict=True):
        assert words_of_task == {
            "config": {"cluster": {"worker": workers}, "task": task},
            "arguments": words,
            "modes": [0o600, 0o700],
            "length": 64,
            "shown": False,
            "keras": "jax",
        }
    assert left_over(slurm) == {f"said-0-{rank}" for rank in range(4)}


FAILS = """
import os, signal, sys
generation = int(os.environ["STRATAGEM_GENERATION"])
rank = os.environ["SLURM_PROCID"]
open(f"said-{generation}-{rank}", "w").close()
"""
WAITS = """
def save(*_):
    open(f"saved-{rank}", "w").close()
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.mkdir(f"waits-{rank}")
if all(os.path.exists(f"waits-{each}") for each in "01"):
    os.makedirs("all-wait", exist_ok=True)
signal.sigwait([signal.SIGTERM])
save()
"""


def generations_of(directory: Path) -> set[str]:
    return {name.split("-")[1] for name in left_over(directory) if name.startswith("said-")}


@pytest.mark.parametrize(
    ("body", "succeeds", "generations"),
    [("sys.exit(generation == 0)", True, 2), ("sys.exit(3)", False, 3)],
    ids=["recovers", "gives up"],
)
def test_slurm_starts_all_again_as_often_as_was_asked(
    slurm: Path, body: str, succeeds: bool, generations: int
) -> None:
    (slurm / "train.py").write_text(FAILS + body)
    options = ["--ps", "0", "--workers", "2", "--max-restarts", "2"]
    code, _, _ = submit(emit("slurm", *options, "train.py", directory=slurm), slurm)
    assert (code == 0) == succeeds
    assert generations_of(slurm) == {str(each) for each in range(generations)}


@pytest.mark.parametrize("restarts", ["0", "2"])
def test_slurm_hands_a_failure_on(slurm: Path, restarts: str) -> None:
    (slurm / "train.py").write_text("raise SystemExit(3)")
    options = ["--ps", "0", "--workers", "1", "--max-restarts", restarts]
    assert submit(emit("slurm", *options, "train.py", directory=slurm), slurm)[0] == 3


def test_slurm_does_not_start_again_what_it_was_told_to_end(slurm: Path) -> None:
    (slurm / "train.py").write_text(FAILS + WAITS)
    options = ["--ps", "0", "--workers", "2", "--max-restarts", "2"]
    text = emit("slurm", *options, "train.py", directory=slurm)
    code, _, _ = submit(text, slurm, end_when="all-wait")
    assert code == 143
    assert generations_of(slurm) == {"0"}
    assert {"saved-0", "saved-1"} <= left_over(slurm)


def test_slurm_task_says_what_is_wrong(slurm: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "stratagem.tools.emit.slurm_task", *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=slurm)
        return result.returncode, result.stderr

    assert run("--ps", "1", "--", "true") == (
        2,
        "stratagem: this process is not in a Slurm step of several tasks, and the cluster has 2: start it with srun --ntasks=2\n",
    )
    code, said = run("--workers", "1", "--", "./absent")
    assert code == 1
    assert "stratagem: cannot run './absent': No such file or directory" in said
    assert run("--workers", "1")[0] == 2


def run_services(text: str, directory: Path, secret: Path) -> dict[str, str]:
    """Runs the command of every service at once, with this machine for all hosts, to a good end; what each said."""
    services = of_compose(text)
    first = free_ports(len(services))
    ports = {name: first + number for number, name in enumerate(services)}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, service in services.items():
            environ = dict(service.environ)
            for host, port in ports.items():
                environ["TF_CONFIG"] = environ["TF_CONFIG"].replace(f'"{host}:2222"', f'"127.0.0.1:{port}"')
            assert environ["STRATAGEM_SECRET_FILE"] == "/run/secrets/stratagem"
            environ |= {"STRATAGEM_SECRET_FILE": str(secret), "PATH": f"{BIN}:{os.environ['PATH']}"}
            place = directory / service.mounts["/job"] if "/job" in service.mounts else directory
            words = ["env", "-C", str(place), *service.command]
            said = stack.enter_context((directory / f"{name}.log").open("wb"))
            task = Marked(words, environ=environ, stdout=said, stderr=subprocess.STDOUT)
            running[name] = stack.enter_context(task).process

        def codes() -> dict[str, int | None]:
            return {name: process.poll() for name, process in running.items()}

        def is_over() -> bool:
            return any(codes().values()) or None not in codes().values()

        until("all services have ended, or one has failed", is_over, SECONDS)
        said_by = {name: (directory / f"{name}.log").read_text() for name in services}
        assert set(codes().values()) == {0}, said_by
    return said_by


def test_compose_trains(tmp_path: Path) -> None:
    write_training(tmp_path / "train.py")
    text = emit("compose", "--workers", "2", "train.py", directory=tmp_path)
    make = re.search(r"^# +(\(umask .*\))$", text, re.MULTILINE)
    assert make
    subprocess.run(["bash", "-c", make[1]], cwd=tmp_path, check=True, timeout=SECONDS)
    secret = tmp_path / "train.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_text().strip()) == 64
    said = run_services(text, tmp_path, secret)
    for name in ("worker-0", "worker-1"):
        assert re.search(r"40\d updates, accuracy 0\.9", said[name])


def has_compose() -> bool:
    words = ["docker", "compose", "version"]
    return shutil.which("docker") is not None and subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
@pytest.mark.parametrize(
    "options", [[], ["--max-restarts", "2", "--evaluator", "--gpus-per-worker", "1"], ["--single-client"]]
)
def test_compose_by_docker_itself(tmp_path: Path, options: Sequence[str]) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "train.secret").write_text("a secret\n")
    emit("compose", *options, "-o", "compose.yaml", "train.py", "$HOME", "it's", directory=tmp_path)
    words = ["docker", "compose", "config", "-q"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
