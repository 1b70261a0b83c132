"""A cluster as plain Kubernetes objects: an indexed Job for each kind of task, and a Service that gives pods names.

Pod i of an indexed Job has the host name `<job>-<i>`, which does not change when it is started again, and a Service
without an address of its own makes that a name in DNS.
"""

from stratagem.cluster import ClusterSpec
from stratagem.tools.emit import placing
from stratagem.tools.emit.comments import commands, comment
from stratagem.tools.emit.pod import Pods
from stratagem.tools.emit.tf_config import tf_config
from stratagem.tools.emit.yaml_text import Plain, render

_INDEX = "TASK_INDEX"
_INDEX_ANNOTATION = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_PORT = "cluster"


def kubernetes_file(pods: Pods) -> str:
    """The objects of a job, as one file for `kubectl apply`."""
    job = pods.job
    cluster = job.shape.cluster(
        lambda name, index: placing.address(f"{_job_name(pods, name)}-{index}.{job.name}", job)
    )
    config_map = pods.config_map()
    objects = [
        _service(pods),
        *([] if config_map is None else [config_map]),
        *(_job(pods, cluster, name, count) for name, count in job.shape.counts.items()),
    ]
    introduction = comment(
        f"{job.script} on a cluster of {job.shape}: an indexed Job for each kind of task.",
        *pods.how_to_start(),
        "Start the cluster with this file, look on, and remove what is left of it, also after a failure:\n"
        + commands(
            [
                "kubectl apply -f FILE",
                f"kubectl logs -f job/{_job_name(pods, 'worker')}",
                "kubectl delete -f FILE",
            ]
        ),
    )
    return introduction + "---\n" + "---\n".join(map(render, objects))


def _job_name(pods: Pods, name: str) -> str:
    return f"{pods.job.name}-{name}"


def _service(pods: Pods) -> dict[str, Plain]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": pods.job.name, "labels": pods.labels()},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # tasks look for each other while they start
            "selector": pods.labels(),
            "ports": [{"name": _PORT, "port": placing.port(pods.job)}],
        },
    }


def _job(pods: Pods, cluster: ClusterSpec, name: str, count: int) -> dict[str, Plain]:
    # Kubernetes replaces $(NAME) by a variable that stands before it.
    identity: list[Plain] = [
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
