"""A cluster as a compose file: one service per task, on one network, where the service's name is the host name."""

from stratagem.cluster import ClusterSpec
from stratagem.cluster.roles import PS
from stratagem.environment import SECRET_FILE, SNAPSHOT_DIR
from stratagem.tools.emit.job import (
    CODE_DIRECTORY,
    DEFAULT_IMAGE,
    MAKE_SECRET,
    SNAPSHOT_DIRECTORY,
    Job,
    check_image,
    escape_dollars,
    tf_config,
)
from stratagem.tools.emit.rendering import YamlValue, commands, comment, to_yaml

_NETWORK = "cluster"
_SECRET = "stratagem"
_SNAPSHOTS = "snapshots"


def compose_file(job: Job, image: str = DEFAULT_IMAGE, directory: str | None = None) -> str:
    """Return the compose file of a job.

    The script's `directory` on the host is mounted in the containers that run the script, whose path is relative to it. `None`:
    the script is in the image.
    """
    check_image(image)
    cluster = job.shape.cluster(lambda name, index: job.container_address(_service_name(name, index)))
    services = {
        _service_name(name, index): _service(job, image, directory, cluster, name, index)
        for name, index in job.shape.tasks
    }
    document: dict[str, YamlValue] = {"name": job.name, "services": services, "networks": {_NETWORK: {}}}
    if job.keeps_snapshots:
        document["volumes"] = {_SNAPSHOTS: {}}
    document["secrets"] = {_SECRET: {"file": f"./{_secret_file(job)}"}}
    return _introduction(job, image) + "\n" + to_yaml(document, spaced_levels=2)


def _service_name(job: str, index: int) -> str:
    return f"{job}-{index}"


def _secret_file(job: Job) -> str:
    return f"{job.name}.secret"


def _service(
    job: Job, image: str, directory: str | None, cluster: ClusterSpec, name: str, index: int
) -> dict[str, YamlValue]:
    serves = job.shape.serves(name)
    variables = {
        "TF_CONFIG": tf_config(cluster, name, index),
        SECRET_FILE: f"/run/secrets/{_SECRET}",
        **job.shape.environment(name),
        **job.grace_environment(name),
    }
    if job.keeps_snapshots:
        variables[SNAPSHOT_DIR] = SNAPSHOT_DIRECTORY
    service: dict[str, YamlValue] = {
        "image": image,
        "command": job.container_command(serves),
        "init": True,  # the first process of a container ignores SIGTERM
        "environment": variables,
        "secrets": [_SECRET],
        "networks": [_NETWORK],
        "restart": f"on-failure:{job.max_restarts}" if job.max_restarts else "no",
        "stop_grace_period": f"{job.grace_seconds}s",
    }
    volumes: list[YamlValue] = []
    if directory is not None and not serves:
        volumes.append({"type": "bind", "source": escape_dollars(directory), "target": CODE_DIRECTORY})
        service["working_dir"] = CODE_DIRECTORY
    if job.keeps_snapshots and name == PS:
        volumes.append({"type": "volume", "source": _SNAPSHOTS, "target": SNAPSHOT_DIRECTORY})
    if volumes:
        service["volumes"] = volumes
    if gpus := job.shape.gpus(name):
        devices: YamlValue = {"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [devices]}}}
    return service


def _introduction(job: Job, image: str) -> str:
    secret = f"(umask 077 && {MAKE_SECRET} > {_secret_file(job)})"
    end, stop = ("", "") if job.max_restarts else (", or a task fails", " --abort-on-container-failure")
    paragraphs = [
        f"{job.script} on a cluster of {job.shape}: one service per task.\n"
        f"The image, {image}, contains Python, Stratagem and the modules that the script imports.",
        "Once, beside this file, make the secret with which the tasks authenticate to each other:\n"
        + commands([secret]),
        f"Start the cluster; it stops when the job is done{end}:\n" + commands([f"docker compose up{stop}"]),
    ]
    if job.keeps_snapshots:
        paragraphs.append(
            "The servers keep snapshots, and a later start continues from them. To start afresh:\n"
            + commands(["docker compose down --volumes"])
        )
    return comment(*paragraphs)
