"""All that changes while a model is trained, as one value that goes into a step and comes out of it."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakMethod

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import PyTreeDef

from stratagem.devices.global_arrays import local_copy
from stratagem.errors import StrategyError
from stratagem.tables.row_source import RowSource
from stratagem.waist.averages import ExponentialMovingAverage
from stratagem.waist.home import Home, LocalHome
from stratagem.waist.interfaces import Arrays, Kind, MakesUpdaters, Trainable, Updater, natural_kind
from stratagem.waist.loss_functions import leaf_names
from stratagem.waist.optimizers import OptaxUpdater, is_optax

LOCAL_HOME: Final = LocalHome()


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a state is trained, which stays the same from step to step.

    Attributes:
        updater: The optimizer.
        params_tree: The structure of the parameters.
        opt_state_tree: The structure of the optimizer's state.
        names: The parameters' names.
        ema: The moving averages to keep, if any.
        seed: The seed of random numbers, which are drawn from it and the step.
        trainable: The model, if it takes trained values back.
        kinds: The kind of each piece of non-trained state; `None`: their natural kinds.
        home: Where the state lives while it is trained.
        tables: The rows of tables that are trained with the state, if there are any.
    """

    updater: Updater
    params_tree: PyTreeDef
    opt_state_tree: PyTreeDef
    names: tuple[str, ...]
    ema: ExponentialMovingAverage | None = None
    seed: int = 0
    trainable: Trainable | None = None
    kinds: tuple[Kind, ...] | None = None
    home: Home = LOCAL_HOME
    tables: RowSource | None = None


@dataclass(frozen=True)
class TrainState:
    """Parameters, optimizer, non-trained state, moving averages and the number of updates so far.

    Attributes:
        flat_params: The parameters as a flat list.
        flat_opt_state: The optimizer's state as a flat list.
        flat_state: The non-trained state as a flat list.
        flat_ema: The moving averages of the parameters; `None` without them.
        step: The number of updates that the parameters contain.
        recipe: How the state is trained.
    """

    flat_params: Arrays
    flat_opt_state: Arrays
    flat_state: Arrays
    flat_ema: Arrays | None
    step: Any
    recipe: Recipe

    @classmethod
    def of(
        cls,
        params: Any,
        optimizer: Any,
        opt_state: Any = None,
        step: Any = 0,
        *,
        ema: Any = None,
        seed: int = 0,
    ) -> "TrainState":
        """Make a state of a model that is trained by hand, for a `Checkpointer`; the arrays are shared, not copied.

        The process trains alone, and writes the checkpoints. A checkpoint of such a state fits
        `strategy.init(params, optimizer)` under every strategy, and the other way round.

        Args:
            params: The parameters: any pytree.
            optimizer: The optax optimizer.
            opt_state: Its state; by default a new one.
            step: The number of updates that the parameters contain.
            ema: Moving averages of the parameters, in their structure, if there are any.
            seed: The seed of random numbers, which are drawn from it and the step.

        Raises:
            StrategyError: The optimizer is not an optax optimizer, or the state or the averages do not fit the
                parameters.

        Example:
            >>> state = TrainState.of(params, optimizer, opt_state, step)
            >>> checkpoints.save(state)
            >>> state = checkpoints.restore(like=TrainState.of(params, optimizer))
            >>> params, opt_state, step = state.params, state.opt_state, int(state.step)
        """
        if not is_optax(optimizer):
            raise StrategyError(f"the optimizer is {optimizer!r:.80}; give an optax optimizer")
        leaves, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
        updater = OptaxUpdater(optimizer, tree)
        flat_opt_state = (
            updater.init(leaves) if opt_state is None else updater.flatten_state(leaves, opt_state)
        )
        ema_tree: Any = jax.tree.structure(ema)
        if ema is not None and ema_tree != tree:
            raise StrategyError(f"the averages are {ema_tree}, the parameters {tree}: give one for each")
        recipe = Recipe(updater, tree, updater.state_tree, tuple(leaf_names(tree)), seed=seed)
        averages = None if ema is None else [jnp.asarray(leaf) for leaf in jax.tree.leaves(ema)]
        return cls(leaves, flat_opt_state, [], averages, jnp.int32(step), recipe)

    @property
    def params(self) -> Any:
        """The parameters, in the user's structure."""
        return jax.tree.unflatten(self.recipe.params_tree, map(local_copy, self.flat_params))

    @property
    def opt_state(self) -> Any:
        """The optimizer's state, in its own structure."""
        return jax.tree.unflatten(self.recipe.opt_state_tree, map(local_copy, self.flat_opt_state))

    @property
    def ema(self) -> Any:
        """The moving averages, in the structure of the parameters; `None` without them."""
        if self.flat_ema is None:
            return None
        return jax.tree.unflatten(self.recipe.params_tree, map(local_copy, self.flat_ema))

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of each piece of non-trained state."""
        return self.recipe.kinds or [natural_kind(each) for each in self.flat_state]

    @property
    def rng(self) -> jax.Array:
        """The random key of this step."""
        return jax.random.fold_in(jax.random.key(self.recipe.seed), self.step)

    def at_home(self, home: Home) -> "TrainState":
        """Return the same state with another home; this very state if that is its home already."""
        return self if self.recipe.home is home else replace(self, recipe=replace(self.recipe, home=home))

    def updated(self, grads: Arrays, state: Arrays) -> "TrainState":
        """Return the state after an update with these gradients; traceable."""
        recipe = self.recipe
        params, opt_state = recipe.updater.update(self.flat_params, self.flat_opt_state, grads)
        step = self.step + 1
        averages = self.flat_ema
        if recipe.ema is not None:
            averages = recipe.ema.update(averages, params, num_updates=step)
        return TrainState(params, opt_state, state, averages, step, recipe)


jax.tree_util.register_dataclass(
    TrainState,
    data_fields=["flat_params", "flat_opt_state", "flat_state", "flat_ema", "step"],
    meta_fields=["recipe"],
)


def new_state(
    params: Any, optimizer: optax.GradientTransformation, ema_decay: float | None = None, seed: int = 0
) -> TrainState:
    """Return the state of an untrained pytree of parameters, in arrays of its own."""
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params))
    updater = OptaxUpdater(optimizer, tree)
    opt_state = updater.init(leaves)
    recipe = Recipe(updater, tree, updater.state_tree, tuple(leaf_names(tree)), seed=seed)
    return _initial(leaves, opt_state, [], recipe, ema_decay)


def state_of(
    trainable: Trainable,
    optimizer: Any,
    ema_decay: float | None = None,
    seed: int = 0,
) -> TrainState:
    """Return the state of a model as it is now, in arrays of its own.

    Args:
        trainable: The model.
        optimizer: An optax optimizer, an `Updater`, or an optimizer that the trainable makes one of.
        ema_decay: Keep moving averages of the parameters with this decay.
        seed: The seed of random numbers, which are drawn from it and the step.

    Raises:
        StrategyError: The optimizer is not an optimizer.
    """
    leaves, state = ([jnp.array(each, copy=True) for each in arrays] for arrays in trainable.init())
    tree = jax.tree.structure(OrderedDict.fromkeys(trainable.names, 0))
    if isinstance(trainable, MakesUpdaters):
        optimizer = trainable.updater(optimizer) or optimizer
    if not is_optax(optimizer):  # an `Updater` has these functions too
        raise StrategyError(
            f"the optimizer is {optimizer!r:.80}; give an optax optimizer, such as optax.adam(1e-3), or one of the model's "
            "own library"
        )
    updater = optimizer if isinstance(optimizer, Updater) else OptaxUpdater(optimizer, tree)
    opt_state = updater.init(leaves)
    opt_tree = updater.state_tree if isinstance(updater, OptaxUpdater) else jax.tree.structure(opt_state)
    kinds = None if trainable.kinds is None else tuple(trainable.kinds)
    recipe = Recipe(updater, tree, opt_tree, tuple(trainable.names), None, seed, trainable, kinds)
    return _initial(leaves, opt_state, state, recipe, ema_decay)


def _initial(
    leaves: Arrays, opt_state: Arrays, state: Arrays, recipe: Recipe, ema_decay: float | None
) -> TrainState:
    opt_state = [jnp.array(each, copy=True) for each in opt_state]
    if ema_decay is None:
        return TrainState(leaves, opt_state, state, None, jnp.int32(0), recipe)
    ema = ExponentialMovingAverage(ema_decay)
    return TrainState(leaves, opt_state, state, ema.init(leaves), jnp.int32(0), replace(recipe, ema=ema))


# Observers in upper layers, which look at a state before it is trained for the next time.

_observers: list[WeakMethod[Any]] = []


def at_next_step(observer: Callable[[TrainState], object]) -> None:
    """Have a method called once, with the state that is trained next; a weak reference to it is kept."""
    _observers.append(WeakMethod(observer))


def about_to_train(state: TrainState) -> None:
    """Call the methods that were given to `at_next_step`. Strategies call this before every step."""
    while _observers:
        observer = _observers.pop()()
        if observer is not None:
            observer(state)
