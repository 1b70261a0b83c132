"""A Flax NNX model and its loss as a `Trainable`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem.errors import StrategyError
from stratagem.flax.layout import Layout
from stratagem.flax.library import nnx
from stratagem.flax.streams import Streams
from stratagem.flax.updater import OptimizerUpdater
from stratagem.waist import Arrays, Kind, Metrics, Updater, interfaces
from stratagem.waist.user_functions import asks_for_rng, checked_loss


class Trainable(interfaces.Trainable):
    """A Flax NNX model that any strategy can train; `strategy.fetch` brings the trained values back into it.

    Parameters and metrics are those of plain Flax on one device with the same global batches. What is not trained:

    - Batch statistics are those of the global batch within a process. Between processes each worker normalises with
      the statistics of its own rows; the running ones are averaged.
    - Dropout, and whatever else draws from the model's `nnx.Rngs`, draws other numbers at every step and on every
      worker, and the same ones again when the job is run again. A strategy of one process (OneDevice, Mirrored,
      CentralStorage, TPU on one host) draws exactly what plain Flax draws; several processes, parameter servers and a
      `seed` given to `strategy.init` mean other numbers than plain Flax draws.
    - Parameters that `wrt` leaves out stay as they are, and are never sent anywhere.
    - Intermediates that a call leaves in the model (`sow`) are not kept.

    The model trains in the mode that it is in now: call `model.train()` first if it may be in the other one. An optax
    optimizer goes to `strategy.init` as it is, an `nnx.Optimizer` as `trainable.updater(optimizer)`.

    Args:
        model: The model. Of several workers, all begin with worker 0's values.
        loss_fn: `loss_fn(model, batch)`, or with a further argument `rng`; returns the mean loss over the rows of the
            batch, or that and a dictionary of metrics, each a mean too.
        wrt: A Flax filter: which variables are trained. That of an `nnx.Optimizer` is to be the same.

    Raises:
        StrategyError: It is no Flax NNX model, or has nothing to train; or the loss function wants other arguments.

    Example:
        >>> trainable = sg.flax.Trainable(model, loss_fn)
        >>> state = strategy.init(trainable, optax.adam(1e-3))
        >>> step = strategy.train_step(trainable)
        >>> for batch in strategy.distribute(batches):
        ...     state, metrics = step(state, batch)
        >>> strategy.fetch(state)  # now the model has what was trained
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
        self._layout = Layout(model, wrt)
        self._streams = Streams(self._layout.keys)
        self.names: Sequence[str] = self._layout.names
        beside: list[Kind] = ["own"] * len(self._streams.counter())
        self.kinds: Sequence[Kind] = [*self._layout.kinds, *beside]

    def init(self) -> tuple[Arrays, Arrays]:
        """What the model has in it now."""
        params, others = self._layout.read(self._model)
        return params, [*others, *self._streams.counter()]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """See `Trainable` of the waist."""
        others, counter = self._divided(state)
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
        """Nothing: metrics are what the loss function returns."""
        return {}

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        """The loss and the metrics over a batch, with the model in its `eval` mode."""
        loss, metrics = self._call(self._evaluated(params, state), batch, jax.random.key(0))
        return {**metrics, "loss": loss}

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """`model(batch)`, with the model in its `eval` mode."""
        return self._evaluated(params, state)(batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Take trained values, statistics and streams back into the model, in place."""
        self._layout.write(self._model, params, self._divided(state)[0])

    def updater(self, optimizer: Any) -> Updater | None:
        """An `nnx.Optimizer` of this model as an `Updater`; it takes its state back with `strategy.fetch`.

        Returns:
            `None` if it is not an `nnx.Optimizer`: an optax optimizer goes as it is.

        Raises:
            StrategyError: It optimizes other variables than are trained.
        """
        if not isinstance(optimizer, nnx.Optimizer):
            return None
        wanted = Layout(self._model, optimizer.wrt).names
        if wanted != self.names:
            raise StrategyError(
                f"the optimizer is for {', '.join(wanted)}; trained are {', '.join(self.names)}. Give both the "
                "same filter: sg.flax.Trainable(model, loss_fn, wrt=optimizer.wrt)"
            )
        return OptimizerUpdater(optimizer, self._layout)

    def _divided(self, state: Arrays) -> tuple[Arrays, Arrays]:
        """What is the model's, and the counter beside it."""
        count = len(self._layout.kinds)
        return state[:count], state[count:]

    def _evaluated(self, params: Arrays, state: Arrays) -> Any:
        model = self._layout.build(params, self._divided(state)[0])
        model.eval()
        return model

    def _call(self, model: nnx.Module, batch: Any, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        returned = self._loss_fn(model, batch, rng=rng) if self._wants_rng else self._loss_fn(model, batch)
        return checked_loss(returned)


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
