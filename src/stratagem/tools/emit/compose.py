"""A cluster as a compose file: one service per task, on one network, with names for hosts."""

from stratagem.cluster import ClusterSpec
from stratagem.cluster.roles import PS
from stratagem.environment import SECRET_FILE, SNAPSHOT_DIR
from stratagem.tools.emit import placing
from stratagem.tools.emit.comments import commands, comment
from stratagem.tools.emit.job import Job
from stratagem.tools.emit.tf_config import tf_config
from stratagem.tools.emit.yaml_text import Plain, render

_NETWORK = "cluster"
_SECRET = "stratagem"
_SNAPSHOTS = "snapshots"


def compose_file(job: Job, image: str = placing.DEFAULT_IMAGE, directory: str | None = None) -> str:
    """The compose file of a job.

    Args:
        job: What to start.
        image: The image of all tasks.
        directory: The directory on the host in which the script is, to be mounted in the containers that run it; the
            script's path is relative to it. `None`: the script is in the image.

    Raises:
        LaunchError: The image's name is none.
    """
    placing.checked_image(image)
    cluster = job.shape.cluster(lambda name, index: placing.address(_service_name(name, index), job))
    services = {
        _service_name(name, index): _service(job, image, directory, cluster, name, index)
        for name, index in job.shape.tasks
    }
    document: dict[str, Plain] = {"name": job.name, "services": services, "networks": {_NETWORK: {}}}
    if job.keeps_snapshots:
        document["volumes"] = {_SNAPSHOTS: {}}
    document["secrets"] = {_SECRET: {"file": f"./{_secret_file(job)}"}}
    return _introduction(job, image) + "\n" + render(document, spaced=2)


def _service_name(job: str, index: int) -> str:
    return f"{job}-{index}"


def _secret_file(job: Job) -> str:
    return f"{job.name}.secret"


def _service(
    job: Job, image: str, directory: str | None, cluster: ClusterSpec, name: str, index: int
) -> dict[str, Plain]:
    serves = job.shape.serves(name)
    variables = {
        "TF_CONFIG": tf_config(cluster, name, index),
        SECRET_FILE: f"/run/secrets/{_SECRET}",
        **job.shape.environment(name),
        **job.grace_environment(name),
    }
    if job.keeps_snapshots:
        variables[SNAPSHOT_DIR] = placing.SNAPSHOT_DIRECTORY
    service: dict[str, Plain] = {
        "image": image,
        "command": placing.command(job, serves),
        "init": True,  # the first process of a container would not hear SIGTERM
        "environment": variables,
        "secrets": [_SECRET],
        "networks": [_NETWORK],
        "restart": f"on-failure:{job.max_restarts}" if job.max_restarts else "no",
        "stop_grace_period": f"{job.grace_seconds}s",
    }
    volumes: list[Plain] = []
    if directory is not None and not serves:
        source = placing.literal(directory)
        volumes.append({"type": "bind", "source": source, "target": placing.CODE_DIRECTORY})
        service["working_dir"] = placing.CODE_DIRECTORY
    if job.keeps_snapshots and name == PS:
        volumes.append({"type": "volume", "source": _SNAPSHOTS, "target": placing.SNAPSHOT_DIRECTORY})
    if volumes:
        service["volumes"] = volumes
    if gpus := job.shape.gpus(name):
        wanted: Plain = {"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [wanted]}}}
    return service


def _introduction(job: Job, image: str) -> str:
    secret = f"(umask 077 && {placing.MAKE_SECRET} > {_secret_file(job)})"
    end, stop = ("", "") if job.max_restarts else (", or a task fails", " --abort-on-container-failure")
    paragraphs = [
        f"{job.script} on a cluster of {job.shape}: one service per task.\n"
        f"The image, {image}, has Python, Stratagem, and what the script imports.",
        "Once, beside this file, make the secret by which the tasks know each other:\n" + commands([secret]),
        f"Start the cluster; it ends when the job is done{end}:\n" + commands([f"docker compose up{stop}"]),
    ]
    if job.keeps_snapshots:
        paragraphs.append(
            "The servers keep snapshots, and a later start goes on from them. To begin anew:\n"
            + commands(["docker compose down --volumes"])
        )
    return comment(*paragraphs)
