"""The pod of a task in Kubernetes: what plain Jobs and Kubeflow's TFJob have in common."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from stratagem.cluster.roles import PS
from stratagem.environment import SECRET_FILE, SNAPSHOT_DIR
from stratagem.errors import LaunchError
from stratagem.tools.emit import placing
from stratagem.tools.emit.comments import commands
from stratagem.tools.emit.job import Job
from stratagem.tools.emit.yaml_text import Plain

_SECRET_KEY = "secret"
_SECRET_DIRECTORY = "/run/stratagem"
_SECRET_MODE = 0o440
_GROUP = 2222
"""Of all containers of the job, so that whichever user an image has can read the secret, and no other group."""
_LARGEST_SCRIPT = 200_000  # `kubectl apply` keeps a copy of each object in an annotation, which holds 256 KiB
_CONFIG_KEY = re.compile(r"[-.\w]{1,253}", re.ASCII)
_CLAIM = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Pods:
    """What the pods of a job are made from.

    Attributes:
        job: What to start.
        image: The image of all tasks.
        code: The script's text, to be carried by a ConfigMap. `None`: the script is in the image.
        claim: A PersistentVolumeClaim, for many writers, in which parameter servers keep snapshots.

    Raises:
        LaunchError: The image's or the claim's name is none, or the script does not fit into a ConfigMap.
    """

    job: Job
    image: str = placing.DEFAULT_IMAGE
    code: str | None = None
    claim: str | None = None

    def __post_init__(self) -> None:
        placing.checked_image(self.image)
        if self.claim is not None and not _CLAIM.fullmatch(self.claim):
            raise LaunchError(
                f"--snapshot-claim {self.claim!r} is no name of a PersistentVolumeClaim: these have small letters, digits, "
                "dashes and dots"
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
                f"{self.job.script!r} has {size} bytes, and at most {_LARGEST_SCRIPT} go into a ConfigMap: build it into the image "
                "(--script-in-image)"
            )

    @property
    def secret(self) -> str:
        """The name of the Secret."""
        return f"{self.job.name}-secret"

    @property
    def _file(self) -> str:
        return PurePosixPath(self.job.script).name

    def labels(self, name: str | None = None) -> dict[str, str]:
        """What the job's objects are found by: all of them, or those of one of its jobs."""
        own = {"app.kubernetes.io/name": self.job.name}
        return own if name is None else {**own, "app.kubernetes.io/component": name}

    def config_map(self) -> dict[str, Plain] | None:
        """The object that carries the script, if it is not in the image."""
        if self.code is None:
            return None
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{self.job.name}-script", "labels": self.labels()},
            "data": {self._file: self.code.rstrip() + "\n"},
        }

    def spec(
        self, name: str, serves: bool, container: str, port: str, identity: Sequence[Plain] = ()
    ) -> dict[str, Plain]:
        """The specification of the pods of one of the job's jobs.

        Args:
            name: The job.
            serves: Whether it runs a server rather than the script.
            container: How its container is called.
            port: How its port is called.
            identity: Variables that tell a task which one it is, before all others.
        """
        volumes: list[Plain] = [
            {"name": "secret", "secret": {"secretName": self.secret, "defaultMode": _SECRET_MODE}}
        ]
        mounts: list[Plain] = [{"name": "secret", "mountPath": _SECRET_DIRECTORY, "readOnly": True}]
        variables = {
            SECRET_FILE: f"{_SECRET_DIRECTORY}/{_SECRET_KEY}",
            **self.job.shape.environment(name),
            **self.job.grace_environment(name),
        }
        if self.code is not None and not serves:
            script: dict[str, Plain] = {"name": f"{self.job.name}-script"}
            if not self.job.is_python:
                script["defaultMode"] = 0o555  # it is run by itself
            volumes.append({"name": "script", "configMap": script})
            mounts.append({"name": "script", "mountPath": placing.CODE_DIRECTORY, "readOnly": True})
        if self.claim is not None:
            variables[SNAPSHOT_DIR] = f"{placing.SNAPSHOT_DIRECTORY}/{self.job.name}"
            if name == PS:
                volumes.append({"name": "snapshots", "persistentVolumeClaim": {"claimName": self.claim}})
                mounts.append({"name": "snapshots", "mountPath": placing.SNAPSHOT_DIRECTORY})
        given: list[Plain] = [{"name": key, "value": value} for key, value in variables.items()]
        main: dict[str, Plain] = {
            "name": container,
            "image": self.image,
            "command": placing.command(self._placed_job(), serves),
            "ports": [{"name": port, "containerPort": placing.port(self.job)}],
            "env": [*identity, *given],
            "volumeMounts": mounts,
        }
        if gpus := self.job.shape.gpus(name):
            main["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        return {
            "terminationGracePeriodSeconds": self.job.grace_seconds,
            # The first process of a namespace would not hear SIGTERM: so a task is not the first.
            "shareProcessNamespace": True,
            "securityContext": {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [main],
            "volumes": volumes,
        }

    def _placed_job(self) -> Job:
        """The job with the script where its pods find it."""
        if self.code is None:
            return self.job
        return replace(self.job, script=f"{placing.CODE_DIRECTORY}/{self._file}")

    def how_to_start(self) -> list[str]:
        """Paragraphs of the introduction: what to make first, how to start, how to end."""
        make = f"{placing.MAKE_SECRET} |\n    kubectl create secret generic {self.secret} --from-file={_SECRET_KEY}=/dev/stdin"
        found = [
            f"The image, {self.image}, has Python, Stratagem, and what the script imports.",
            "Once, make the secret by which the tasks know each other:\n" + commands([make]),
        ]
        if self.claim is not None:
            found.append(
                f"The servers keep snapshots in {self.job.name} of the claim {self.claim}, which many may write to at once; a\n"
                "later start goes on from them. Remove that directory to begin anew."
            )
        elif self.job.keeps_snapshots:
            found.append(
                "Workers are started again when they fail. A parameter server that is lost ends the job: give emit a claim\n"
                "for its snapshots (--snapshot-claim), or the script's strategy a snapshot_dir on a volume of yours."
            )
        return found
