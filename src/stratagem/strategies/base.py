"""`Strategy`: what all strategies offer. Each consists of an engine (where variables live) and workers (who trains)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from stratagem.cluster import ClusterConfig, ClusterSpec
from stratagem.devices import list_devices
from stratagem.engines import per_replica
from stratagem.engines.cluster_tasks import NO_JOBS, ClusterLike, check_jobs, own_config
from stratagem.engines.common_start import with_common_start
from stratagem.engines.engine import Engine, Step
from stratagem.engines.feeds import Batches, Feed, InStepFeed
from stratagem.engines.fronts import fronts_in_use
from stratagem.engines.local_tables import table_step
from stratagem.engines.table_trainables import TableLossFunction
from stratagem.engines.tensorflow_names import RefusesTensorFlowNames
from stratagem.engines.workers import Workers
from stratagem.environment import choose_jax_for_keras
from stratagem.errors import ClusterError, DataError, StrategyError
from stratagem.strategies.input_context import InputContext
from stratagem.tables.row_source import RowSource, TableView, table_view
from stratagem.tables.table import Table
from stratagem.waist import FunctionTrainable, Metrics, Trainable, TrainState, Updater, new_state, state_of
from stratagem.waist.optimizers import is_optax
from stratagem.waist.state import about_to_train
from stratagem.waist.user_functions import describe

M = TypeVar("M")


class Strategy(RefusesTensorFlowNames):
    """Trains a model on one device, on several, or in several processes.

    Example:
        >>> strategy = MirroredStrategy()
        >>> state = strategy.init(params, optax.adam(1e-3))
        >>> step = strategy.train_step(loss_fn)
        >>> for batch in strategy.distribute(batches):
        ...     state, metrics = step(state, batch)
        >>> strategy.fetch(state).params
    """

    jobs: ClassVar[frozenset[str]] = NO_JOBS
    """The jobs of a cluster whose tasks train one model together."""
    tables_above: int | None = None
    """Keras embeddings of more bytes are tables; `None`: only those that are made as such."""

    def __init__(
        self,
        engine: Engine,
        workers: Workers,
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
        """Return the task of this process, if there is a cluster, after checking that the cluster fits this strategy."""
        try:
            config = own_config(cluster)
        except ClusterError:
            if cls.jobs:
                raise
            return (
                None  # a strategy of one process works in any cluster, even in one that is described wrongly
            )
        if config is not None:
            check_jobs(cls.__name__, cls.jobs, config)
        return config

    # Workers and devices.

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
        """Have a model that was made elsewhere train under this strategy, like one made in its scope.

        Raises:
            StrategyError: The model is not of a library that Stratagem supports.
        """
        if not any(front.adopt(self, model) for front in fronts_in_use()):
            raise StrategyError(
                f"{type(model).__module__}.{type(model).__qualname__} cannot be adopted: a Keras 3 model can; for Flax "
                "use sg.flax.Trainable, for anything else strategy.init and strategy.train_step"
            )
        return model

    def status(self) -> dict[str, Any]:
        """Return each parameter server's status, by task; empty without servers.

        It has the server's variables, global step and staleness, and how much each worker has pushed. A server that does
        not answer has an `error` instead.
        """
        return self._workers.status()

    def placement(self, state: TrainState) -> dict[str, str]:
        """Return the devices of this process that hold each parameter of a state, by the parameter's name."""
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
        """Create the rows of tables that are trained with the state that is laid out next.

        Args:
            tables: The tables.
            optimizer: The optimizer of tables that bring none.

        Raises:
            StrategyError: This strategy cannot train tables.
        """
        rows = self._engine.tables(tables, optimizer)
        if rows is None:
            raise StrategyError(
                f"{type(self).__name__} cannot train tables row by row as it is used here: train them under "
                "ParameterServerStrategy with replication='between-graph', or in one process under OneDeviceStrategy, "
                "MirroredStrategy or CentralStorageStrategy"
            )
        return rows

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
        """Create the state of an untrained model, laid out as this strategy needs it.

        Args:
            params: The parameters: any pytree of arrays. They are copied; all workers begin with those of worker 0. Or a
                model as a `Trainable`, such as `sg.flax.Trainable`.
            optimizer: Any optax optimizer, or one of the model's own library: an `nnx.Optimizer`, for example.
            ema_decay: Keep moving averages of the parameters with this decay.
            seed: The seed of the `rng` of loss functions, which is drawn from it and the step.
            tables: Embeddings that are trained row by row: loss functions are `loss_fn(params, batch, rows)` then, and
                look them up by `rows[name](ids)`.

        Raises:
            StrategyError: The optimizer is not one, or not of the parameters' library; or this strategy cannot train
                tables.
        """
        if isinstance(params, Trainable):
            if tables:
                raise StrategyError(
                    f"init was given tables and {describe(params)}: give parameters as a pytree, and a loss function "
                    "loss_fn(params, batch, rows) to train_step"
                )
            return self._lay_out(state_of(params, optimizer, ema_decay, seed))
        if not is_optax(optimizer) or isinstance(optimizer, Updater):
            raise StrategyError(
                f"parameters by themselves want an optax optimizer, not {optimizer!r:.80}; give one, such as "
                "optax.adam(1e-3)"
            )
        state = new_state(params, optimizer, ema_decay, seed)
        if tables:
            rows = self.new_tables(tables, optimizer)
            state = replace(state, recipe=replace(state.recipe, tables=rows))
        return self._lay_out(state)

    def _lay_out(self, state: TrainState) -> TrainState:
        # Parameter servers have the chief's values anyway.
        return self._engine.lay_out(
            state if self._engine.is_elsewhere else with_common_start(state, self._workers)
        )

    def train_step(self, loss_fn: Callable[..., Any] | Trainable) -> Step:
        """Build the function that trains a state on a batch.

        Args:
            loss_fn: `loss_fn(params, batch)`, or with a further argument `rng`; returns the mean loss over the
                rows of the batch, or that and a dictionary of metrics, each a mean too. Or a `Trainable`, which
                brings its own.

        Returns:
            `step(state, batch) -> (state, metrics)`. It takes over the memory of the state that it is given: continue
            with the one that it returns. `metrics["loss"]` is the mean over the global batch.

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
                    built[tree, rows] = self._table_step(state, loss_fn, rows)
                return replicas.settle(built[tree, rows](state, batch))
            if tree not in built:
                built[tree] = self._engine.build(_trainable(state, loss_fn))
            placed = batch if replicas.is_placed(batch) else replicas.place(batch)
            return replicas.settle(built[tree](state, placed))

        return step

    def _table_step(
        self, state: TrainState, loss_fn: Callable[..., Any] | Trainable, rows: RowSource
    ) -> Step:
        if isinstance(loss_fn, Trainable):
            raise StrategyError(
                f"train_step was given {describe(loss_fn)}, and init tables: give a function loss_fn(params, batch, rows)"
            )
        trainable = TableLossFunction(state.recipe.params_tree, loss_fn, rows.stacks)
        return (
            self._engine.build(trainable)
            if self._engine.is_elsewhere
            else table_step(self._engine, trainable)
        )

    def table(self, state: TrainState, name: str) -> TableView:
        """Return a table that is trained with a state, whose rows can be looked up, iterated over and exported.

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
        """Copy a state to the host: `.params`, `.opt_state`, `.ema` and `.step` are NumPy arrays.

        If the state was made from a `Trainable`, its model takes the trained values back.
        """
        fetched, trainable = state.recipe.home.fetch(state), state.recipe.trainable
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
            DataError: `batches` is not an iterable of batches.
        """
        return self._feed.share(_checked_batches("distribute was given", batches))

    def distribute_from_function(self, fn: Callable[[InputContext], Iterable[Any]]) -> Batches:
        """Put batches that each worker makes for itself on its devices; nothing is shared out.

        Args:
            fn: Makes this worker's batches, given its number among the workers.

        Raises:
            StrategyError: `fn` is not a function.
            DataError: Its result is not an iterable of batches.
        """
        if not callable(fn):
            raise StrategyError(
                f"distribute_from_function was given {describe(fn)}; give a function fn(context) that returns an iterable of "
                "batches, or give batches to distribute"
            )
        context = InputContext(self._workers.count, self._workers.index, self.num_replicas_in_sync)
        return self._feed.own(
            _checked_batches("the function of distribute_from_function returned", fn(context))
        )

    # By hand.

    def run(self, fn: Callable[..., Any], *args: Any) -> per_replica.PerReplica:
        """Call a function once for each replica of this process, on its device.

        Args:
            fn: The function.
            *args: Arguments; a `PerReplica` or a distributed batch gives each replica its own part.
        """
        return per_replica.run(self._engine.replicas, fn, args)

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the values of this process's replicas."""
        return value.values if isinstance(value, per_replica.PerReplica) else (value,)

    def reduce(self, how: Literal["sum", "mean"], value: Any, axis: int | None = None) -> Any:
        """Reduce values over all replicas of all workers.

        Args:
            how: `sum` or `mean`.
            value: What `run` returned, or a value that is the same on every replica.
            axis: Reduce along this axis too: then a mean is over all elements along it, on all replicas.
        """
        if how not in ("sum", "mean"):
            raise StrategyError(f"reduce takes 'sum' or 'mean', not {how!r}")
        count, in_sync = len(self._engine.replicas), self.num_replicas_in_sync
        return per_replica.reduce(self._workers, count, in_sync, value, axis, is_mean=how == "mean")

    def gather(self, value: Any, axis: int) -> Any:
        """Join the values of all replicas of all workers along an axis, in their order."""
        return per_replica.gather(self._workers, len(self._engine.replicas), value, axis)

    # Life.

    def close(self) -> None:
        """Finish: tell the other processes, and disconnect from them."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()


def _trainable(state: TrainState, loss_fn: Callable[..., Any] | Trainable) -> Trainable:
    """Return the trainable with which a step trains a state."""
    if isinstance(loss_fn, Trainable):
        return loss_fn
    if state.recipe.trainable is not None:
        raise StrategyError(
            f"train_step was given {describe(loss_fn)}, and init a Trainable, which brings its own loss function: give both the "
            "same, strategy.init(trainable, optimizer) and strategy.train_step(trainable)"
        )
    return FunctionTrainable(state.recipe.params_tree, loss_fn)


def _checked_batches(got: str, batches: Any) -> Any:
    """Check that something can be iterated over as batches, without starting to."""
    # Python also iterates over objects that can only be indexed, as many data sets can.
    is_iterable = isinstance(batches, Iterable) or hasattr(type(batches), "__getitem__")
    if not is_iterable or isinstance(batches, Mapping | str | bytes):
        raise DataError(
            f"{got} {describe(batches)}; give an iterable of batches, such as a list or a generator of pytrees of arrays with "
            "the rows first; one batch alone is [batch]"
        )
    return batches
