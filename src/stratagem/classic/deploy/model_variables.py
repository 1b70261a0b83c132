"""The variables of a deployed model: in this process, or on the parameter servers of a running cluster."""

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from stratagem.classic.deploy.deployment_config import DeploymentConfig
from stratagem.classic.deploy.device_functions import move_to
from stratagem.devices import LocalDevice, find_device, log_placement
from stratagem.errors import StrategyError, VariableMismatch, VariableNotFound
from stratagem.runtime import RemoteVariable, Session

POLL_SECONDS = 0.1
"""Seconds between a replica's checks for a variable that the first one makes."""
CALLS_AT_ONCE = 8
"""The number of variables of parameter servers that are read or written at a time."""

Values: TypeAlias = Mapping[str, Any]
"""The values of variables, by name."""
Loss: TypeAlias = Callable[[Values], Any]
"""A regularisation loss: a function of the values of all variables."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Declaration:
    """A variable as the model function asks for it.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: Its dtype.
        initializer: Its first value, or a function of (key, shape, dtype) that makes it.
        regularizer: A function from its value to a loss, or `None`.
        trainable: Whether the optimizer trains it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    initializer: Any
    regularizer: Callable[[Any], Any] | None
    trainable: bool

    @classmethod
    def from_arguments(
        cls,
        name: str,
        shape: Sequence[int] | None,
        dtype: Any,
        initializer: Any,
        regularizer: Callable[[Any], Any] | None,
        trainable: bool,
    ) -> "Declaration":
        """Return the declaration that the arguments of `CloneScope.variable` make.

        Raises:
            StrategyError: The arguments do not fit together.
        """
        if not isinstance(name, str) or not name:
            raise StrategyError(f"a variable's name is text such as 'w', not {name!r}")
        if isinstance(initializer, jax.core.Tracer):
            raise StrategyError(
                f"the first value of variable {name!r} is computed in the model function, which JAX traces: give a NumPy "
                "array, or a function of (key, shape, dtype)"
            )
        if initializer is None:
            is_weight = trainable and shape is not None and len(shape) >= 2
            initializer = jax.nn.initializers.glorot_uniform() if is_weight else jax.nn.initializers.zeros
        if shape is None:
            if callable(initializer):
                raise StrategyError(
                    f"variable {name!r} has no shape: give one, or an array as its initializer"
                )
            shape = np.shape(initializer)
        if dtype is None:
            dtype = jnp.float32 if callable(initializer) else jnp.result_type(initializer)
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        if trainable and not jnp.issubdtype(dtype, jnp.floating):
            raise StrategyError(
                f"variable {name!r} is {dtype}, which cannot be trained: give trainable=False"
            )
        if not callable(initializer) and np.shape(initializer) not in ((), tuple(shape)):
            raise StrategyError(
                f"variable {name!r} has the shape {tuple(shape)}, but its first value has {np.shape(initializer)}: give "
                "only one of them"
            )
        return cls(name, tuple(shape), dtype, initializer, regularizer, trainable)

    def initial(self, key: jax.Array) -> Any:
        """Return the first value."""
        if callable(self.initializer):
            return self.initializer(key, self.shape, self.dtype)
        return np.broadcast_to(np.asarray(self.initializer, self.dtype), self.shape)


class LocalVariable:
    """A variable on a device of this process, with the interface of a `RemoteVariable`.

    Attributes:
        name: Its name.
        device: The full name of its device.
        value: Its value, on that device.
    """

    def __init__(self, name: str, value: Any, device: LocalDevice) -> None:
        self.name = name
        self.device = device.name
        self._sharding = SingleDeviceSharding(device.device)
        self.value: jax.Array = jax.device_put(jnp.array(value, copy=True), self._sharding)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its value."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """The dtype of its value, by name."""
        return str(self.value.dtype)

    def read(self) -> Any:
        """Return a copy of the current value."""
        return np.array(self.value)

    def assign(self, value: Any) -> None:
        """Replace the value."""
        self.value = self._convert(value)

    def assign_add(self, value: Any) -> None:
        """Add to the value."""
        self.value = self.value + self._convert(value)

    def _convert(self, value: Any) -> jax.Array:
        """Give a value this variable's dtype and device."""
        if np.shape(value) != self.shape:
            raise VariableMismatch(
                f"variable {self.name!r} has the shape {self.shape}, but the value for it has {np.shape(value)}"
            )
        if not isinstance(value, jax.Array) or value.dtype != self.value.dtype:
            value = jax.device_put(np.asarray(value).astype(self.value.dtype), self._sharding)
        array: jax.Array = move_to(value, self._sharding)
        return array


ModelVariable: TypeAlias = LocalVariable | RemoteVariable


class ModelVariables(Mapping[str, ModelVariable]):
    """All variables by name: those that the model declares, then the optimizer's and the global step.

    Args:
        config: Says where the variables live.
        session: A connection to the cluster of the parameter servers, if there are any.
    """

    def __init__(self, config: DeploymentConfig, session: Session | None) -> None:
        if config.num_ps_tasks > 0 and session is None:
            raise StrategyError(
                f"the variables live on {config.num_ps_tasks} parameter server(s), whose addresses are unknown: "
                "give session=sg.Session('sg://host:port')"
            )
        self._config = config
        self._session = session if config.num_ps_tasks > 0 else None
        self._threads = None if self._session is None else ThreadPoolExecutor(CALLS_AT_ONCE)
        self._by_name: dict[str, ModelVariable] = {}
        self.declared: dict[str, Declaration] = {}
        self.regularization_losses: list[Loss] = []
        """The losses of the declared variables' regularizers."""

    def __getitem__(self, name: str) -> ModelVariable:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def are_shared(self) -> bool:
        """True if other replicas change the variables too, so that updates have to be added to current values."""
        return self._session is not None

    @property
    def trainable(self) -> list[str]:
        """The names of the variables that the optimizer trains."""
        return [name for name, declaration in self.declared.items() if declaration.trainable]

    # Making variables.

    def declare(self, declarations: Iterable[Declaration], seed: int) -> None:
        """Make the variables of a model, in order. Random values depend on the seed and the variable's name."""
        device = self._config.variables_device()
        with jax.default_device(find_device("/cpu:0").device):
            key = jax.random.key(seed)
            for declaration in declarations:
                name_key = jax.random.fold_in(key, zlib.crc32(declaration.name.encode()))
                value = np.asarray(declaration.initial(name_key))
                self.add(declaration.name, value, device if isinstance(device, str) else device(value))
                self.declared[declaration.name] = declaration
                if declaration.regularizer is not None:
                    self.regularization_losses.append(_loss_of(declaration.name, declaration.regularizer))

    def add(self, name: str, value: Any, device: str | None = None) -> None:
        """Make a variable. On servers the first replica makes it, and the others wait for it.

        By default, its device is that of the model's first variable: on servers, the first server.
        """
        if name in self._by_name:
            raise StrategyError(
                f"there is a variable {name!r} already: 'global_step' and names that begin with 'optimizer/' belong to "
                "the optimizer, so give the model's variable another name"
            )
        if device is None:
            choice = self._config.variables_device()
            device = choice if isinstance(choice, str) else choice(value)
        if self._session is None:
            home = find_device(device)
            self._by_name[name] = LocalVariable(name, value, home)
            log_placement(name, "Variable", home.name)
        elif self._config.replica_id == 0:
            self._by_name[name] = self._session.variable(value, name, device)
        else:
            self._by_name[name] = _wait_for_variable(self._session, name, device, value)

    # Values.

    def fetch(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the current values: on their devices if they are in this process, else in this host's memory."""
        wanted = list(names)
        return dict(zip(wanted, self._map(self._fetch_one, wanted), strict=True))

    def write(self, new_values: Values, increments: Values) -> None:
        """Replace the values of some variables, and add to those of others."""
        self._map(lambda name: self[name].assign(new_values[name]), new_values)
        self._map(lambda name: self[name].assign_add(increments[name]), increments)

    def _fetch_one(self, name: str) -> Any:
        variable = self[name]
        return variable.value if isinstance(variable, LocalVariable) else variable.read()

    def _map(self, call: Callable[[str], T], names: Iterable[str]) -> list[T]:
        return list(map(call, names) if self._threads is None else self._threads.map(call, names))


def _loss_of(name: str, regularizer: Callable[[Any], Any]) -> Loss:
    return lambda values: regularizer(values[name])


def _wait_for_variable(session: Session, name: str, device: str, value: Any) -> RemoteVariable:
    """Wait for a variable that another replica makes."""
    deadline = time.monotonic() + session.timeout
    while True:
        try:
            variable = session.get_variable(name, device)
        except VariableNotFound:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
            continue
        if variable.shape != np.shape(value) or variable.dtype != str(value.dtype):
            raise VariableMismatch(
                f"variable {name!r} is {variable.dtype}{list(variable.shape)} on {variable.task}, and "
                f"{value.dtype}{list(np.shape(value))} here: all replicas have to run the same model"
            )
        return variable
