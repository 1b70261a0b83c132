"""A cluster as a TFJob of Kubeflow's training operator, which makes TF_CONFIG and the names of hosts itself."""

from stratagem.cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from stratagem.tools.emit.comments import commands, comment
from stratagem.tools.emit.pod import Pods
from stratagem.tools.emit.yaml_text import Plain, render

_REPLICA_TYPES = {PS: "PS", WORKER: "Worker", CHIEF: "Chief", EVALUATOR: "Evaluator"}
_CONTAINER, _PORT = "tensorflow", "tfjob-port"  # the operator looks for these names


def tfjob_file(pods: Pods) -> str:
    """The TFJob of a job, and the ConfigMap with its script, as one file for `kubectl apply`.

    Parameter servers run the script too, as is usual there: the strategy's constructor serves. Only with a single
    client, whose script need not have a strategy, do they and the workers run `stratagem serve`.
    """
    job = pods.job
    replicas = {
        _REPLICA_TYPES[name]: _replicas(pods, name, count) for name, count in job.shape.counts.items()
    }
    spec: dict[str, Plain] = {
        "runPolicy": {"backoffLimit": job.max_restarts, "cleanPodPolicy": "Running"},
        "tfReplicaSpecs": replicas,
    }
    if CHIEF not in job.shape.counts:
        # Else the job would be over with worker 0, and the others removed in the middle of a step.
        spec = {"successPolicy": "AllWorkers", **spec}
    config_map = pods.config_map()
    objects: list[dict[str, Plain]] = [
        *([] if config_map is None else [config_map]),
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": job.name, "labels": pods.labels()},
            "spec": spec,
        },
    ]
    introduction = comment(
        f"{job.script} on a cluster of {job.shape}: a TFJob, for Kubeflow's training operator.",
        *pods.how_to_start(),
        "Start the cluster with this file, look on, and remove what is left of it:\n"
        + commands(["kubectl apply -f FILE", f"kubectl get tfjob {job.name}", "kubectl delete -f FILE"]),
    )
    return introduction + "---\n" + "---\n".join(map(render, objects))


def _replicas(pods: Pods, name: str, count: int) -> dict[str, Plain]:
    serves = pods.job.shape.single_client and pods.job.shape.serves(name)
    return {
        "replicas": count,
        "restartPolicy": "OnFailure" if pods.job.max_restarts else "Never",
        "template": {
            "metadata": {"labels": pods.labels(name)},
            "spec": pods.spec(name, serves, container=_CONTAINER, port=_PORT),
        },
    }
