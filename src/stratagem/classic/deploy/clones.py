"""Clones: one model function, called once for each device, over one set of variables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stratagem.classic.deploy.config import DeploymentConfig, within_process
from stratagem.classic.deploy.inputs import Inputs, Taken
from stratagem.classic.deploy.parts import on_device
from stratagem.classic.deploy.scope import CloneScope, Declaration
from stratagem.classic.deploy.variables import Loss, Variables
from stratagem.errors import StrategyError
from stratagem.runtime import Session

T = TypeVar("T")
Values = Mapping[str, Any]
"""The variables' values, by name."""


class Extras(NamedTuple):
    """What a clone brings besides its loss.

    Attributes:
        updates: New values of variables that are not trained.
        summaries: What it shows, under whole names.
    """

    updates: dict[str, Any]
    summaries: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Clone:
    """One call of the model function.

    Attributes:
        outputs: What it returns, with shapes and dtypes in place of arrays; `run()` gives the values.
        scope: What its names begin with: `clone_0`, or nothing if it is the only one.
        device: Where it computes.
        index: Which of the clones it is.
        config: How the model is deployed.
        variables: The variables of all clones, by name.
        has_losses: Whether it has any loss.
    """

    outputs: Any
    scope: str
    device: str
    index: int
    config: DeploymentConfig
    variables: Variables
    has_losses: bool
    _model_fn: Callable[..., Any] = field(repr=False)
    _inputs: Inputs = field(repr=False)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def run(self) -> Any:
        """What the model function returns for the next inputs, computed on this clone's device."""

        def outputs(values: Values, taken: Taken) -> Any:
            return self._call(values, taken)[0]

        return self.once("outputs", lambda: self.compiled("outputs", outputs))(*self.arguments())

    def arguments(self) -> tuple[Values, Taken]:
        """The variables' values now, and the next inputs."""
        return self.variables.fetch(self.variables.declared), self._inputs.take()

    def next_inputs(self) -> Taken:
        """The next inputs."""
        return self._inputs.take()

    def shapes(self) -> tuple[Values, Taken]:
        """The same as `arguments`, with shapes and dtypes in place of arrays."""
        values = {
            name: jax.ShapeDtypeStruct(declaration.shape, declaration.dtype)
            for name, declaration in self.variables.declared.items()
        }
        return values, jax.eval_shape(lambda taken: taken, self._inputs.peek())

    def compiled(self, name: str, function: Callable[..., T]) -> Callable[..., T]:
        """A function compiled for this clone's device."""
        return on_device(function, within_process(self.device), name=self._named(name))

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` makes, made when its key is first seen: programs are compiled once."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def loss(
        self, num_clones: int, regularization_losses: Sequence[Loss], values: Values, taken: Taken
    ) -> tuple[jax.Array, Extras]:
        """Its share of the loss of all clones, 0 if it has none, and what it brings besides; traceable."""
        _, scope = self._call(values, taken)
        summaries = {self._named(name): value for name, value in scope.summaries.items()}
        parts = []
        if scope.losses:
            parts.append(sum(scope.losses[1:], start=scope.losses[0]) / num_clones)
            summaries[self._named("clone_loss")] = parts[-1]
        if regularization_losses:
            losses = [loss(values) for loss in regularization_losses]
            parts.append(sum(losses[1:], start=losses[0]))
            summaries["regularization_loss"] = parts[-1]
        return jnp.asarray(sum(parts[1:], start=parts[0]) if parts else 0.0), Extras(scope.updates, summaries)

    def _named(self, name: str) -> str:
        return f"{self.scope}/{name}" if self.scope else name

    def _call(self, values: Values, taken: Taken) -> tuple[Any, CloneScope]:
        def find(declaration: Declaration) -> Any:
            if declaration.name not in values:
                raise StrategyError(
                    f"clone {self.index} asks for variable {declaration.name!r}, which the first clone has not made: "
                    f"it made {', '.join(values) or 'none'}"
                )
            return values[declaration.name]

        scope = CloneScope(self.scope, self.index, find)
        return self._inputs.call(self._model_fn, scope, taken), scope


def create_clones(
    config: DeploymentConfig,
    model_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    session: Session | None = None,
    seed: int = 0,
) -> list[Clone]:
    """Make the clones of a model, and its variables.

    Args:
        config: How many clones there are, and where.
        model_fn: Called as `model_fn(scope, *args, **kwargs)` with a `CloneScope`, once for each clone; traced
            and compiled by JAX.
        args: Its arguments. An iterator among them is a queue: each clone takes its next item at every run.
            Arrays are the same for all clones; what is no array becomes a part of the program.
        kwargs: Its keyword arguments, to which the same applies.
        session: A connection to the cluster, if the variables live on parameter servers.
        seed: What first values of variables are drawn from.

    Returns:
        The clones; their variables are `clones[0].variables`.
    """
    inputs = Inputs(args, kwargs)
    variables = Variables(config, session)
    if config.num_clones > 0:
        first = CloneScope(config.clone_scope(0), 0, lambda asked: jnp.zeros(asked.shape, asked.dtype))
        jax.eval_shape(lambda taken: _nothing(inputs.call(model_fn, first, taken)), inputs.peek())
        variables.declare(first.declared.values(), seed)
    return [_clone(config, index, variables, model_fn, inputs) for index in range(config.num_clones)]


def _clone(
    config: DeploymentConfig, index: int, variables: Variables, model_fn: Callable[..., Any], inputs: Inputs
) -> Clone:
    scope, device = config.clone_scope(index), config.clone_device(index)
    counted: list[int] = []
    draft = Clone(None, scope, device, index, config, variables, False, model_fn, inputs)

    def outputs(values: Values, taken: Taken) -> Any:
        returned, called = draft._call(values, taken)
        counted.append(len(called.losses))
        return returned

    shapes = jax.eval_shape(outputs, *draft.shapes())
    return Clone(shapes, scope, device, index, config, variables, counted[-1] > 0, model_fn, inputs)


def _nothing(_: Any) -> None:
    """For a trace that is made for what happens in it."""


def gather_clone_loss(
    clone: Clone, num_clones: int, regularization_losses: Sequence[Loss] | None
) -> jax.Array | None:
    """The share of one clone in the loss of all, for the next inputs, computed on its device.

    Args:
        clone: The clone.
        num_clones: How many there are: its own losses are divided by that.
        regularization_losses: Functions of the variables by name, whose sum is added as it is. Of all clones
            only one should be given any: slim, and we, give them to the first.

    Returns:
        The loss; `None` if there is none of either kind.
    """
    losses = tuple(regularization_losses or ())
    if not clone.has_losses and not losses:
        return None

    def loss(values: Values, taken: Taken) -> jax.Array:
        return clone.loss(num_clones, losses, values, taken)[0]

    program = clone.once(("loss", num_clones, losses), lambda: clone.compiled("loss", loss))
    return program(*clone.arguments())
