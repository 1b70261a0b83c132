"""`deploy`: clones, an optimizer and the variables, as functions that train and show them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stratagem.classic.deploy.clones import Clone, create_clones
from stratagem.classic.deploy.config import DeploymentConfig, within_process
from stratagem.classic.deploy.gradients import Part, parts_of, total_of
from stratagem.classic.deploy.parts import on_device
from stratagem.classic.deploy.slots import Slots
from stratagem.errors import StrategyError
from stratagem.runtime import Session

GLOBAL_STEP = "global_step"
"""The variable that counts the updates of all replicas."""


class DeployedModel(NamedTuple):
    """A model that is ready to be trained or evaluated. Each call takes the next inputs, one set per clone.

    Attributes:
        train_op: Makes one step of training and gives the total loss before it; `None` without an optimizer, or
            if there is nothing to train.
        summary_op: Gives what there is to show, by name: numbers, and arrays of which a histogram tells more.
        total_loss: Gives the total loss, and trains nothing; `None` if the model has no loss.
        clones: The clones; their variables are `clones[0].variables`.
    """

    train_op: Callable[[], jax.Array] | None
    summary_op: Callable[[], dict[str, Any]]
    total_loss: Callable[[], jax.Array] | None
    clones: list[Clone]


def deploy(
    config: DeploymentConfig,
    model_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    summarize_gradients: bool = False,
    *,
    session: Session | None = None,
    seed: int = 0,
) -> DeployedModel:
    """Deploy a model on several devices of this process, and train it there.

    At every step each clone computes, on its device and at the same time as the others, its loss divided by the
    number of clones, and the gradients. These are summed on `config.optimizer_device()`, where the optimizer makes
    one update of them. Regularisation counts once. Updates (moving averages) and summaries are the first clone's.

    With parameter servers (`config.num_ps_tasks`) variables, optimizer state and global step live on these. Every
    replica is a process that reads them, computes on its own devices, and has its update added there: no update
    of a variable is lost, but replicas do not wait for each other, and in the optimizer's state and the moving
    averages the last writer wins, as in TensorFlow without locks. For more than that, and for restarts, use
    `sg.ParameterServerStrategy`.

    Args:
        config: How many clones there are, and where everything is.
        model_fn: See `create_clones`.
        args: See `create_clones`.
        kwargs: See `create_clones`.
        optimizer: An optax optimizer; without one the model is for evaluation.
        summarize_gradients: Whether `summary_op` shows the gradients too, as `NAME:gradient` and
            `NAME:gradient_norm`.
        session: A connection to the cluster, if there are parameter servers.
        seed: What first values of variables are drawn from.

    Raises:
        StrategyError: There is no clone, or the optimizer has no loss to work on.
    """
    clones = create_clones(config, model_fn, args, kwargs, session=session, seed=seed)
    if not clones:
        raise StrategyError("num_clones is 0, and a deployed model has at least one clone")
    variables = clones[0].variables
    host = within_process(config.optimizer_device())
    has_loss = any(clone.has_losses for clone in clones) or bool(variables.regularization_losses)
    if optimizer is not None and not has_loss:
        raise StrategyError("there is nothing to optimize: call scope.add_loss(…) in the model function")

    train_op = None
    if optimizer is not None:
        train_op = _training(clones, optimizer, host)
    return DeployedModel(
        train_op,
        _summaries(clones, host, summarize_gradients and optimizer is not None, has_loss),
        _evaluation(clones, host) if has_loss else None,
        clones,
    )


def _training(
    clones: list[Clone], optimizer: optax.GradientTransformation, host: Any
) -> Callable[[], jax.Array] | None:
    variables = clones[0].variables
    step = jnp.int32(0)
    variables.add(GLOBAL_STEP, step, variables.home(step))
    run, names = parts_of(clones, variables.regularization_losses, variables.trainable)
    if not names:
        return None
    optimizer = optax.with_extra_args_support(optimizer)
    slots = Slots(optimizer, variables, names)

    def update(parts: list[Part], params: dict[str, Any], state: dict[str, Any]) -> Any:
        total = total_of(parts)
        changes, new_state = optimizer.update(total.gradients, slots.whole(state), params)
        replaced = {**total.extras.updates, **slots.named(new_state)}
        if variables.are_shared:
            return total.loss, replaced, {name: changes[name].astype(params[name].dtype) for name in names}
        return total.loss, {**replaced, **optax.apply_updates(params, changes)}, {}

    apply = on_device(update, host)

    def train_op() -> jax.Array:
        values = variables.fetch(variables.declared)
        parts = run(values)
        params = {name: values[name] for name in names}
        loss, replaced, added = apply(parts, params, variables.fetch(slots.names))
        variables.write(replaced, {**added, GLOBAL_STEP: np.int32(1)})
        return loss  # type: ignore[no-any-return]

    return train_op


def _evaluation(clones: list[Clone], host: Any) -> Callable[[], jax.Array]:
    variables = clones[0].variables
    run, _ = parts_of(clones, variables.regularization_losses, ())
    sum_up = on_device(lambda parts: total_of(parts).loss, host, name="total_loss")
    return lambda: sum_up(run(variables.fetch(variables.declared)))


def _summaries(
    clones: list[Clone], host: Any, with_gradients: bool, has_loss: bool
) -> Callable[[], dict[str, Any]]:
    variables = clones[0].variables
    trained = variables.trainable if with_gradients else ()
    run, _ = parts_of(clones, variables.regularization_losses, trained)

    def show(parts: list[Part]) -> dict[str, Any]:
        total = total_of(parts)
        shown = dict(total.extras.summaries)
        if has_loss:
            shown["total_loss"] = total.loss
        for name, gradient in total.gradients.items():
            shown |= {
                f"{name}:gradient": gradient,
                f"{name}:gradient_norm": jnp.linalg.norm(gradient.ravel()),
            }
        return shown

    gather = on_device(show, host, name="summary_op")
    return lambda: gather(run(variables.fetch(variables.declared)))
