"""Which devices JAX shall see, as names, and the JAX configuration that says the same. No JAX in here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from stratagem.devices.local import is_local
from stratagem.devices.spec import DeviceSpec, as_spec
from stratagem.errors import ConfigurationError, DeviceSpecError

_EXAMPLE = 'visible_devices=["/gpu:0", "/gpu:1"] or visible_devices=["/cpu:0"]'


@dataclass(frozen=True)
class VisibleDevices:
    """A choice of devices.

    Attributes:
        gpus: which GPUs, by their index on this machine; `None` for all, empty for none.
        cpus: which CPU devices were named; `None` if none was by its index.
    """

    gpus: tuple[int, ...] | None
    cpus: tuple[int, ...] | None

    @classmethod
    def parse(cls, names: object) -> Self:
        """Read the names that a user gave.

        Raises:
            ConfigurationError: if they are not a list of local CPUs and GPUs.

        Example:
            >>> VisibleDevices.parse(["/gpu:1"])
            VisibleDevices(gpus=(1,), cpus=None)
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ConfigurationError(f"visible_devices is {names!r}; it has to be a list, as in {_EXAMPLE}")
        specs = [_local(name) for name in names]
        if not specs:
            raise ConfigurationError(f"visible_devices names no device at all; name some, as in {_EXAMPLE}")
        gpus = [spec.device_index for spec in specs if spec.device_type == "GPU"]
        cpus = [spec.device_index for spec in specs if spec.device_type == "CPU"]
        return cls(_indices(gpus) if gpus else (), _indices(cpus) if cpus else None)

    @property
    def cpu_only(self) -> bool:
        """Whether JAX shall leave GPUs and TPUs alone."""
        return self.gpus == ()

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The GPUs that were chosen: one by one, or all that there are under one name."""
        return ("/gpu",) if self.gpus is None else tuple(f"/gpu:{index}" for index in self.gpus)

    def check_cpus(self, count: int) -> None:
        """Refuse to hide some of the `count` CPU devices from JAX, which cannot do that."""
        if self.cpus is not None and self.cpus != tuple(range(count)):
            named = ", ".join(f"/cpu:{index}" for index in self.cpus)
            raise ConfigurationError(
                f"visible_devices names {named}, but JAX is to have {count} CPU device(s), and all of its CPU "
                f'devices are visible. Say "/cpu:*", or make {max(self.cpus) + 1} of them with '
                f"virtual_devices={max(self.cpus) + 1}"
            )

    def jax_configuration(self) -> dict[str, str]:
        """The values of JAX's configuration that make this choice."""
        if self.cpu_only:
            return {"jax_platforms": "cpu"}
        gpus = "all" if self.gpus is None else ",".join(map(str, self.gpus))
        return {"jax_cuda_visible_devices": gpus, "jax_rocm_visible_devices": gpus}


def _local(name: object) -> DeviceSpec:
    try:
        spec = as_spec(name)  # type: ignore[arg-type]  # a name of another kind is refused in there
    except DeviceSpecError as error:
        raise ConfigurationError(f"visible_devices has {name!r}: {error}") from error
    if not is_local(spec):
        raise ConfigurationError(
            f"visible_devices has {name!r}, which names another task; name devices of this machine, as in {_EXAMPLE}"
        )
    if spec.device_type not in ("CPU", "GPU"):
        raise ConfigurationError(
            f"visible_devices has {name!r}; only CPUs and GPUs can be chosen, as in {_EXAMPLE}. To choose "
            "among TPU chips set TPU_VISIBLE_CHIPS before the program starts"
        )
    return spec


def _indices(indices: list[int | None]) -> tuple[int, ...] | None:
    if None in indices:
        return None
    return tuple(sorted({index for index in indices if index is not None}))
