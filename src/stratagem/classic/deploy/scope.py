"""`CloneScope`: what a model function declares its variables, losses, updates and summaries with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import StrategyError, VariableMismatch


@dataclass(frozen=True, eq=False)
class Declaration:
    """A variable as the model function asks for it.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: Its dtype.
        initializer: Its first value, or a function of (key, shape, dtype) that makes it.
        regularizer: A function from its value to a loss, or `None`.
        trainable: Whether it is trained.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    initializer: Any
    regularizer: Callable[[Any], Any] | None
    trainable: bool

    def initial(self, key: jax.Array) -> Any:
        """The first value."""
        if callable(self.initializer):
            return self.initializer(key, self.shape, self.dtype)
        return np.broadcast_to(np.asarray(self.initializer, self.dtype), self.shape)


class CloneScope:
    """The first argument of a model function, one per clone.

    The first clone makes the variables; all clones read the same. All clones' losses count; updates and
    summaries are taken from the first clone alone.

    Args:
        name: What the names of the clone begin with: `clone_0`, or nothing if it is the only one.
        index: Which of the clones it is.
        find: Gives the value of a variable.

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
        """The value of a variable, which the first clone makes.

        Args:
            name: Its name, each once in a model: what is wanted in two places is asked for once.
            shape: Its shape; that of `initializer`, if this is an array.
            dtype: Its dtype; that of `initializer`, if this is an array, else float32.
            initializer: A function of (key, shape, dtype) such as those of `jax.nn.initializers`, or an array
                of NumPy's. By default, as in TensorFlow, Glorot's uniform distribution for weights that are trained, of
                two dimensions and more; zeros for all else: biases, numbers, what is not trained.
            regularizer: A function from its value to a loss, which counts once, however many clones there are.
            trainable: Whether the optimizer trains it; what is not trained is changed by `add_update`.

        Raises:
            StrategyError: The variable cannot be meant.
        """
        declaration = _declaration(name, shape, dtype, initializer, regularizer, trainable)
        if name in self.declared:
            raise StrategyError(
                f"this model has a variable {name!r} already: give the second another name, or keep what the first "
                "call returned to share it"
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
        """Give a variable a new value with each step of training; of the clones the first one's counts.

        Args:
            name: The variable, which this clone has asked for, and which is not trained.
            value: Its new value.

        Raises:
            StrategyError: There is no such variable, or the optimizer changes it.
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
        """Show a value: a number as a scalar, an array as a histogram; of the clones the first one's."""
        self.summaries[name] = jax.lax.stop_gradient(jnp.asarray(value))


def _declaration(
    name: str,
    shape: Sequence[int] | None,
    dtype: Any,
    initializer: Any,
    regularizer: Callable[[Any], Any] | None,
    trainable: bool,
) -> Declaration:
    if not isinstance(name, str) or not name:
        raise StrategyError(f"a variable's name is text such as 'w', not {name!r}")
    if isinstance(initializer, jax.core.Tracer):
        raise StrategyError(
            f"the first value of variable {name!r} is computed in the model function, which JAX traces: give an array "
            "of NumPy's, or a function of (key, shape, dtype)"
        )
    if initializer is None:
        is_weight = trainable and shape is not None and len(shape) >= 2
        initializer = jax.nn.initializers.glorot_uniform() if is_weight else jax.nn.initializers.zeros
    if shape is None:
        if callable(initializer):
            raise StrategyError(f"variable {name!r} has no shape: give one, or an array as its initializer")
        shape = np.shape(initializer)
    if dtype is None:
        dtype = jnp.float32 if callable(initializer) else jnp.result_type(initializer)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if trainable and not jnp.issubdtype(dtype, jnp.floating):
        raise StrategyError(f"variable {name!r} is {dtype}, which cannot be trained: give trainable=False")
    if not callable(initializer) and np.shape(initializer) not in ((), tuple(shape)):
        raise StrategyError(
            f"variable {name!r} has the shape {tuple(shape)}, its first value {np.shape(initializer)}: give one of them"
        )
    return Declaration(name, tuple(shape), dtype, initializer, regularizer, trainable)
