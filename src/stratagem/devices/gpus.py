"""How many GPUs this machine has, asked without starting JAX: who only asks must take none."""

from collections.abc import Mapping
from pathlib import Path


def count_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """The NVIDIA GPUs that tasks may use: those the driver shows, unless the user has hidden them."""
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    return len([node for node in devices.glob("nvidia*") if node.name.removeprefix("nvidia").isdecimal()])
