"""The GPUs of this machine, asked without starting JAX: who only asks must take none."""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path


def visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The NVIDIA GPUs that tasks may use, as CUDA_VISIBLE_DEVICES names them.

    Those that the driver shows, unless the user has chosen among them, or hidden them.
    """
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return ()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        return tuple(
            takewhile(lambda name: name and name != "-1", names)
        )  # CUDA ignores what comes after such
    nodes = (node.name.removeprefix("nvidia") for node in devices.glob("nvidia*"))
    return tuple(sorted((name for name in nodes if name.isdecimal()), key=int))
