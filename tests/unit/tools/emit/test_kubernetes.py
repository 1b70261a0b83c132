"""Kubernetes objects: the form, names that resolve, what each pod is given. Plain Jobs and TFJob."""

from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest

import stratagem as sg
from stratagem.tools.emit import ClusterShape, Job, Pods, kubernetes_file, tfjob_file
from unit.tools.emit.forms import KUBERNETES, check
from unit.tools.emit.reading import Given, objects, of_jobs, of_tfjob, yaml

CODE = "import sys\n\nprint('$(TASK_INDEX) $$ ü', sys.argv)\n\n\n"
WORDS = ("--steps", "100", "$HOME", "$(TASK_INDEX)", "$$", "a\nb", "it's")
ALL = ClusterShape(2, 3, evaluator=True, single_client=True, gpus_per_worker=1)
JOBS = [
    Pods(Job(ClusterShape(), "train.py"), code=CODE),
    Pods(Job(ClusterShape(0, 1), "/app/my train.py", WORDS)),
    Pods(Job(ALL, "train.py", WORDS, max_restarts=3, grace=60), "train:1", CODE, "cuts"),
    Pods(Job(ClusterShape(devices_per_worker=2), "train.sh", max_restarts=1), code="#!/bin/sh\n"),
]
RENDERERS = [kubernetes_file, tfjob_file]


def pods_of(text: str) -> list[dict[str, Any]]:
    jobs = [job["spec"]["template"] for job in objects(text, "Job")]
    for job in objects(text, "TFJob"):
        jobs += [spec["template"] for spec in job["spec"]["tfReplicaSpecs"].values()]
    return jobs


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize("pods", JOBS, ids=lambda pods: str(pods.job.shape))
def test_form(pods: Pods, render: Callable[[Pods], str]) -> None:
    documents = list(yaml.safe_load_all(render(pods)))
    assert documents
    for document in documents:
        check(document, KUBERNETES[document["kind"]], document["kind"])


@pytest.mark.parametrize("pods", JOBS, ids=lambda pods: str(pods.job.shape))
@pytest.mark.parametrize("version", ["1.28", "1.33"])
def test_form_by_the_official_schemas(pods: Pods, version: str) -> None:
    for document in yaml.safe_load_all(kubernetes_file(pods)):
        kubernetes_validate.validate(document, version, strict=True)
    for template in pods_of(tfjob_file(pods)):
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template},
            version,
            strict=True,
        )


def test_every_pod_of_a_job_knows_its_place_and_has_a_name() -> None:
    pods = Pods(Job(ClusterShape(2, 2, evaluator=True), "train.py", port=3333), code=CODE)
    text = kubernetes_file(pods)
    given = of_jobs(text)
    assert list(given) == [
        "train-ps-0",
        "train-ps-1",
        "train-worker-0",
        "train-worker-1",
        "train-evaluator-0",
    ]
    for name, pod in given.items():
        config = sg.resolve_cluster([], pod.environ)
        assert config is not None
        assert f"train-{config.job_name}-{config.task_index}" == name
        assert config.cluster == {
            "ps": ["train-ps-0.train:3333", "train-ps-1.train:3333"],
            "worker": ["train-worker-0.train:3333", "train-worker-1.train:3333"],
        }
        assert config.address in (f"{pod.host}:3333", None)
        assert len(name) <= 63
    (service,) = objects(text, "Service")
    assert service["metadata"]["name"] == "train"
    assert service["spec"]["clusterIP"] == "None"
    assert [port["port"] for port in service["spec"]["ports"]] == [3333]
    for template in pods_of(text):
        assert template["spec"]["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        assert [port["containerPort"] for port in template["spec"]["containers"][0]["ports"]] == [3333]


def test_every_pod_of_a_tfjob_knows_its_place() -> None:
    given = of_tfjob(tfjob_file(Pods(Job(ClusterShape(2, 2, evaluator=True), "train.py"), code=CODE)))
    assert list(given) == ["ps-0", "ps-1", "worker-0", "worker-1", "evaluator-0"]
    for name, pod in given.items():
        config = sg.resolve_cluster([], pod.environ)
        assert config is not None
        assert f"{config.job_name}-{config.task_index}" == name
        assert config.cluster.task_address("ps", 1) == "train-ps-1.team.svc:2222"
        assert config.address in (f"{pod.host}:2222", None)
        assert pod.command == ["python", "/job/train.py"]  # for ps too: there the strategy serves
        assert pod.environ.get("JAX_PLATFORMS") == ("cpu" if config.job_name == "ps" else None)


def commands(given: dict[str, Given]) -> dict[str, list[str]]:
    return {name.rsplit("-", 2)[-2]: pod.command for name, pod in given.items()}


def test_who_runs_what() -> None:
    own = ["python", "/job/train.py", *WORDS]
    serve = ["stratagem", "serve"]
    job = Job(ClusterShape(evaluator=True), "x/train.py", WORDS)
    assert commands(of_jobs(kubernetes_file(Pods(job, code=CODE)))) == {
        "ps": serve,
        "worker": own,
        "evaluator": own,
    }
    single = Pods(Job(ClusterShape(single_client=True), "train.py", WORDS), code=CODE)
    expected = {"ps": serve, "worker": serve, "chief": own}
    assert commands(of_jobs(kubernetes_file(single))) == expected
    assert commands(of_tfjob(tfjob_file(single))) == expected
    in_image = Pods(Job(ClusterShape(), "/app/train.py", WORDS))
    assert commands(of_jobs(kubernetes_file(in_image)))["worker"] == ["python", "/app/train.py", *WORDS]


@pytest.mark.parametrize("render", RENDERERS)
def test_script_is_carried_whole(render: Callable[[Pods], str]) -> None:
    text = render(Pods(Job(ClusterShape(), "x/train.py"), code=CODE))
    (config_map,) = objects(text, "ConfigMap")
    assert config_map["data"] == {"train.py": CODE.rstrip() + "\n"}
    (volume,) = [each for each in pods_of(text)[-1]["spec"]["volumes"] if each["name"] == "script"]
    assert volume["configMap"] == {"name": config_map["metadata"]["name"]}
    in_image = render(Pods(Job(ClusterShape(), "/app/train.py")))
    assert objects(in_image, "ConfigMap") == []
    assert all("script" not in str(pod["spec"]["volumes"]) for pod in pods_of(in_image))
    program = pods_of(render(Pods(Job(ClusterShape(), "train.sh"), code="#!/bin/sh\n")))[-1]
    assert program["spec"]["volumes"][1]["configMap"]["defaultMode"] == 0o555


@pytest.mark.parametrize("render", RENDERERS)
def test_secret_is_only_referred_to(render: Callable[[Pods], str]) -> None:
    text = render(Pods(Job(ClusterShape(), "train.py")))
    assert "kubectl create secret generic train-secret --from-file=secret=/dev/stdin" in text
    assert objects(text, "Secret") == []
    for pod in pods_of(text):
        (main,) = pod["spec"]["containers"]
        environ = {variable["name"]: variable.get("value") for variable in main["env"]}
        assert environ["STRATAGEM_SECRET_FILE"] == "/run/stratagem/secret"
        assert "STRATAGEM_SECRET" not in environ
        assert {"name": "secret", "mountPath": "/run/stratagem", "readOnly": True} in main["volumeMounts"]
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "secret"]
        # Whichever user the image has reads it as a member of the volumes' group, and others cannot.
        assert volume["secret"] == {"secretName": "train-secret", "defaultMode": 0o440}
        assert pod["spec"]["securityContext"]["fsGroup"] > 0


@pytest.mark.parametrize("render", RENDERERS)
def test_grace_gpus_and_snapshots(render: Callable[[Pods], str]) -> None:
    shape = ClusterShape(1, 2, evaluator=True, gpus_per_worker=4)
    text = render(Pods(Job(shape, "train.py", grace=7.2, max_restarts=2), claim="cuts"))
    pods = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["spec"] for pod in pods_of(text)}
    assert {spec["terminationGracePeriodSeconds"] for spec in pods.values()} == {8}
    limits = {name: spec["containers"][0].get("resources") for name, spec in pods.items()}
    assert limits == {"ps": None, "worker": {"limits": {"nvidia.com/gpu": 4}}, "evaluator": None}
    for name, spec in pods.items():
        variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        assert variables["STRATAGEM_SNAPSHOT_DIR"] == "/snapshots/train"
        assert variables.get("STRATAGEM_GRACE") == ("8" if name == "ps" else None)
        claims = [each["persistentVolumeClaim"] for each in spec["volumes"] if each["name"] == "snapshots"]
        assert claims == ([{"claimName": "cuts"}] if name == "ps" else [])


def test_restarts() -> None:
    for restarts, policy in ((0, "Never"), (3, "OnFailure")):
        pods = Pods(Job(ClusterShape(), "train.py", max_restarts=restarts))
        for job in objects(kubernetes_file(pods), "Job"):
            assert job["spec"]["backoffLimit"] == restarts
            assert job["spec"]["template"]["spec"]["restartPolicy"] == policy
        (tfjob,) = objects(tfjob_file(pods), "TFJob")
        assert tfjob["spec"]["runPolicy"]["backoffLimit"] == restarts
        for spec in tfjob["spec"]["tfReplicaSpecs"].values():
            assert spec["restartPolicy"] == policy
            assert "restartPolicy" not in spec["template"]["spec"]


def test_a_tfjob_is_over_with_its_chief_or_with_all_workers() -> None:
    def policy(shape: ClusterShape) -> object:
        (job,) = objects(tfjob_file(Pods(Job(shape, "train.py"))), "TFJob")
        return job["spec"].get("successPolicy")

    assert policy(ClusterShape()) == "AllWorkers"
    assert policy(ClusterShape(single_client=True)) is None


def test_lost_servers_are_spoken_of() -> None:
    text = kubernetes_file(Pods(Job(ClusterShape(), "train.py", max_restarts=1)))
    assert "--snapshot-claim" in text
    assert "--snapshot-claim" not in kubernetes_file(Pods(Job(ClusterShape(0), "train.py", max_restarts=1)))
