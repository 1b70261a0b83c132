"""Clones: one model function, called once for each device, over one set of variables.

In order: what a model function is called with (a `CloneScope` and its `Inputs`), a `Clone`, and the functions that make
clones and compute the loss of one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.classic.deploy.deployment_config import DeploymentConfig, within_process
from stratagem.classic.deploy.device_functions import on_device
from stratagem.classic.deploy.model_variables import Declaration, Loss, ModelVariables, Values
from stratagem.errors import DataError, StratagemError, StrategyError, VariableMismatch
from stratagem.runtime import Session

T = TypeVar("T")
InputArrays: TypeAlias = tuple[list[Any], list[Any]]
"""The arrays of one call: those that are the same in every call, and the items of the iterators."""


class CloneScope:
    """The first argument of a model function, one per clone.

    The first clone makes the variables, and all clones read them. The losses of all clones count; updates and
    summaries are taken from the first clone alone.

    Attributes:
        name: The prefix of the clone's names: `clone_0`, or empty if it is the only one.
        index: The clone's number.

    Example:
        def model_fn(scope, images, labels):
            w = scope.variable("w", (64, 10), initializer=jax.nn.initializers.he_normal())
            mean = scope.variable("mean", (64,), trainable=False)
            scope.add_update("mean", 0.9 * mean + 0.1 * images.mean(axis=0))
            logits = (images - mean) @ w
            scope.add_loss(optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean())
            scope.add_summary("logits", logits)
            return logits
    """

    def __init__(self, name: str, index: int, find: Callable[[Declaration], Any]) -> None:
        self.name = name
        self.index = index
        self.declared: dict[str, Declaration] = {}
        self.losses: list[Any] = []
        self.updates: dict[str, Any] = {}
        self.summaries: dict[str, Any] = {}
        self._find = find

    def variable(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Callable[[Any], Any] | None = None,
        trainable: bool = True,
    ) -> Any:
        """Return the value of a variable, which the first clone makes.

        Args:
            name: Its name. Ask for each name once in a model, and keep the value to use it in two places.
            shape: Its shape. By default that of `initializer`, if this is an array.
            dtype: Its dtype. By default that of `initializer`, if this is an array, else float32.
            initializer: A function of (key, shape, dtype) such as those of `jax.nn.initializers`, or a NumPy array. By
                default, as in TensorFlow: Glorot's uniform distribution for trained variables of two or more
                dimensions (weights), zeros for all others.
            regularizer: A function from its value to a loss, which counts once, however many clones there are.
            trainable: Whether the optimizer trains it. Change other variables by `add_update`.

        Raises:
            StrategyError: The arguments do not fit together.
        """
        declaration = Declaration.from_arguments(name, shape, dtype, initializer, regularizer, trainable)
        if name in self.declared:
            raise StrategyError(
                f"this model has a variable {name!r} already: give the second another name, or keep the value that the "
                "first call returned to share it"
            )
        self.declared[name] = declaration
        return self._find(declaration)

    def add_loss(self, loss: Any) -> None:
        """Add to the loss of this clone, which is divided by the number of clones.

        Args:
            loss: A number, usually the mean over this clone's rows.
        """
        if jnp.shape(loss) != ():
            raise StrategyError(
                f"a loss is one number; this one has the shape {jnp.shape(loss)}: take its mean"
            )
        self.losses.append(loss)

    def add_update(self, name: str, value: Any) -> None:
        """Give a variable a new value at each training step. Only the first clone's updates count.

        Args:
            name: A variable that this clone has asked for and that is not trained.
            value: Its new value.

        Raises:
            StrategyError: There is no such variable, or the optimizer trains it.
            VariableMismatch: The value has another shape.
        """
        declaration = self.declared.get(name)
        if declaration is None:
            raise StrategyError(
                f"add_update got {name!r}; the variables so far are {', '.join(self.declared) or 'none'}"
            )
        if declaration.trainable:
            raise StrategyError(
                f"add_update got {name!r}, which the optimizer trains, so that one change would undo the other: declare "
                "it with trainable=False, or leave it to the optimizer"
            )
        if jnp.shape(value) != declaration.shape:
            raise VariableMismatch(
                f"the update of variable {name!r} has the shape {jnp.shape(value)}, the variable {declaration.shape}"
            )
        self.updates[name] = jax.lax.stop_gradient(jnp.asarray(value, declaration.dtype))

    def add_summary(self, name: str, value: Any) -> None:
        """Show a number as a scalar, or an array as a histogram. Only the first clone's summaries count."""
        self.summaries[name] = jax.lax.stop_gradient(jnp.asarray(value))


class Inputs:
    """The arguments of a model function, after the scope.

    An iterator among them is a queue: each call takes its next item. JAX traces arrays, also those in pytrees;
    anything else (numbers, strings, functions) becomes a part of the program.
    """

    def __init__(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
        self._keywords = list(kwargs or {})
        values = [*(args or ()), *(kwargs or {}).values()]
        self._queues = {place: value for place, value in enumerate(values) if isinstance(value, Iterator)}
        constants = [None if place in self._queues else value for place, value in enumerate(values)]
        self._leaves, self._tree = jax.tree.flatten(constants, is_leaf=lambda value: value is None)
        self._iterables = [place for place, value in enumerate(values) if _may_be_dataset(value)]
        self._arrays = [place for place, leaf in enumerate(self._leaves) if _is_array(leaf)]
        self._next: InputArrays | None = None
        self._count = 0

    def take(self) -> InputArrays:
        """Return the arrays of the next call.

        Raises:
            DataError: An iterator has ended.
        """
        if self._next is not None:
            arrays, self._next = self._next, None
            return arrays
        items = []
        for queue in self._queues.values():
            try:
                items.append(jax.tree.map(_as_array, next(queue)))
            except StopIteration:
                raise DataError(
                    f"the inputs ran out after {self._count} batch(es), one for each clone at each step: stop "
                    "before, or give an iterator that goes on"
                ) from None
        self._count += 1
        return [self._leaves[place] for place in self._arrays], items

    def peek(self) -> InputArrays:
        """Return the arrays that `take` will return next."""
        if self._next is None:
            self._next = self.take()
        return self._next

    def call(self, function: Callable[..., Any], scope: CloneScope, inputs: InputArrays) -> Any:
        """Call the model function with the scope, and with these arrays in their places. Traceable."""
        arrays, items = inputs
        leaves = list(self._leaves)
        for place, array in zip(self._arrays, arrays, strict=True):
            leaves[place] = array
        values = jax.tree.unflatten(self._tree, leaves)
        for place, item in zip(self._queues, items, strict=True):
            values[place] = item
        count = len(values) - len(self._keywords)
        kwargs = dict(zip(self._keywords, values[count:], strict=True))
        try:
            return function(scope, *values[:count], **kwargs)
        except (AttributeError, TypeError, ValueError) as error:
            if not self._iterables or isinstance(error, StratagemError):
                raise
            place = self._iterables[0]
            name = f"{place} in args" if place < count else repr(self._keywords[place - count])
            raise DataError(
                f"the model function raised {type(error).__name__}: {error}. It gets argument {name} whole, a "
                f"{type(values[place]).__name__}: if that has batches, of which each clone is to take the next, give "
                "iter(…) of it"
            ) from error


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def _may_be_dataset(value: Any) -> bool:
    """Return whether a value is iterable but not an iterator, such as a list of arrays or a dataset."""
    if isinstance(value, Iterator | Mapping | tuple | str | bytes) or _is_array(value):
        return False
    return isinstance(value, Iterable) and any(
        leaf is value or _is_array(leaf) for leaf in jax.tree.leaves(value)
    )


def _as_array(leaf: Any) -> Any:
    return leaf if _is_array(leaf) else np.asarray(leaf)


class Extras(NamedTuple):
    """The results of a clone besides its loss.

    Attributes:
        updates: New values of variables that are not trained.
        summaries: Values to show, under their full names.
    """

    updates: dict[str, Any]
    summaries: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Clone:
    """One call of the model function.

    Attributes:
        outputs: The return value of the model function, with shapes and dtypes in place of arrays; `run()` returns the
            arrays.
        scope: The prefix of the clone's names: `clone_0`, or empty if it is the only one.
        device: The device that it computes on.
        index: Its number among the clones.
        config: How the model is deployed.
        variables: The variables of all clones, by name.
        has_losses: Whether the model function added any loss.
    """

    outputs: Any
    scope: str
    device: str
    index: int
    config: DeploymentConfig
    variables: ModelVariables
    has_losses: bool
    _model_fn: Callable[..., Any] = field(repr=False)
    _inputs: Inputs = field(repr=False)
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def run(self) -> Any:
        """Return the model function's outputs for the next inputs, computed on this clone's device."""

        def outputs(values: Values, inputs: InputArrays) -> Any:
            return self._call(values, inputs)[0]

        return self.cached("outputs", lambda: self.compile("outputs", outputs))(*self.arguments())

    def arguments(self) -> tuple[Values, InputArrays]:
        """Return the variables' current values, and the next inputs."""
        return self.variables.fetch(self.variables.declared), self._inputs.take()

    def next_inputs(self) -> InputArrays:
        """Return the next inputs."""
        return self._inputs.take()

    def shapes(self) -> tuple[Values, InputArrays]:
        """Return the same as `arguments`, with shapes and dtypes in place of arrays."""
        values = {
            name: jax.ShapeDtypeStruct(declaration.shape, declaration.dtype)
            for name, declaration in self.variables.declared.items()
        }
        return values, jax.eval_shape(lambda inputs: inputs, self._inputs.peek())

    def compile(self, name: str, function: Callable[..., T]) -> Callable[..., T]:
        """Compile a function for this clone's device."""
        return on_device(function, within_process(self.device), name=self._full_name(name))

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value that `make` returned when this key was first seen, so that programs are compiled once."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]  # type: ignore[no-any-return]

    def loss(
        self, num_clones: int, regularization_losses: Sequence[Loss], values: Values, inputs: InputArrays
    ) -> tuple[jax.Array, Extras]:
        """Return this clone's share of the loss of all clones (0 if it has none) and its extras. Traceable."""
        _, scope = self._call(values, inputs)
        summaries = {self._full_name(name): value for name, value in scope.summaries.items()}
        terms = []
        if scope.losses:
            terms.append(sum(scope.losses[1:], start=scope.losses[0]) / num_clones)
            summaries[self._full_name("clone_loss")] = terms[-1]
        if regularization_losses:
            losses = [loss(values) for loss in regularization_losses]
            terms.append(sum(losses[1:], start=losses[0]))
            summaries["regularization_loss"] = terms[-1]
        return jnp.asarray(sum(terms[1:], start=terms[0]) if terms else 0.0), Extras(scope.updates, summaries)

    def _full_name(self, name: str) -> str:
        return f"{self.scope}/{name}" if self.scope else name

    def _call(self, values: Values, inputs: InputArrays) -> tuple[Any, CloneScope]:
        def find(declaration: Declaration) -> Any:
            if declaration.name not in values:
                raise StrategyError(
                    f"clone {self.index} asks for variable {declaration.name!r}, which the first clone has not made: "
                    f"it made {', '.join(values) or 'none'}"
                )
            return values[declaration.name]

        scope = CloneScope(self.scope, self.index, find)
        return self._inputs.call(self._model_fn, scope, inputs), scope


def create_clones(
    config: DeploymentConfig,
    model_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    session: Session | None = None,
    seed: int = 0,
) -> list[Clone]:
    """Create the clones of a model, and its variables.

    Args:
        config: How many clones there are, and where.
        model_fn: Called as `model_fn(scope, *args, **kwargs)` with a `CloneScope`, once for each clone; traced
            and compiled by JAX.
        args: Its arguments. An iterator among them is a queue: each clone takes its next item at every run.
            Arrays are the same for all clones; anything else becomes a part of the program.
        kwargs: Its keyword arguments, to which the same applies.
        session: A connection to the cluster, if the variables live on parameter servers.
        seed: The seed of the variables' random first values.

    Returns:
        The clones; their variables are `clones[0].variables`.
    """
    inputs = Inputs(args, kwargs)
    variables = ModelVariables(config, session)
    if config.num_clones > 0:
        first = CloneScope(config.clone_scope(0), 0, lambda asked: jnp.zeros(asked.shape, asked.dtype))

        def declare(arrays: InputArrays) -> None:  # traced only for the declarations in it
            inputs.call(model_fn, first, arrays)

        jax.eval_shape(declare, inputs.peek())
        variables.declare(first.declared.values(), seed)
    return [_create_clone(config, index, variables, model_fn, inputs) for index in range(config.num_clones)]


def _create_clone(
    config: DeploymentConfig,
    index: int,
    variables: ModelVariables,
    model_fn: Callable[..., Any],
    inputs: Inputs,
) -> Clone:
    scope, device = config.clone_scope(index), config.clone_device(index)
    loss_counts: list[int] = []
    draft = Clone(None, scope, device, index, config, variables, False, model_fn, inputs)

    def outputs(values: Values, arrays: InputArrays) -> Any:
        result, called = draft._call(values, arrays)
        loss_counts.append(len(called.losses))
        return result

    shapes = jax.eval_shape(outputs, *draft.shapes())
    return Clone(shapes, scope, device, index, config, variables, loss_counts[-1] > 0, model_fn, inputs)


def gather_clone_loss(
    clone: Clone, num_clones: int, regularization_losses: Sequence[Loss] | None
) -> jax.Array | None:
    """Return the share of one clone in the loss of all, for the next inputs, computed on its device.

    Args:
        clone: The clone.
        num_clones: The number of clones, by which its own losses are divided.
        regularization_losses: Functions of the variables by name, whose sum is added undivided. Give them to one
            clone only: slim and `deploy` give them to the first.

    Returns:
        The loss; `None` if there is none of either kind.
    """
    losses = tuple(regularization_losses or ())
    if not clone.has_losses and not losses:
        return None

    def loss(values: Values, inputs: InputArrays) -> jax.Array:
        return clone.loss(num_clones, losses, values, inputs)[0]

    program = clone.cached(("loss", num_clones, losses), lambda: clone.compile("loss", loss))
    return program(*clone.arguments())
