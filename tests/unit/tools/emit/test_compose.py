"""Compose files: the form, what each service is given, and that nothing secret or open is in them."""

import json
from typing import Any

import pytest

import stratagem as sg
from stratagem.tools.emit import ClusterShape, Job, compose_file
from unit.tools.emit.forms import COMPOSE, check
from unit.tools.emit.reading import of_compose, yaml

WORDS = ("--steps", "100", "a b", "it's", '"x"', "$HOME", "${HOME}", "$$", "a\nb", "ü", "yes", "#", "")


def parsed(text: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@pytest.mark.parametrize(
    "job",
    [
        Job(ClusterShape(), "train.py"),
        Job(ClusterShape(0, 1), "train.py"),
        Job(ClusterShape(2, 2, True, True, 2), "train.py", WORDS, max_restarts=3),
        Job(ClusterShape(gpus_per_worker=2), "a b/it's $1.py", WORDS, name="train", grace=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("directory", [None, ".", "/it's/$a b"])
def test_form(job: Job, directory: str | None) -> None:
    text = compose_file(job, "train:1.0", directory)
    check(parsed(text), COMPOSE)
    services = of_compose(text)
    assert list(services) == [f"{name}-{index}" for name, index in job.shape.tasks]
    for name, service in services.items():
        is_server = job.shape.serves(name.rpartition("-")[0])
        assert service.command == (["stratagem", "serve"] if is_server else list(job.command()))
        assert service.mounts.get("/job") == (None if is_server else directory)
        assert service.directory == (None if is_server or directory is None else "/job")


def test_every_task_knows_its_place() -> None:
    job = Job(ClusterShape(2, 2, evaluator=True), "train.py", port=3333)
    for name, service in of_compose(compose_file(job)).items():
        config = sg.resolve_cluster([], service.environ)
        assert config is not None
        assert f"{config.job_name}-{config.task_index}" == name
        assert config.source == "TF_CONFIG"
        assert config.cluster == {
            "ps": ["ps-0:3333", "ps-1:3333"],
            "worker": ["worker-0:3333", "worker-1:3333"],
        }
        assert config.address == (None if name == "evaluator-0" else f"{service.host}:3333")
        assert config.is_chief == (name == "worker-0")


def test_single_client_is_the_chief() -> None:
    services = of_compose(compose_file(Job(ClusterShape(1, 2, single_client=True), "train.py")))
    configs = {name: sg.resolve_cluster([], service.environ) for name, service in services.items()}
    assert [name for name, config in configs.items() if config is not None and config.is_chief] == ["chief-0"]
    assert [name for name, service in services.items() if service.command[0] == "python"] == ["chief-0"]


def test_secret_is_a_file_and_nothing_is_published() -> None:
    text = compose_file(Job(ClusterShape(), "train.py"))
    document = parsed(text)
    assert document["secrets"] == {"stratagem": {"file": "./train.secret"}}
    assert "> train.secret)" in text  # the comment says how to make it
    for service in document["services"].values():
        assert "ports" not in service
        assert service["networks"] == ["cluster"]
        assert service["secrets"] == ["stratagem"]
        assert service["environment"]["STRATAGEM_SECRET_FILE"] == "/run/secrets/stratagem"
        assert "STRATAGEM_SECRET" not in service["environment"]


def test_restarts_grace_and_snapshots() -> None:
    once = parsed(compose_file(Job(ClusterShape(), "train.py", grace=2.5)))
    assert {service["restart"] for service in once["services"].values()} == {"no"}
    assert {service["stop_grace_period"] for service in once["services"].values()} == {"3s"}
    graces = {name: each["environment"].get("STRATAGEM_GRACE") for name, each in once["services"].items()}
    assert {name for name, seconds in graces.items() if seconds == "3"} == {
        "ps-0"
    }  # until workers have saved
    assert "volumes" not in once
    text = compose_file(Job(ClusterShape(2, 1), "train.py", max_restarts=4))
    again = parsed(text)
    assert {service["restart"] for service in again["services"].values()} == {"on-failure:4"}
    assert again["volumes"] == {"snapshots": {}}
    services = of_compose(text)
    assert all(service.environ["STRATAGEM_SNAPSHOT_DIR"] == "/snapshots" for service in services.values())
    with_volume = [name for name, service in services.items() if "/snapshots" in service.mounts]
    assert with_volume == ["ps-0", "ps-1"]
    workers_only = parsed(compose_file(Job(ClusterShape(0, 2), "train.py", max_restarts=4)))
    assert "volumes" not in workers_only


def test_devices() -> None:
    virtual = of_compose(compose_file(Job(ClusterShape(devices_per_worker=4), "train.py")))
    assert virtual["worker-2"].environ["JAX_NUM_CPU_DEVICES"] == "4"
    assert "JAX_NUM_CPU_DEVICES" not in virtual["ps-0"].environ
    services = parsed(compose_file(Job(ClusterShape(gpus_per_worker=2), "train.py")))["services"]
    assert "deploy" not in services["ps-0"]
    (device,) = services["worker-0"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}


def test_config_is_one_line_of_json() -> None:
    text = compose_file(Job(ClusterShape(1, 1), "train.py"))
    line = next(line for line in text.splitlines() if "TF_CONFIG" in line)
    quoted = line.partition(": ")[2]
    assert json.loads(quoted.strip("'"))["task"] == {"type": "ps", "index": 0}
