"""A Flax NNX model and its loss as a `Trainable`, and an `nnx.Optimizer` as an `Updater`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stratagem import waist
from stratagem.errors import StrategyError
from stratagem.flax.model_layout import ModelLayout, nnx
from stratagem.flax.random_streams import RandomStreams
from stratagem.waist import Arrays, Keys, Kind, Metrics, Updater
from stratagem.waist.interfaces import MakesUpdaters
from stratagem.waist.user_functions import asks_for_rng, checked_loss


class Trainable(waist.Trainable, MakesUpdaters):
    """A Flax NNX model that any strategy can train; `strategy.fetch` brings the trained values back into it.

    Parameters and metrics are those of plain Flax on one device with the same global batches. State that is not trained:

    - Batch statistics are those of the global batch within a process. Between processes each worker normalises with
      the statistics of its own rows; the running ones are averaged.
    - Dropout, and whatever else draws from the model's `nnx.Rngs`, draws different numbers at every step and on every
      worker, and the same ones when the job is run again. A strategy of one process (OneDevice, Mirrored,
      CentralStorage, TPU on one host) draws exactly what plain Flax draws; with several processes, parameter servers or
      a `seed` given to `strategy.init` the numbers are not those of plain Flax.
    - Parameters that `wrt` leaves out stay as they are, and are never sent anywhere.
    - Intermediates that a call leaves in the model (`sow`) are discarded.

    The model trains in its present mode: call `model.train()` first if it may be in the other one. An optax
    optimizer goes to `strategy.init` as it is, an `nnx.Optimizer` as `trainable.updater(optimizer)`.

    Args:
        model: The model. Several workers all begin with worker 0's values.
        loss_fn: `loss_fn(model, batch)`, or with a further argument `rng`; returns the mean loss over the rows of the
            batch, or that and a dictionary of metrics, each a mean too.
        wrt: A Flax filter: which variables are trained. An `nnx.Optimizer` must have the same.

    Raises:
        StrategyError: It is not a Flax NNX model, or has nothing to train; or the loss function takes other arguments.

    Example:
        >>> trainable = sg.flax.Trainable(model, loss_fn)
        >>> state = strategy.init(trainable, optax.adam(1e-3))
        >>> step = strategy.train_step(trainable)
        >>> for batch in strategy.distribute(batches):
        ...     state, metrics = step(state, batch)
        >>> strategy.fetch(state)  # now the model has the trained values
    """

    reads_optimizer = False

    def __init__(self, model: nnx.Module, loss_fn: Callable[..., Any], *, wrt: Any = nnx.Param) -> None:
        if not isinstance(model, nnx.Module):
            raise StrategyError(
                f"sg.flax.Trainable trains a flax.nnx.Module, not {_type_name(model)}. Flax Linen and Equinox models "
                "need no front: give their parameters to strategy.init and a loss function to strategy.train_step"
            )
        self._model = model
        self._loss_fn = loss_fn
        self._wants_rng = asks_for_rng(loss_fn, "model")
        self._wrt = wrt
        self._layout = ModelLayout(model, wrt)
        self._streams = RandomStreams(self._layout.keys)
        counter_kinds: list[Kind] = ["own"] * len(self._streams.counter())
        self.names = self._layout.names
        self.kinds = [*self._layout.kinds, *counter_kinds]

    def init(self) -> tuple[Arrays, Arrays]:
        """Return the values that the model has now."""
        params, others = self._layout.read(self._model)
        return params, [*others, *self._streams.counter()]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        others, counter = self._split(state)
        drawing = self._streams.for_step(others, counter, rng)

        def loss_of(trained: Arrays) -> tuple[jax.Array, tuple[Arrays, Metrics]]:
            model = self._layout.build(trained, drawing)
            loss, metrics = self._call(model, batch, rng)
            _, after = self._layout.take_apart(model)
            self._layout.check_frozen(drawing, after)
            return loss, (after, metrics)

        (loss, (after, metrics)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return (loss, self._streams.after_step(others, after, counter), metrics), grads

    def report(self, state: Arrays) -> Metrics:
        """Return nothing: the metrics are those that the loss function returns."""
        return {}

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        """Return the loss and the metrics over a batch, with the model in its `eval` mode."""
        loss, metrics = self._call(self._for_evaluation(params, state), batch, jax.random.key(0))
        return {**metrics, "loss": loss}

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """Return `model(batch)`, with the model in its `eval` mode."""
        return self._for_evaluation(params, state)(batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Write trained values, statistics and streams back into the model, in place."""
        self._layout.write(self._model, params, self._split(state)[0])

    def updater(self, optimizer: Any) -> Updater | None:
        """Return an `nnx.Optimizer` of this model as an `Updater`; `strategy.fetch` writes its state back.

        Returns:
            `None` if it is not an `nnx.Optimizer`: an optax optimizer needs no wrapper.

        Raises:
            StrategyError: It optimizes other variables than are trained.
        """
        if not isinstance(optimizer, nnx.Optimizer):
            return None
        optimized = ModelLayout(self._model, optimizer.wrt).names
        if optimized != self.names:
            raise StrategyError(
                f"the optimizer is for {', '.join(optimized)}; trained are {', '.join(self.names)}. Give both the "
                "same filter: sg.flax.Trainable(model, loss_fn, wrt=optimizer.wrt)"
            )
        return OptimizerUpdater(optimizer, self._layout)

    def _split(self, state: Arrays) -> tuple[Arrays, Arrays]:
        """Return the model's part of the state, and the streams' counter."""
        count = len(self._layout.kinds)
        return state[:count], state[count:]

    def _for_evaluation(self, params: Arrays, state: Arrays) -> Any:
        model = self._layout.build(params, self._split(state)[0])
        model.eval()
        return model

    def _call(self, model: nnx.Module, batch: Any, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        returned = self._loss_fn(model, batch, rng=rng) if self._wants_rng else self._loss_fn(model, batch)
        return checked_loss(returned)


class OptimizerUpdater(Updater):
    """A Flax NNX optimizer, over the trained variables of a model."""

    def __init__(self, optimizer: nnx.Optimizer, layout: ModelLayout) -> None:  # type: ignore[type-arg]
        if isinstance(optimizer, nnx.ModelAndOptimizer):
            raise StrategyError("nnx.ModelAndOptimizer has a model of its own in it: give an nnx.Optimizer")
        self._optimizer = optimizer
        self._layout = layout
        self._graph, state = nnx.split(optimizer)
        leaves, self._tree = jax.tree.flatten(state)
        self._keys = Keys(leaves)

    def init(self, params: Arrays) -> Arrays:
        """Return its state as it is: moments, and the number of steps."""
        return self._keys.as_integers(jax.tree.leaves(nnx.state(self._optimizer)))

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        variables = self._layout.as_flax(params)
        state = jax.tree.unflatten(self._tree, self._keys.as_keys(opt_state))
        optimizer = nnx.merge(self._graph, state)
        optimizer.update(variables, self._layout.as_flax(grads))
        after = self._keys.as_integers(jax.tree.leaves(nnx.state(optimizer)))
        return jax.tree.leaves(variables), after

    def commit(self, opt_state: Arrays) -> None:
        """Write the state back into the user's optimizer, in place."""
        whole = self._keys.as_keys(list(map(jnp.asarray, opt_state)))
        nnx.update(self._optimizer, jax.tree.unflatten(self._tree, whole))


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
