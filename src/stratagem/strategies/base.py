"""`Strategy`: what all strategies offer, over an engine (where variables live) and workers (who trains)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.cluster import ClusterConfig, ClusterSpec
from stratagem.devices import list_devices
from stratagem.engines.agreement import agreed
from stratagem.engines.batches import Batches
from stratagem.engines.engine import Engine, KeepsTables, Step
from stratagem.engines.feeds import Feed, InStepFeed
from stratagem.engines.own_task import ClusterLike, own_config
from stratagem.engines.row_steps import row_step
from stratagem.engines.row_trainable import RowTrainable
from stratagem.engines.workers import Workers
from stratagem.environment import choose_jax_for_keras
from stratagem.errors import ClusterError, DataError, StrategyError
from stratagem.strategies.fronts import fronts_in_use
from stratagem.strategies.input_context import InputContext
from stratagem.strategies.jobs_in_use import ALONE, check_jobs
from stratagem.strategies.per_replica import PerReplica
from stratagem.strategies.tensorflow_names import RefusesTensorFlowNames
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table
from stratagem.tables.view import TableView, table_view
from stratagem.waist import FunctionTrainable, Metrics, Trainable, TrainState, Updater, new_state, state_of
from stratagem.waist.next_step import about_to_train
from stratagem.waist.optimizers import is_optax
from stratagem.waist.returned import told

M = TypeVar("M")


class Strategy(RefusesTensorFlowNames):
    """Trains one model on whatever the engine and the workers are made of.

    Example:
        >>> strategy = MirroredStrategy()
        >>> state = strategy.init(params, optax.adam(1e-3))
        >>> step = strategy.train_step(loss_fn)
        >>> for batch in strategy.distribute(batches):
        ...     state, metrics = step(state, batch)
        >>> strategy.fetch(state).params
    """

    jobs: ClassVar[frozenset[str]] = ALONE
    """The jobs of a cluster whose tasks it trains one model with."""
    tables_above: int | None = None
    """Embeddings of Keras's that have more bytes are tables; `None`: only those that are made as such."""

    def __init__(
        self,
        engine: Engine,
        workers: Workers,
        *,
        feed: Feed | None = None,
        workers_in_sync: int | None = None,
    ) -> None:
        choose_jax_for_keras()
        self._engine = engine
        self._workers = workers
        self._feed: Feed = InStepFeed(engine.replicas, workers) if feed is None else feed
        self._workers_in_sync = workers.count if workers_in_sync is None else workers_in_sync

    @classmethod
    def _own_task(cls, cluster: ClusterLike | None = None) -> ClusterConfig | None:
        """The task of this process, if there is a cluster, which has been checked to fit this strategy."""
        try:
            config = own_config(cluster)
        except ClusterError:
            if cls.jobs:
                raise
            return None  # what trains alone can do so in any cluster, also in one that is told of wrongly
        if config is not None:
            check_jobs(cls.__name__, cls.jobs, config)
        return config

    # Who.

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas' gradients make one update."""
        return len(self._engine.replicas) * self._workers_in_sync

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes checkpoints, logs and progress."""
        return self._workers.is_chief

    @property
    def cluster(self) -> ClusterSpec | None:
        """The cluster, for a strategy of several processes."""
        return self._workers.cluster

    @contextmanager
    def scope(self) -> Iterator[Self]:
        """The block in which fronts such as Keras make their models under this strategy."""
        with ExitStack() as stack:
            for front in fronts_in_use():
                stack.enter_context(front.scope(self))
            yield self

    def adopt(self, model: M) -> M:
        """Have a model that was made elsewhere train under this strategy, as one made in its scope does.

        Raises:
            StrategyError: It is no model of a library that Stratagem knows.
        """
        if not any(front.adopt(self, model) for front in fronts_in_use()):
            raise StrategyError(
                f"{type(model).__module__}.{type(model).__qualname__} cannot be adopted: a Keras 3 model can; for Flax "
                "use sg.flax.Trainable, for anything else strategy.init and strategy.train_step"
            )
        return model

    def status(self) -> dict[str, Any]:
        """What the parameter servers tell of themselves and of the workers, by task; nothing where there are none."""
        return {}

    def placement(self, state: TrainState) -> dict[str, str]:
        """The devices of this process that hold each parameter of a state, by its name."""
        known = {each.device: each.name for each in list_devices()}
        return {
            name: ", ".join(
                known.get(device, str(device))
                for device in sorted(param.sharding.addressable_devices, key=lambda each: each.id)
            )
            for name, param in zip(state.recipe.names, state.flat_params, strict=True)
        }

    # For fronts.

    @property
    def engine(self) -> Engine:
        """Where variables live, and how they are updated."""
        return self._engine

    @property
    def workers(self) -> Workers:
        """Who trains."""
        return self._workers

    @property
    def feed(self) -> Feed:
        """Who gets which rows."""
        return self._feed

    def new_tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource:
        """The rows of tables that are to be trained with a state that is laid out next.

        Args:
            tables: The tables.
            optimizer: That of tables that bring none.

        Raises:
            StrategyError: This strategy cannot train tables.
        """
        if not isinstance(self._engine, KeepsTables):
            raise StrategyError(
                f"{type(self).__name__} cannot train tables row by row as it is used here: train them under "
                "ParameterServerStrategy with replication='between-graph', or in one process under OneDeviceStrategy, "
                "MirroredStrategy or CentralStorageStrategy"
            )
        return self._engine.tables(tables, optimizer)

    # Training.

    def init(
        self,
        params: Any,
        optimizer: Any,
        ema_decay: float | None = None,
        *,
        seed: int = 0,
        tables: Sequence[Table] = (),
    ) -> TrainState:
        """The state of an untrained model, laid out as this strategy wants it.

        Args:
            params: The parameters: any pytree of arrays. They are copied; of several workers, all begin with those of
                worker 0. Or a model as a `Trainable`, such as `sg.flax.Trainable`.
            optimizer: Any optax optimizer, or one of the model's own library: an `nnx.Optimizer`, for example.
            ema_decay: Keep moving averages of the parameters with this decay.
            seed: What the `rng` of loss functions is drawn from, together with the step.
            tables: Embeddings that are trained row by row: loss functions are `loss_fn(params, batch, rows)` then, and
                look them up by `rows[name](ids)`.

        Raises:
            StrategyError: The optimizer is none, or one of a library that the parameters are not of; or this strategy
                cannot train tables.
        """
        if isinstance(params, Trainable):
            if tables:
                raise StrategyError(
                    f"init was given tables and {told(params)}: give parameters as a pytree, and a loss function "
                    "loss_fn(params, batch, rows) to train_step"
                )
            return self._laid_out(state_of(params, optimizer, ema_decay, seed))
        if not is_optax(optimizer) or isinstance(optimizer, Updater):
            raise StrategyError(
                f"parameters by themselves want an optax optimizer, not {optimizer!r:.80}; give one, such as "
                "optax.adam(1e-3)"
            )
        state = new_state(params, optimizer, ema_decay, seed)
        if tables:
            rows = self.new_tables(tables, optimizer)
            state = replace(state, recipe=replace(state.recipe, tables=rows))
        return self._laid_out(state)

    def _laid_out(self, state: TrainState) -> TrainState:
        # Parameter servers have the chief's values anyway.
        return self._engine.lay_out(state if self._engine.is_elsewhere else agreed(state, self._workers))

    def train_step(self, loss_fn: Callable[..., Any] | Trainable) -> Step:
        """The function that trains a state on a batch.

        Args:
            loss_fn: `loss_fn(params, batch)`, or with a further argument `rng`; returns the mean loss over the
                rows of the batch, or that and a dictionary of metrics, each a mean too. Or a `Trainable`, which
                brings its own.

        Returns:
            `step(state, batch) -> (state, metrics)`. It takes over the memory of the state that it is given: go
            on with the one that it returns. `metrics["loss"]` is the mean over the global batch.

        Raises:
            StrategyError: `loss_fn` is neither; or, when a step is first made, it returns something else, or is a
                function where `init` was given a `Trainable`.
        """
        if not callable(loss_fn) and not isinstance(loss_fn, Trainable):
            raise StrategyError(
                f"loss_fn is {loss_fn!r:.80}; give a function loss_fn(params, batch) -> mean loss, or a Trainable such as "
                "sg.flax.Trainable"
            )
        replicas = self._engine.replicas
        built: dict[Any, Step] = {}

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            about_to_train(state)
            tree, rows = state.recipe.params_tree, state.recipe.tables
            if rows is not None:
                if (tree, rows) not in built:
                    built[tree, rows] = self._row_step(state, loss_fn, rows)
                return replicas.settle(built[tree, rows](state, batch))
            if tree not in built:
                built[tree] = self._engine.build(_trainable(state, loss_fn))
            placed = batch if replicas.is_placed(batch) else replicas.place(batch)
            return replicas.settle(built[tree](state, placed))

        return step

    def _row_step(self, state: TrainState, loss_fn: Callable[..., Any] | Trainable, rows: RowSource) -> Step:
        if isinstance(loss_fn, Trainable):
            raise StrategyError(
                f"train_step was given {told(loss_fn)}, and init tables: give a function loss_fn(params, batch, rows)"
            )
        trainable = RowTrainable(state.recipe.params_tree, loss_fn, rows.stacks)
        return (
            self._engine.build(trainable) if self._engine.is_elsewhere else row_step(self._engine, trainable)
        )

    def table(self, state: TrainState, name: str) -> TableView:
        """A table that is trained with a state: its rows can be looked up, iterated over and exported.

        Raises:
            StrategyError: `init` was given no such table.

        Example:
            >>> users = strategy.table(state, "users")
            >>> len(users), users.lookup([3, 7]).shape
            >>> users.export("users.safetensors")
        """
        if not isinstance(state, TrainState):
            raise StrategyError(
                f"table was given a {type(state).__name__}; give it the state that init made, or ask the layer of a Keras "
                "model: layer.table()"
            )
        if state.recipe.tables is None:
            raise StrategyError("this state has no tables: give some to init, as tables=[sg.Table(...)]")
        return table_view(state.recipe.tables, name)

    def fetch(self, state: TrainState) -> TrainState:
        """A copy on the host: `.params`, `.opt_state`, `.ema` and `.step` as NumPy arrays.

        A model that the state was made of as a `Trainable` takes the trained values back.
        """
        served, trainable = state.recipe.served, state.recipe.trainable
        fetched: TrainState = _host_copy(state) if served is None else served.fetch(state)
        if trainable is not None:
            trainable.commit(fetched.flat_params, fetched.flat_state)
            state.recipe.updater.commit(fetched.flat_opt_state)
        return fetched

    # Data.

    def distribute(self, batches: Iterable[Any]) -> Batches:
        """Give each worker its share of each global batch, on its devices, one step ahead.

        Args:
            batches: Global batches on the host: pytrees of arrays with the rows first. Every worker passes the
                same ones, in the same order.

        Raises:
            DataError: It is no iterable of batches.
        """
        return self._feed.share(_checked_batches("distribute was given", batches))

    def distribute_from_function(self, fn: Callable[[InputContext], Iterable[Any]]) -> Batches:
        """The same, for batches that each worker makes for itself: nothing is shared out.

        Args:
            fn: Makes this worker's batches, knowing its place among the workers.

        Raises:
            StrategyError: It is no function.
            DataError: What it returns is no iterable of batches.
        """
        if not callable(fn):
            raise StrategyError(
                f"distribute_from_function was given {told(fn)}; give a function fn(context) that returns an iterable of "
                "batches, or give batches to distribute"
            )
        context = InputContext(self._workers.count, self._workers.index, self.num_replicas_in_sync)
        return self._feed.own(
            _checked_batches("the function of distribute_from_function returned", fn(context))
        )

    # By hand.

    def run(self, fn: Callable[..., Any], *args: Any) -> PerReplica:
        """Call a function once for each replica of this process, on its device.

        Args:
            fn: The function.
            *args: Arguments; a `PerReplica` or a distributed batch gives each replica its own part.
        """
        results = []
        for number, device in enumerate(self._engine.replicas.devices):
            part = partial(self._part, number)
            with jax.default_device(device):
                results.append(fn(*(jax.tree.map(part, arg, is_leaf=_is_per_replica) for arg in args)))
        return PerReplica(tuple(results))

    def _part(self, number: int, leaf: Any) -> Any:
        device = self._engine.replicas.devices[number]
        if isinstance(leaf, PerReplica):
            return leaf.values[number]
        if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
            if not leaf.is_fully_replicated and leaf.sharding != self._engine.replicas.split:
                return jax.device_put(leaf, device)  # a variable in pieces is whole where it is used
            return next(shard.data for shard in leaf.addressable_shards if shard.device == device)
        return leaf

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of this process's replicas."""
        return value.values if isinstance(value, PerReplica) else (value,)

    def reduce(self, how: Literal["sum", "mean"], value: Any, axis: int | None = None) -> Any:
        """Reduce values over all replicas of all workers.

        Args:
            how: `sum` or `mean`.
            value: What `run` returned, or a value that is the same on every replica.
            axis: Reduce along this axis too: then a mean is over all elements along it, on all replicas.
        """
        if how not in ("sum", "mean"):
            raise StrategyError(f"reduce takes 'sum' or 'mean', not {how!r}")
        columns, tree = self._columns(value)
        return jax.tree.unflatten(tree, [self._reduce(how, column, axis) for column in columns])

    def _reduce(self, how: str, column: list[np.ndarray[Any, Any]], axis: int | None) -> Any:
        if axis is None:
            total = sum(np.sum(part, axis=0) for part in self._workers.gather(np.stack(column)))
            return jnp.asarray(total / self.num_replicas_in_sync if how == "mean" else total)
        summed = np.sum([part.sum(axis=axis) for part in column], axis=0)
        count = np.asarray(sum(part.shape[axis] for part in column))
        total = sum(self._workers.gather(summed))
        counted = sum(int(part) for part in self._workers.gather(count))
        return jnp.asarray(total / counted if how == "mean" else total)

    def gather(self, value: Any, axis: int) -> Any:
        """Join the values of all replicas of all workers along an axis, in their order."""
        columns, tree = self._columns(value)
        joined = [self._workers.gather(np.concatenate(column, axis=axis)) for column in columns]
        return jax.tree.unflatten(
            tree, [jnp.asarray(np.concatenate(list(parts), axis=axis)) for parts in joined]
        )

    def _columns(self, value: Any) -> tuple[list[list[np.ndarray[Any, Any]]], Any]:
        """For each leaf, its values on this process's replicas."""
        values = value.values if isinstance(value, PerReplica) else (value,) * len(self._engine.replicas)
        flattened = [jax.tree.flatten(each) for each in values]
        return [
            [np.asarray(leaf) for leaf in column]
            for column in zip(*(leaves for leaves, _ in flattened), strict=True)
        ], flattened[0][1]

    # Life.

    def close(self) -> None:
        """Say that this process has finished, and let go of the others."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()


def _host_copy(state: TrainState) -> TrainState:
    workers = state.recipe.workers
    copy: TrainState = jax.tree.map(np.array, state if workers is None else workers.ready(state))
    return copy


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def _trainable(state: TrainState, loss_fn: Callable[..., Any] | Trainable) -> Trainable:
    """What a step trains a state with."""
    if isinstance(loss_fn, Trainable):
        return loss_fn
    if state.recipe.trainable is not None:
        raise StrategyError(
            f"train_step was given {told(loss_fn)}, and init a Trainable, which brings its own loss function: give both the "
            "same, strategy.init(trainable, optimizer) and strategy.train_step(trainable)"
        )
    return FunctionTrainable(state.recipe.params_tree, loss_fn)


def _checked_batches(got: str, batches: Any) -> Any:
    """What can be iterated over as batches; it is not begun."""
    # Python also iterates over what can only be indexed, as many data sets can.
    is_iterable = isinstance(batches, Iterable) or hasattr(type(batches), "__getitem__")
    if not is_iterable or isinstance(batches, Mapping | str | bytes):
        raise DataError(
            f"{got} {told(batches)}; give an iterable of batches, such as a list or a generator of pytrees of arrays with "
            "the rows first; one batch alone is [batch]"
        )
    return batches
