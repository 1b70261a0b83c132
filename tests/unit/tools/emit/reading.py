"""Reads emitted files back as the systems that they are for would: what each task is given, and its command."""

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

yaml: Any = importlib.import_module("yaml")  # it has no types of its own


@dataclass(frozen=True)
class Given:
    """What a task is given: its environment, its command, and the name by which others find it."""

    environ: dict[str, str]
    command: list[str]
    host: str
    directory: str | None = None
    mounts: dict[str, Any] = field(default_factory=dict)


def of_compose(text: str) -> dict[str, Given]:
    """The services of a compose file; `$` is replaced as Compose does."""
    return {
        name: Given(
            {key: interpolated(value) for key, value in service["environment"].items()},
            [interpolated(word) for word in service["command"]],
            name,
            service.get("working_dir"),
            {volume["target"]: interpolated(volume["source"]) for volume in service.get("volumes", [])},
        )
        for name, service in yaml.safe_load(text)["services"].items()
    }


def interpolated(text: str) -> str:
    """Compose's rule, where no variable is to be replaced."""
    assert not re.search(r"(?<!\$)(?:\$\$)*\$(?:[A-Za-z_{]|$)", text), (
        f"{text!r} names a variable of the host"
    )
    return text.replace("$$", "$")


def of_jobs(text: str) -> dict[str, Given]:
    """The pods of all indexed Jobs: what the Job controller and the kubelet make of them."""
    found = {}
    for job in objects(text, "Job"):
        pod = job["spec"]["template"]["spec"]
        assert job["spec"]["completionMode"] == "Indexed"
        for index in range(job["spec"]["completions"]):
            host = f"{job['metadata']['name']}-{index}"
            annotations = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index)}
            found[host] = _of_container(pod["containers"][0], annotations, f"{host}.{pod['subdomain']}")
    return found


def of_tfjob(text: str, namespace: str = "team") -> dict[str, Given]:
    """The pods of a TFJob: what the training operator makes of it."""
    (job,) = objects(text, "TFJob")
    name, replicas = job["metadata"]["name"], job["spec"]["tfReplicaSpecs"]
    cluster: dict[str, list[str]] = {}
    for kind, spec in replicas.items():
        (main,) = [each for each in _containers(spec) if each["name"] == "tensorflow"]
        (port,) = [each["containerPort"] for each in main["ports"] if each["name"] == "tfjob-port"]
        lowered = kind.lower()
        if lowered != "evaluator":
            cluster[lowered] = [
                f"{name}-{lowered}-{index}.{namespace}.svc:{port}" for index in range(spec["replicas"])
            ]
    found = {}
    for kind, spec in replicas.items():
        for index in range(spec["replicas"]):
            lowered = kind.lower()
            config = {"cluster": cluster, "task": {"type": lowered, "index": index}, "environment": "cloud"}
            given = _of_container(_containers(spec)[0], {}, f"{name}-{lowered}-{index}.{namespace}.svc")
            assert "TF_CONFIG" not in given.environ, "the operator adds one"
            given.environ["TF_CONFIG"] = json.dumps(config)
            found[f"{lowered}-{index}"] = given
    return found


def objects(text: str, kind: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of a kind."""
    return [each for each in yaml.safe_load_all(text) if each["kind"] == kind]


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' rule: `$(NAME)` is a variable, `$$` a dollar; unknown names stay."""

    def replacement(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return re.sub(r"\$(?:\$|\(([^)]*)\))", replacement, text)


def _containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = spec["template"]["spec"]["containers"]
    return containers


def _of_container(container: Mapping[str, Any], fields: Mapping[str, str], host: str) -> Given:
    environ: dict[str, str] = {}
    for variable in container["env"]:
        value = variable.get("value")
        if value is None:
            value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        environ[variable["name"]] = expanded(value, environ)  # only what stands before it is known
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    return Given(environ, [expanded(word, environ) for word in container["command"]], host, None, mounts)
