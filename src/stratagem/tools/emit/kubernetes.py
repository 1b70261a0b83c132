"""A cluster as Kubernetes objects: plain indexed Jobs, or a TFJob of Kubeflow's training operator.

Pod i of an indexed Job has the host name `<job>-<i>`, also after a restart, and a headless Service gives it a DNS name. The
training operator makes TF_CONFIG and host names itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from stratagem.cluster import ClusterSpec
from stratagem.cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from stratagem.environment import SECRET_FILE, SNAPSHOT_DIR
from stratagem.errors import LaunchError
from stratagem.tools.emit.job import (
    CODE_DIRECTORY,
    DEFAULT_IMAGE,
    MAKE_SECRET,
    SNAPSHOT_DIRECTORY,
    Job,
    check_image,
    tf_config,
)
from stratagem.tools.emit.rendering import YamlValue, commands, comment, to_yaml

_Object = dict[str, YamlValue]
_SECRET_KEY = "secret"
_SECRET_DIRECTORY = "/run/stratagem"
_SECRET_MODE = 0o440
_GROUP = 2222
"""The group of all the job's containers: it can read the secret whichever user an image has, and no other group can."""
_LARGEST_SCRIPT = 200_000  # `kubectl apply` keeps a copy of each object in an annotation, which holds 256 KiB
_CONFIG_KEY = re.compile(r"[-.\w]{1,253}", re.ASCII)
_CLAIM = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_INDEX = "TASK_INDEX"
_INDEX_ANNOTATION = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_PORT = "cluster"
_REPLICA_TYPES = {PS: "PS", WORKER: "Worker", CHIEF: "Chief", EVALUATOR: "Evaluator"}
_TFJOB_CONTAINER, _TFJOB_PORT = "tensorflow", "tfjob-port"  # the operator looks for these names


@dataclass(frozen=True)
class Pods:
    """A job as pods.

    Raises:
        LaunchError: The name of the image or claim is malformed, or the script does not fit into a ConfigMap.
    """

    job: Job
    image: str = DEFAULT_IMAGE  # the image of all tasks
    code: str | None = None  # the script's text, for a ConfigMap. `None`: the script is in the image.
    # A PersistentVolumeClaim, for many writers, in which parameter servers keep snapshots.
    claim: str | None = None

    def __post_init__(self) -> None:
        check_image(self.image)
        if self.claim is not None and not _CLAIM.fullmatch(self.claim):
            raise LaunchError(
                f"--snapshot-claim {self.claim!r} is not the name of a PersistentVolumeClaim: give lower-case letters, "
                "digits, dashes and dots"
            )
        if self.claim is not None and not self.job.shape.ps:
            raise LaunchError(
                f"--snapshot-claim {self.claim} is for parameter servers, and --ps 0 asks for none: give one of the two only"
            )
        if self.code is None:
            return
        if not _CONFIG_KEY.fullmatch(self._file):
            raise LaunchError(
                f"the file name {self._file!r} cannot be a key of a ConfigMap, which has letters, digits, '-', '_' and '.': "
                "rename the script, or build it into the image (--script-in-image)"
            )
        size = len(self.code.encode())
        if size > _LARGEST_SCRIPT:
            raise LaunchError(
                f"{self.job.script!r} has {size} bytes, and a ConfigMap holds at most {_LARGEST_SCRIPT}: build the script into "
                "the image (--script-in-image)"
            )

    @property
    def secret(self) -> str:
        """The name of the Secret."""
        return f"{self.job.name}-secret"

    @property
    def _file(self) -> str:
        return PurePosixPath(self.job.script).name

    def labels(self, name: str | None = None) -> dict[str, str]:
        """Return the labels of all of the job's objects, or of those of one of its jobs."""
        labels = {"app.kubernetes.io/name": self.job.name}
        return labels if name is None else {**labels, "app.kubernetes.io/component": name}

    def config_map(self) -> list[_Object]:
        """Return the object that carries the script; none if the script is in the image."""
        if self.code is None:
            return []
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"{self.job.name}-script", "labels": self.labels()},
                "data": {self._file: self.code.rstrip() + "\n"},
            }
        ]

    def spec(
        self, name: str, serves: bool, container: str, port: str, identity: Sequence[YamlValue] = ()
    ) -> _Object:
        """Return the specification of the pods of one of the job's jobs.

        Args:
            name: The job.
            serves: Whether it runs a server rather than the script.
            container: The name of its container.
            port: The name of its port.
            identity: Variables that tell a task which one it is; they precede all others.
        """
        volumes: list[YamlValue] = [
            {"name": "secret", "secret": {"secretName": self.secret, "defaultMode": _SECRET_MODE}}
        ]
        mounts: list[YamlValue] = [{"name": "secret", "mountPath": _SECRET_DIRECTORY, "readOnly": True}]
        variables = {
            SECRET_FILE: f"{_SECRET_DIRECTORY}/{_SECRET_KEY}",
            **self.job.shape.environment(name),
            **self.job.grace_environment(name),
        }
        if self.code is not None and not serves:
            script: _Object = {"name": f"{self.job.name}-script"}
            if not self.job.is_python:
                script["defaultMode"] = 0o555  # executable
            volumes.append({"name": "script", "configMap": script})
            mounts.append({"name": "script", "mountPath": CODE_DIRECTORY, "readOnly": True})
        if self.claim is not None:
            variables[SNAPSHOT_DIR] = f"{SNAPSHOT_DIRECTORY}/{self.job.name}"
            if name == PS:
                volumes.append({"name": "snapshots", "persistentVolumeClaim": {"claimName": self.claim}})
                mounts.append({"name": "snapshots", "mountPath": SNAPSHOT_DIRECTORY})
        settings: list[YamlValue] = [{"name": key, "value": value} for key, value in variables.items()]
        main: _Object = {
            "name": container,
            "image": self.image,
            "command": self._job_in_pods().container_command(serves),
            "ports": [{"name": port, "containerPort": self.job.container_port}],
            "env": [*identity, *settings],
            "volumeMounts": mounts,
        }
        if gpus := self.job.shape.gpus(name):
            main["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        return {
            "terminationGracePeriodSeconds": self.job.grace_seconds,
            # The first process of a namespace ignores SIGTERM: this way a task is not the first.
            "shareProcessNamespace": True,
            "securityContext": {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [main],
            "volumes": volumes,
        }

    def _job_in_pods(self) -> Job:
        """Return the job with the script's path in its pods."""
        if self.code is None:
            return self.job
        return replace(self.job, script=f"{CODE_DIRECTORY}/{self._file}")

    def how_to_start(self) -> list[str]:
        """Return paragraphs of the file's introduction: what to make first, and what becomes of snapshots."""
        make = f"{MAKE_SECRET} |\n    kubectl create secret generic {self.secret} --from-file={_SECRET_KEY}=/dev/stdin"
        paragraphs = [
            f"The image, {self.image}, contains Python, Stratagem and the modules that the script imports.",
            "Once, make the secret with which the tasks authenticate to each other:\n" + commands([make]),
        ]
        if self.claim is not None:
            paragraphs.append(
                f"The servers keep snapshots in {self.job.name} of the claim {self.claim}, which must allow many writers. A\n"
                "later start continues from them; to start afresh, remove that directory."
            )
        elif self.job.keeps_snapshots:
            paragraphs.append(
                "Workers are restarted when they fail. The loss of a parameter server ends the job: give emit a claim for its\n"
                "snapshots (--snapshot-claim), or give the script's strategy a snapshot_dir on a volume of your own."
            )
        return paragraphs


# Plain Jobs.


def kubernetes_file(pods: Pods) -> str:
    """Return the objects of a job, with an indexed Job for each kind of task, as one file for `kubectl apply`."""
    job = pods.job
    cluster = job.shape.cluster(
        lambda name, index: job.container_address(f"{_job_name(pods, name)}-{index}.{job.name}")
    )
    objects = [
        _service(pods),
        *pods.config_map(),
        *(_indexed_job(pods, cluster, name, count) for name, count in job.shape.counts.items()),
    ]
    introduction = comment(
        f"{job.script} on a cluster of {job.shape}: an indexed Job for each kind of task.",
        *pods.how_to_start(),
        "Start the cluster with this file, watch it, and remove what is left of it, also after a failure:\n"
        + commands(
            [
                "kubectl apply -f FILE",
                f"kubectl logs -f job/{_job_name(pods, 'worker')}",
                "kubectl delete -f FILE",
            ]
        ),
    )
    return _file(introduction, objects)


def _file(introduction: str, objects: Sequence[_Object]) -> str:
    return introduction + "---\n" + "---\n".join(map(to_yaml, objects))


def _job_name(pods: Pods, name: str) -> str:
    return f"{pods.job.name}-{name}"


def _service(pods: Pods) -> _Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": pods.job.name, "labels": pods.labels()},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # tasks look for each other while they start
            "selector": pods.labels(),
            "ports": [{"name": _PORT, "port": pods.job.container_port}],
        },
    }


def _indexed_job(pods: Pods, cluster: ClusterSpec, name: str, count: int) -> _Object:
    # Kubernetes replaces $(NAME) by a variable that precedes it.
    identity: list[YamlValue] = [
        {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_ANNOTATION}}},
        {"name": "TF_CONFIG", "value": tf_config(cluster, name, f"$({_INDEX})")},
    ]
    spec = pods.spec(name, pods.job.shape.serves(name), container=name, port=_PORT, identity=identity)
    restarts = pods.job.max_restarts
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _job_name(pods, name), "labels": pods.labels(name)},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": restarts,
            "template": {
                "metadata": {"labels": pods.labels(name)},
                "spec": {
                    "subdomain": pods.job.name,
                    "restartPolicy": "OnFailure" if restarts else "Never",
                    **spec,
                },
            },
        },
    }


# A TFJob.


def tfjob_file(pods: Pods) -> str:
    """Return the TFJob of a job, and the ConfigMap with its script, as one file for `kubectl apply`.

    Parameter servers run the script too, as is usual there: the strategy's constructor serves. Only with a single
    client, whose script need not have a strategy, do they and the workers run `stratagem serve`.
    """
    job = pods.job
    replicas = {
        _REPLICA_TYPES[name]: _replicas(pods, name, count) for name, count in job.shape.counts.items()
    }
    spec: _Object = {
        "runPolicy": {"backoffLimit": job.max_restarts, "cleanPodPolicy": "Running"},
        "tfReplicaSpecs": replicas,
    }
    if CHIEF not in job.shape.counts:
        # Otherwise the job would end with worker 0, and the others be removed in the middle of a step.
        spec = {"successPolicy": "AllWorkers", **spec}
    tfjob: _Object = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": job.name, "labels": pods.labels()},
        "spec": spec,
    }
    introduction = comment(
        f"{job.script} on a cluster of {job.shape}: a TFJob, for Kubeflow's training operator.",
        *pods.how_to_start(),
        "Start the cluster with this file, watch it, and remove what is left of it:\n"
        + commands(["kubectl apply -f FILE", f"kubectl get tfjob {job.name}", "kubectl delete -f FILE"]),
    )
    return _file(introduction, [*pods.config_map(), tfjob])


def _replicas(pods: Pods, name: str, count: int) -> _Object:
    serves = pods.job.shape.single_client and pods.job.shape.serves(name)
    return {
        "replicas": count,
        "restartPolicy": "OnFailure" if pods.job.max_restarts else "Never",
        "template": {
            "metadata": {"labels": pods.labels(name)},
            "spec": pods.spec(name, serves, container=_TFJOB_CONTAINER, port=_TFJOB_PORT),
        },
    }
