"""What is refused before anything is written, and what a job makes of its script."""

import math
from typing import Any

import pytest

from stratagem.errors import LaunchError
from stratagem.tools.emit import ClusterShape, Job, Pods, Resources, compose_file, slurm_script


def test_four_machines_by_default() -> None:
    shape = ClusterShape()
    assert shape.tasks == (("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2))
    assert str(shape) == "1 parameter server and 3 workers"
    everything = ClusterShape(2, 1, evaluator=True, single_client=True)
    assert str(everything) == "2 parameter servers, 1 worker, 1 chief and 1 evaluator"
    assert [job for job in everything.counts if everything.serves(job)] == ["ps", "worker"]
    assert everything.cluster(lambda job, index: f"{job}-{index}:1").jobs == ["chief", "ps", "worker"]


def test_environment_of_each_job() -> None:
    shape = ClusterShape(devices_per_worker=2, evaluator=True)
    assert shape.environment("ps")["JAX_PLATFORMS"] == "cpu"
    assert shape.environment("worker")["JAX_NUM_CPU_DEVICES"] == "2"
    assert int(shape.environment("worker")["PJRT_NPROC"]) >= 4
    assert set(shape.environment("evaluator")) == {"PYTHONUNBUFFERED", "KERAS_BACKEND"}
    inherited = {"KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cuda,cpu", "PJRT_NPROC": "500"}
    assert shape.environment("ps", inherited) == {
        "PYTHONUNBUFFERED": "1",
        "KERAS_BACKEND": "torch",
        "JAX_PLATFORMS": "cuda,cpu",
    }
    assert "PJRT_NPROC" not in shape.environment("worker", inherited)  # a larger one is kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "--workers 0: a job needs at least 1 worker"),
        ({"ps": -1}, "--ps -1: give 0 or more"),
        ({"devices_per_worker": 0}, "at least 1 device"),
        ({"gpus_per_worker": 0}, "give at least 1, or leave it out"),
        ({"devices_per_worker": 2, "gpus_per_worker": 2}, "give one of them"),
    ],
)
def test_impossible_shapes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ClusterShape(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script": ""}, "cannot be written into a file"),
        ({"script": "train\n.py"}, "line break"),
        ({"script": "train\x07.py"}, "cannot be shown"),
        ({"script": "train\udcff.py"}, "cannot be shown"),
        ({"script": "日本.py"}, "give one, such as --name train"),
        ({"script": "1.py"}, "give one, such as --name train"),
        ({"arguments": ("\udcff",)}, "is not text"),
        ({"arguments": ("a\0b",)}, "is not text"),
        ({"name": "Train"}, "--name 'Train': a name has"),
        ({"name": "a\nb"}, "lower-case letters"),
        ({"name": "a-"}, "does not end with a dash"),
        ({"name": "a" * 41}, "at most 40"),
        ({"port": 0}, "--port 0: ports are 1 to 65535"),
        ({"port": 65536}, "ports are 1 to 65535"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"grace": -1.0}, "--grace -1: give 0 to 65535 seconds"),
        ({"grace": math.inf}, "--grace inf"),
        ({"grace": math.nan}, "--grace nan"),
    ],
)
def test_impossible_jobs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        Job(ClusterShape(), **{"script": "train.py", **options})


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("examples/jax_digits.py", "jax-digits"),
        ("My Script (2).py", "my-script-2"),
        ("/a/b.c.sh", "b-c"),
        (f"{'a' * 39}_b.py", "a" * 39),
    ],
)
def test_names_are_made_from_scripts(script: str, name: str) -> None:
    assert Job(ClusterShape(), script).name == name


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("train.py", ("python", "train.py", "--x")),
        ("-c.py", ("python", "./-c.py", "--x")),
        ("a/train.py", ("python", "a/train.py", "--x")),
        ("train", ("./train", "--x")),
        ("bin/train", ("./bin/train", "--x")),
        ("../train", ("../train", "--x")),
        ("/bin/train", ("/bin/train", "--x")),
    ],
)
def test_commands(script: str, command: tuple[str, ...]) -> None:
    assert Job(ClusterShape(), script, ("--x",), name="a").command() == command


def test_seconds_are_never_fewer_than_asked_for() -> None:
    assert [Job(ClusterShape(), "a.py", grace=grace).grace_seconds for grace in (0.0, 2.0, 2.1)] == [0, 2, 3]


@pytest.mark.parametrize("image", ["", "a b", "a\nb", "-a", "$IMAGE"])
def test_images_that_are_none(image: str) -> None:
    job = Job(ClusterShape(), "train.py")
    with pytest.raises(LaunchError, match="is not the name of an image"):
        compose_file(job, image)
    with pytest.raises(LaunchError, match="is not the name of an image"):
        Pods(job, image)


def test_scripts_that_no_config_map_takes() -> None:
    with pytest.raises(LaunchError, match=r"'my train\.py' cannot be a key of a ConfigMap"):
        Pods(Job(ClusterShape(), "my train.py"), code="")
    with pytest.raises(LaunchError, match="has 200001 bytes"):
        Pods(Job(ClusterShape(), "train.py"), code="#" * 200_001)
    with pytest.raises(LaunchError, match="--snapshot-claim cuts is for parameter servers"):
        Pods(Job(ClusterShape(ps=0), "train.py"), claim="cuts")
    with pytest.raises(LaunchError, match="--snapshot-claim 'A'"):
        Pods(Job(ClusterShape(), "train.py"), claim="A")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "at least 1 node"),
        ({"nodes": 5}, "--nodes 5: the cluster has 4 tasks"),
        ({"cpus_per_task": 0}, "at least 1 core"),
        ({"python": ""}, "--python ''"),
        ({"python": "a\nb"}, "path of an interpreter"),
    ],
)
def test_impossible_resources(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        slurm_script(Job(ClusterShape(), "train.py"), Resources(**options))
