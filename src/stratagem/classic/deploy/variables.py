"""The variables of a deployed model: in this process, or on the parameter servers of a running cluster."""

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from stratagem.classic.deploy.config import DeploymentConfig
from stratagem.classic.deploy.parts import moved
from stratagem.classic.deploy.scope import Declaration
from stratagem.devices import LocalDevice, find_device, log_placement
from stratagem.errors import StrategyError, VariableMismatch, VariableNotFound
from stratagem.runtime import RemoteVariable, Session

POLL_SECONDS = 0.1
"""How often a replica looks whether the first one has made a variable."""
CALLS_AT_ONCE = 8
"""How many variables of parameter servers are read or written at a time."""

Loss = Callable[[Mapping[str, Any]], Any]
"""A regularisation loss: a function of all variables by name."""
T = TypeVar("T")


class Variable(Protocol):
    """What all variables offer, wherever they live."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...

    def read(self) -> Any:
        """The value now, as an array of the caller's own."""
        ...

    def assign(self, value: Any) -> None:
        """Replace the value."""
        ...

    def assign_add(self, value: Any) -> None:
        """Add to the value."""
        ...


class LocalVariable:
    """A variable on a device of this process.

    Attributes:
        name: Its name.
        device: The full name of its device.
        value: Its value, on that device.
    """

    def __init__(self, name: str, value: Any, home: LocalDevice) -> None:
        self.name = name
        self.device = home.name
        self._home = SingleDeviceSharding(home.device)
        self.value: jax.Array = jax.device_put(jnp.array(value, copy=True), self._home)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its value."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """The dtype of its value, by name."""
        return str(self.value.dtype)

    def read(self) -> Any:
        """The value now, as an array of the caller's own."""
        return np.array(self.value)

    def assign(self, value: Any) -> None:
        """Replace the value."""
        self.value = self._here(value)

    def assign_add(self, value: Any) -> None:
        """Add to the value."""
        self.value = self.value + self._here(value)

    def _here(self, value: Any) -> jax.Array:
        """A value for this variable, on its device."""
        if np.shape(value) != self.shape:
            raise VariableMismatch(
                f"variable {self.name!r} has the shape {self.shape}, the value for it {np.shape(value)}"
            )
        if not isinstance(value, jax.Array) or value.dtype != self.value.dtype:
            value = jax.device_put(np.asarray(value).astype(self.value.dtype), self._home)
        placed: jax.Array = moved(value, self._home)
        return placed


class Variables(Mapping[str, Variable]):
    """All variables of a model by name: those it declares, then the optimizer's and the global step.

    Args:
        config: Says where they live.
        session: A connection to the cluster of the parameter servers, if there are any.
    """

    def __init__(self, config: DeploymentConfig, session: Session | None) -> None:
        if config.num_ps_tasks > 0 and session is None:
            raise StrategyError(
                f"the variables live on {config.num_ps_tasks} parameter server(s), and nothing says where these are: "
                "give session=sg.Session('sg://host:port')"
            )
        self._config = config
        self._session = session if config.num_ps_tasks > 0 else None
        self._threads = None if self._session is None else ThreadPoolExecutor(CALLS_AT_ONCE)
        self._all: dict[str, Variable] = {}
        self.declared: dict[str, Declaration] = {}
        self.regularization_losses: list[Loss] = []
        """The losses of the regularizers that the variables were declared with."""

    def __getitem__(self, name: str) -> Variable:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def are_shared(self) -> bool:
        """Whether other replicas change them too, so that changes have to be added to what is there."""
        return self._session is not None

    @property
    def trainable(self) -> list[str]:
        """The names of those that are trained."""
        return [name for name, declaration in self.declared.items() if declaration.trainable]

    # Making.

    def declare(self, declarations: Iterable[Declaration], seed: int) -> None:
        """Make the variables of a model, in their order; what is drawn depends on the seed and on each one's name."""
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

    def add(self, name: str, value: Any, device: str) -> Variable:
        """Make a variable on a device; on servers the first replica makes it, and the others wait for it."""
        if name in self._all:
            raise StrategyError(
                f"there is a variable {name!r} already: 'global_step' and names that begin with 'optimizer/' are "
                "the optimizer's, call the model's otherwise"
            )
        if self._session is None:
            home = find_device(device)
            self._all[name] = LocalVariable(name, value, home)
            log_placement(name, "Variable", home.name)
        elif self._config.replica_id == 0:
            self._all[name] = self._session.variable(value, name, device)
        else:
            self._all[name] = _await(self._session, name, device, value)
        return self._all[name]

    def home(self, value: Any) -> str:
        """Where a variable goes that is none of the model's: on servers, to the first."""
        device = self._config.variables_device()
        return device if isinstance(device, str) else device(value)

    # Values.

    def fetch(self, names: Iterable[str]) -> dict[str, Any]:
        """The values now: on their devices if they are here, else in this host's memory."""
        wanted = list(names)
        return dict(zip(wanted, self._each(_value, [(self._all[name],) for name in wanted]), strict=True))

    def write(self, replaced: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Replace the values of some, and add to those of others."""
        self._each(_assign, [(self._all[name], value) for name, value in replaced.items()])
        self._each(_add, [(self._all[name], value) for name, value in added.items()])

    def _each(self, call: Callable[..., T], arguments: list[tuple[Any, ...]]) -> list[T]:
        if self._threads is None:
            return [call(*each) for each in arguments]
        return list(self._threads.map(lambda each: call(*each), arguments))


def _loss_of(name: str, regularizer: Callable[[Any], Any]) -> Loss:
    return lambda variables: regularizer(variables[name])


def _value(variable: Variable) -> Any:
    return variable.value if isinstance(variable, LocalVariable) else variable.read()


def _assign(variable: Variable, value: Any) -> None:
    variable.assign(value)


def _add(variable: Variable, value: Any) -> None:
    variable.assign_add(value)


def _await(session: Session, name: str, device: str, value: Any) -> RemoteVariable:
    """A variable that another replica makes, once it is there."""
    deadline = time.monotonic() + session.timeout
    while True:
        try:
            found = session.get_variable(name, device)
        except VariableNotFound:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
            continue
        if found.shape != np.shape(value) or found.dtype != str(value.dtype):
            raise VariableMismatch(
                f"variable {name!r} is {found.dtype}{list(found.shape)} on {found.task}, and "
                f"{value.dtype}{list(np.shape(value))} here: all replicas have to run the same model"
            )
        return found
