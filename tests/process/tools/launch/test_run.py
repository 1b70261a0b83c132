"""`stratagem run` with real processes: what users see when all goes well, and when it does not."""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from drills.launcher import OWN_TERMINAL, SCRIPT, drills
from drills.processes import Marked, is_stopped, launcher, until
from process.conftest import ScriptWriter
from stratagem.tools.launch.running_jobs import running_jobs
from stratagem.tools.launch.status import status

PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
name = f"{job}:{index}"
generation = int(os.environ["STRATAGEM_GENERATION"])
"""
GONE = 10.0
"""Seconds: the drills measure the promised two; here it only has to happen."""


def test_every_task_gets_its_own_config_and_arguments(script: ScriptWriter) -> None:
    path = script('print(json.dumps({"config": config, "arguments": sys.argv[1:]}))')
    with launcher("--ps", "1", "--workers", "2", "--evaluator", path, "--lr", "0.1", "--workers=7") as job:
        code, out, _ = job.finish()
    assert code == 0
    said = {
        line.split("]")[0][1:]: json.loads(line.partition("] ")[2])
        for line in out.splitlines()
        if "{" in line
    }
    assert sorted(said) == ["evaluator:0", "worker:0", "worker:1"]
    for name, words in said.items():
        assert "{type}:{index}".format(**words["config"]["task"]) == name
        assert words["arguments"] == ["--lr", "0.1", "--workers=7"]
    clusters = [words["config"]["cluster"] for words in said.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    assert {job: len(addresses) for job, addresses in clusters[0].items()} == {"ps": 1, "worker": 2}


def test_stdout_and_stderr_keep_apart_and_lines_whole(script: ScriptWriter) -> None:
    path = script("""
        for number in range(200):
            print(name, "out", number)
            print(name, "err", number, file=sys.stderr)
        sys.stdout.write("no end")
    """)
    with launcher("--workers", "3", path) as job:
        code, out, err = job.finish()
    assert code == 0
    for text, stream in ((out, "out"), (err, "err")):
        for index in range(3):
            numbers = re.findall(rf"^\[worker:{index}\] worker:{index} {stream} (\d+)$", text, re.MULTILINE)
            assert numbers == [str(number) for number in range(200)]
    assert out.count("no end\n") == 3


def test_failure_is_shown_with_its_task_and_traceback_and_ends_the_others(script: ScriptWriter) -> None:
    path = script("""
        if name == "worker:1":
            raise ValueError("the cause")
        time.sleep(600)
    """)
    with launcher("--ps", "1", "--workers", "3", path) as job:
        code, _, err = job.finish()
        job.gone(GONE)
    assert code == 1
    report = err[err.index("stratagem: worker:1 failed, with exit code 1:") :]
    assert 'raise ValueError("the cause")' in report
    assert report.rstrip().endswith("ValueError: the cause")


def test_cause_comes_first_even_when_it_exits_last(script: ScriptWriter, tmp_path: Path) -> None:
    path = script(f"""
        import traceback
        flag = {str(tmp_path / "flag")!r}
        if name == "worker:1":
            try:
                raise ValueError("the cause")
            except ValueError:
                traceback.print_exc()
            open(flag, "w").close()
            signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
            time.sleep(600)
        while not os.path.exists(flag):
            time.sleep(0.01)
        raise RuntimeError("worker:1 is lost")
    """)
    with launcher("--workers", "2", path) as job:
        code, _, err = job.finish()
    assert code == 1
    report = err[err.index("stratagem: worker:1 failed first, with exit code 1:") :]
    cause, _, others = report.partition("then worker:0 failed, with exit code 1")
    assert cause.startswith(
        "stratagem: worker:1 failed first, with exit code 1:\n  Traceback (most recent call last):"
    )
    assert cause.endswith("\n  ValueError: the cause\n")
    assert "RuntimeError" not in cause and not others.strip(), report


def test_task_killed_by_a_signal_is_named(script: ScriptWriter) -> None:
    path = script("os.kill(os.getpid(), signal.SIGKILL) if index == 1 else time.sleep(600)")
    with launcher("--workers", "2", path) as job:
        code, _, err = job.finish()
    assert code == 1
    assert "worker:1 failed, with signal SIGKILL" in err


def test_servers_that_nobody_says_goodbye_to_do_not_keep_the_job(script: ScriptWriter) -> None:
    with launcher("--ps", "2", "--workers", "1", script('print("done")')) as job:
        code, _, err = job.finish()
        job.gone(GONE)
    assert (code, err) == (0, "")


def test_killed_server_is_restarted_alone_and_keeps_its_port(
    script: ScriptWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the user who has started the job can look at it, knowing neither its secret nor its address."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where other tests' jobs are not
    path = script(f"""
        enough = {str(tmp_path / "enough")!r}
        import stratagem as sg
        with sg.Session("sg://" + config["cluster"]["ps"][0]) as session:
            first = session.status()["/job:ps/task:0"]
            os.kill(first["process"], signal.SIGKILL)
            while True:
                second = session.status()["/job:ps/task:0"]
                if second.get("process", first["process"]) != first["process"]:
                    break
                time.sleep(0.05)
        print("it came back")
        open(enough + " soon", "w").close()
        while not os.path.exists(enough):
            time.sleep(0.01)
    """)
    with launcher("--ps", "1", "--max-restarts", "1", path) as job:
        until("the server to be back", (tmp_path / "enough soon").exists)
        (known,) = running_jobs()
        shown = [CliRunner().invoke(status, [*which, "--json"]) for which in ([], [known.target])]
        (tmp_path / "enough").touch()
        code, out, err = job.finish()
    secret = known.secret
    assert secret is not None
    for told in shown:
        assert told.exit_code == 0, told.output
        assert "devices" in json.loads(told.stdout)["/job:ps/task:0"]
        assert secret not in told.output
    assert code == 0, err
    assert secret not in out + err
    assert not (tmp_path / "stratagem").exists()
    assert "it came back" in out
    assert "ps:0 failed with signal SIGKILL" in err


def test_single_client_runs_the_script_once(script: ScriptWriter) -> None:
    path = script("""
        import stratagem as sg
        with sg.Session("sg://" + config["cluster"]["ps"][0]) as session:
            print(name, sorted(found.name for found in session.devices()))
            print(session.run(lambda x: x + 1, 41, device="/job:worker/task:1"))
    """)
    arguments = ["--ps", "1", "--workers", "2", "--single-client", "--devices-per-worker", "2"]
    with launcher(*arguments, path) as job:
        code, out, err = job.finish()
        job.gone(GONE)
    assert code == 0, err
    names = [
        f"/job:worker/replica:0/task:{task}/device:CPU:{index}" for task in range(2) for index in range(2)
    ]
    assert f"chief:0 {['/job:ps/replica:0/task:0/device:CPU:0', *names]}" in out
    assert "[chief:0]  42" in out


def test_each_run_has_a_secret_of_its_own(script: ScriptWriter) -> None:
    path = script('print("secret", os.environ["STRATAGEM_SECRET"])')
    found = set()
    for _ in range(2):
        with launcher("--workers", "2", path) as job:
            _, out, _ = job.finish()
        (secret,) = {line.split()[-1] for line in out.splitlines()}
        found.add(secret)
    assert len(found) == 2
    assert all(len(secret) == 64 for secret in found)


def test_restart_of_the_task_alone_with_servers(script: ScriptWriter) -> None:
    path = script("""
        print("generation", generation, config["cluster"])
        if job == "worker" and index == 0:
            sys.exit(0 if generation == 2 else 5)
    """)
    with launcher("--ps", "1", "--workers", "2", "--max-restarts", "2", path) as job:
        code, out, err = job.finish()
    assert code == 0
    seen = re.findall(r"^\[(\w+:\d)\]\s+generation (\d) (.*)$", out, re.MULTILINE)
    assert sorted(name + generation for name, generation, _ in seen) == [
        "worker:00",
        "worker:01",
        "worker:02",
        "worker:10",
    ]
    assert len({cluster for *_, cluster in seen}) == 1, "a restarted task keeps its port"
    assert "worker:0 failed with exit code 5: restarting it in 0.5 s (restart 1 of 2)" in err


def test_restart_of_the_whole_job_without_servers(script: ScriptWriter) -> None:
    path = script("""
        print("generation", generation)
        if generation == 0:
            sys.exit(1) if index == 1 else time.sleep(600)
    """)
    with launcher("--workers", "2", "--max-restarts", "1", path) as job:
        code, out, _ = job.finish()
    assert code == 0
    seen = re.findall(r"^\[(.*)\] generation (\d)$", out, re.MULTILINE)
    assert ("worker:1", "0") in seen
    assert sorted(name for name, number in seen if number == "1") == ["worker:0", "worker:1"]


def test_restarts_run_out(script: ScriptWriter) -> None:
    with launcher("--max-restarts", "1", script('raise ValueError(f"again {generation}")')) as job:
        code, _, err = job.finish()
    assert code == 1
    assert "--max-restarts 1 is reached" in err
    report = err[err.index("stratagem: worker:0 failed, with exit code 1:") :]
    assert "again 1" in report
    assert "again 0" not in report


def test_dead_task_does_not_look_alive(script: ScriptWriter) -> None:
    path = script("""
        if name == "worker:1":
            listener = socket.socket(fileno=int(os.environ["STRATAGEM_LISTEN_FD"]))
            assert listener.getsockname() == ("127.0.0.1", int(config["cluster"]["worker"][1].split(":")[1]))
            listener.listen()
            listener.accept()
            sys.exit(0)
        host, port = config["cluster"]["worker"][1].split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=5)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=5)
            except ConnectionResetError:
                continue  # it was just ending
            except ConnectionRefusedError:
                break
        print("worker:1 came and went")
    """)
    with launcher("--workers", "2", path) as job:
        code, out, err = job.finish()
    assert code == 0, err
    assert "worker:1 came and went" in out


def test_a_launcher_that_lags_behind_survives_what_it_hears_at_once(script: ScriptWriter) -> None:
    with launcher("--workers", "2", script("time.sleep(60)")) as job:
        until("both workers to run", lambda: len(job.find("script.py")) == 5)
        os.kill(job.pid, signal.SIGSTOP)
        until("the launcher to be stopped", lambda: is_stopped(job.pid))
        for keeper in job.find("keeper.py"):
            os.kill(keeper, signal.SIGKILL)
        # The ends of the keepers, and of what the tasks printed, wait for it together.
        until("all tasks to have ended", lambda: set(job.processes()) == {job.pid})
        os.kill(job.pid, signal.SIGCONT)
        code, _, err = job.finish()
    assert code == 1
    assert re.search(r"worker:\d failed with signal SIGKILL", err)
    assert "Traceback" not in err


def test_more_tasks_than_select_has_descriptors_for(script: ScriptWriter) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with launcher("--workers", "12", script('print("hi")'), pass_fds=many) as job:
            code, out, err = job.finish()
    finally:
        for descriptor in many:
            os.close(descriptor)
    assert code == 0, err
    assert out.count("hi") == 12


def test_log_files(script: ScriptWriter, tmp_path: Path) -> None:
    path = script('print("to", name); print("also", name, file=sys.stderr)')
    with launcher("--workers", "2", "--log-dir", tmp_path / "logs", path) as job:
        assert job.finish()[0] == 0
    for index in range(2):
        lines = (tmp_path / "logs" / f"worker-{index}.log").read_text().splitlines()
        assert sorted(lines) == [f"also worker:{index}", f"to worker:{index}"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_end_everything(number: signal.Signals, code: int) -> None:
    with launcher("--ps", "1", "--workers", "2", SCRIPT, stdout=subprocess.DEVNULL) as job:
        until("grandchildren", lambda: len(job.find("grandchild")) >= 6)
        os.kill(job.pid, number)
        assert job.finish()[0] == code
        job.gone(GONE)


def test_grace_lets_tasks_save(script: ScriptWriter, tmp_path: Path) -> None:
    path = script(f"""
        def save(*_):
            time.sleep(3)  # longer than the default grace
            open({str(tmp_path / "saved")!r}, "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready")
        time.sleep(600)
    """)
    with launcher("--grace", "30", path) as job:
        assert job.process.stdout is not None
        assert b"ready" in job.process.stdout.readline()
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish()[0] == 143
    assert (tmp_path / "saved").exists()


def test_ctrl_c_is_heard_though_nobody_reads_the_output(script: ScriptWriter) -> None:
    path = script("while True: print('x' * 1000)")
    with launcher("--workers", "2", path) as job:
        until("both tasks", lambda: len(job.find("script.py")) >= 5)
        assert job.process.stdout is not None
        job.process.stdout.read(1 << 20)  # it flows; then we stop reading
        os.kill(job.pid, signal.SIGINT)
        assert job.process.wait(timeout=GONE) == 130
        job.gone(GONE)


def test_closed_pipe_ends_everything() -> None:
    with launcher("--workers", "2", SCRIPT) as job:
        assert job.process.stdout is not None
        job.process.stdout.readline()
        job.process.stdout.close()
        job.process.stdout = None
        assert job.process.wait(timeout=GONE) == 129
        job.gone(GONE)


def test_closed_terminal_ends_everything() -> None:
    master, terminal = pty.openpty()
    argv = [sys.executable, "-c", OWN_TERMINAL, "-m", "stratagem", "run", "--workers", "2", str(SCRIPT)]
    with Marked(argv, stdin=terminal, stdout=terminal, stderr=terminal, new_session=False) as job:
        os.close(terminal)
        shown = b""
        while b"still here" not in shown:
            shown += os.read(master, 1 << 16)
        assert b"\033[36m[worker:0]\033[0m" in shown or b"\033[33m[worker:1]\033[0m" in shown, (
            "coloured in a terminal"
        )
        os.close(master)
        job.gone(GONE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'SCRIPT'"),
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["--workers", "0", "x.py"], "0 is not in the range"),
        (["--ps", "many", "x.py"], "'many' is not a valid integer"),
        (["--wrokers", "2", "x.py"], "No such option"),
        (
            ["--workers", "5000", str(SCRIPT)],
            "are 5000 tasks, and all would run on this machine: ask for at most 1000",
        ),
        (["--grace", "nan", str(SCRIPT)], "--grace nan: give a number of seconds"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    with launcher(*arguments) as job:
        code, _, err = job.finish()
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_random_kills_leave_nothing() -> None:
    assert [outcome for outcome in drills(rounds=6, seed=1) if outcome.problem] == []
