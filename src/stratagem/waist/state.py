"""All that changes while a model is trained, as one value that goes into a step and comes out of it."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import PyTreeDef

from stratagem.devices.placing import local_copy
from stratagem.errors import StrategyError
from stratagem.keep import ShardRecord, TensorEntry
from stratagem.tables.row_source import RowSource
from stratagem.tables.table_files import NO_ROWS, NewRows
from stratagem.waist.ema import ExponentialMovingAverage
from stratagem.waist.functions import leaf_names
from stratagem.waist.interfaces import Arrays, Kind, MakesUpdaters, Trainable, Updater, natural_kind
from stratagem.waist.optimizers import OptaxUpdater, is_optax

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a state is trained: what stays the same from step to step.

    Attributes:
        updater: The optimizer.
        params_tree: The structure of the parameters.
        opt_state_tree: The structure of the optimizer's state.
        names: The parameters' names.
        ema: The moving averages to keep, if any.
        seed: What random numbers are drawn from, with the step.
        trainable: The model, if it is one that takes trained values back.
        kinds: For each piece of non-trained state what becomes of it between workers; `None`: as its type says.
        served: Where the rest of the state is, if it is not with this process.
        tables: The rows of tables that are trained with it, if there are any.
        workers: Who else trains the same model in step, each with all of it; `None`: nobody.
    """

    updater: Updater
    params_tree: PyTreeDef
    opt_state_tree: PyTreeDef
    names: tuple[str, ...]
    ema: ExponentialMovingAverage | None = None
    seed: int = 0
    trainable: Trainable | None = None
    kinds: tuple[Kind, ...] | None = None
    served: "Elsewhere | None" = None
    tables: RowSource | None = None
    workers: "Together | None" = None


class Parting(Protocol):
    """Those who train in step with this process, as far as one that is asked to end has to do with them.

    All of it may be used from any thread.
    """

    @property
    def is_asked(self) -> bool:
        """Whether another of them has told this process that it was asked to end."""
        ...

    def tell(self) -> None:
        """Tell those who have to know that this process was asked to end."""
        ...

    def is_alone(self) -> bool:
        """Whether the chief has left, so that this process waits for it in vain and would not notice by itself."""
        ...


class Together(Protocol):
    """The processes that train a model in step.

    Attributes:
        is_chief: Whether this one writes what only one should write.
    """

    is_chief: bool

    def gather(self, array: Any) -> Sequence[Any]:
        """The arrays of all of them, the chief's first; they need not have the same shape."""
        ...

    def ready(self, value: T) -> T:
        """What steps have made, when it is there; raises if it never will be, as one of them is lost."""
        ...


@runtime_checkable
class TogetherToTheEnd(Together, Protocol):
    """The same, where each can be told by another that this one was asked to end."""

    def parting(self) -> Parting:
        """How one of them that is asked to end lets the others know."""
        ...


class Elsewhere(Protocol):
    """A model that lives with others: a state of it here has its parameters, and no more.

    Attributes:
        is_chief: Whether this process is the one that may set values, and writes what only one should write.
        form: All of it, with shapes and dtypes in place of arrays.
        in_step: Whether updates wait for every worker.
        has_pushed: Whether this process has taken part in its training.
    """

    is_chief: bool
    in_step: bool
    form: "TrainState"

    @property
    def has_pushed(self) -> bool: ...

    def fetch(self, state: "TrainState") -> "TrainState":
        """All of it, on this host."""
        ...

    def renew(self, state: "TrainState") -> "TrainState":
        """A state with the values that the others have now."""
        ...

    def assign(
        self,
        state: "TrainState",
        step: int | None = None,
        rows: NewRows = NO_ROWS,
    ) -> None:
        """Set values: all at once, between two updates.

        Args:
            state: The values; `None` in place of an array leaves it as it is.
            step: The step from which training goes on with them; what was under way is void. `None`: it goes on
                as it is.
            rows: What is new of the rows of tables.
        """
        ...

    def keep(
        self, root: str, make: Callable[[int], bool]
    ) -> tuple[int, Callable[[], tuple[list[ShardRecord], dict[str, TensorEntry]]] | None]:
        """Have the others write what they hold, as it is at one step, into a checkpoint.

        Args:
            root: The directory of all checkpoints.
            make: Called with the step; makes the directory of that checkpoint, or says that it is not wanted.

        Returns:
            The step, and a function that waits until all is written and gives the shards and what is in them;
            `None` if it is not wanted, or the others cannot reach the directory.
        """
        ...

    def note(self, what: str, note: bytes) -> None:
        """Leave a note for the other workers: the chief's part in what `noted` waits for."""
        ...

    def noted(self, what: str) -> bytes | None:
        """Wait for the chief's next note of that kind; `None` if the others were past it when this worker came."""
        ...

    def when_closing(self, callback: Callable[[], object]) -> None:
        """Call a function before the tie to the others is let go of."""
        ...

    def parting(self) -> Parting | None:
        """How a worker that is asked to end lets the others know; `None` where nobody waits for it."""
        ...


@dataclass(frozen=True)
class TrainState:
    """Parameters, optimizer, non-trained state, moving averages and the number of updates so far.

    Attributes:
        flat_params: The parameters as a flat list.
        flat_opt_state: The optimizer's state as a flat list.
        flat_state: What is not trained.
        flat_ema: The moving averages of the parameters; `None` without them.
        step: How many updates the parameters contain.
        recipe: How it is trained.
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
        """The state of a model that is trained by hand, for a `Checkpointer`; it shares the arrays, and copies none.

        The process trains alone: it is the one that writes. A checkpoint of it fits `strategy.init(params, optimizer)` under every strategy, and the other way round.

        Args:
            params: The parameters: any pytree.
            optimizer: The optax optimizer.
            opt_state: Its state; by default a new one.
            step: How many updates the parameters contain.
            ema: Moving averages of the parameters, in their structure, if there are any.
            seed: What random numbers are drawn from, with the step.

        Raises:
            StrategyError: The optimizer is none, or the state or the averages are not of these parameters.

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
        flat_opt_state = updater.init(leaves) if opt_state is None else updater.taken(leaves, opt_state)
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
        averages = self.flat_ema
        return (
            None
            if averages is None
            else jax.tree.unflatten(self.recipe.params_tree, map(local_copy, averages))
        )

    @property
    def kinds(self) -> Sequence[Kind]:
        """For each piece of non-trained state, what becomes of it between workers."""
        return self.recipe.kinds or [natural_kind(each) for each in self.flat_state]

    @property
    def rng(self) -> jax.Array:
        """The key of this step's random numbers."""
        return jax.random.fold_in(jax.random.key(self.recipe.seed), self.step)

    def updated(self, grads: Arrays, state: Arrays) -> "TrainState":
        """The state after an update with these gradients; traceable."""
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
    """The state of an untrained pytree of parameters, in arrays of its own."""
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params))
    updater = OptaxUpdater(optimizer, tree)
    opt_state = updater.init(leaves)
    ema = None if ema_decay is None else ExponentialMovingAverage(ema_decay)
    recipe = Recipe(updater, tree, updater.state_tree, tuple(leaf_names(tree)), ema, seed)
    averages = None if ema is None else ema.init(leaves)
    return TrainState(leaves, [jnp.array(leaf) for leaf in opt_state], [], averages, jnp.int32(0), recipe)


def state_of(
    trainable: Trainable,
    optimizer: Any,
    ema_decay: float | None = None,
    seed: int = 0,
) -> TrainState:
    """The state of a model as it is now, in arrays of its own.

    Args:
        trainable: The model.
        optimizer: An optax optimizer, an `Updater`, or what the trainable makes one of.
        ema_decay: Keep moving averages of the parameters with this decay.
        seed: What random numbers are drawn from, with the step.

    Raises:
        StrategyError: The optimizer is none.
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
    opt_state = [jnp.array(each, copy=True) for each in updater.init(leaves)]
    opt_tree = updater.state_tree if isinstance(updater, OptaxUpdater) else jax.tree.structure(opt_state)
    ema = None if ema_decay is None else ExponentialMovingAverage(ema_decay)
    kinds = None if trainable.kinds is None else tuple(trainable.kinds)
    recipe = Recipe(updater, tree, opt_tree, tuple(trainable.names), ema, seed, trainable, kinds)
    averages = None if ema is None else ema.init(leaves)
    return TrainState(leaves, opt_state, state, averages, jnp.int32(0), recipe)
