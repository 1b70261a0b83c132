"""`deploy`: clones, their gradients and an optimizer, as functions that train, evaluate and show a model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters import partial_eval
from jax.tree_util import DictKey

from stratagem.classic.deploy.clones import Clone, Extras, InputArrays, create_clones
from stratagem.classic.deploy.deployment_config import DeploymentConfig, within_process
from stratagem.classic.deploy.device_functions import on_device
from stratagem.classic.deploy.model_variables import Loss, ModelVariable, ModelVariables, Values
from stratagem.errors import StrategyError
from stratagem.runtime import Session

GLOBAL_STEP = "global_step"
"""The variable that counts the updates of all replicas."""

# Gradients.


class LossAndGradients(NamedTuple):
    """The results of one clone, or their sums over all clones.

    Attributes:
        loss: The clone's share of the loss, or the sum of the shares.
        gradients: The gradients by the variables that the loss depends on, by name.
        extras: The updates and summaries of the clone, or of the first clone.
    """

    loss: Any
    gradients: dict[str, Any]
    extras: Extras


RunClones: TypeAlias = Callable[[Values], list[LossAndGradients]]


def optimize_clones(
    clones: Sequence[Clone],
    optimizer: Any = None,
    regularization_losses: Sequence[Loss] | None = None,
    *,
    var_list: Iterable[str | ModelVariable] | None = None,
) -> tuple[jax.Array, list[tuple[jax.Array, ModelVariable]]]:
    """Return the loss of all clones and its gradients, for the next inputs of each.

    Args:
        clones: The clones that `create_clones` made.
        optimizer: Unused, since an optax optimizer computes no gradients. slim has this argument here.
        regularization_losses: Functions of the variables by name. By default, those of the regularizers that the
            variables were declared with. They count once, with the first clone; `[]` leaves them out.
        var_list: The variables to differentiate by, or their names. By default, all that are trained.

    Returns:
        The sum of the clones' losses, each divided by the number of clones; and for each variable the sum of its
        gradients over the clones. A variable that no clone's loss depends on is left out.
    """
    if not clones:
        raise StrategyError("there are no clones to optimize: num_clones has to be 1 at least")
    variables = clones[0].variables
    losses = variables.regularization_losses if regularization_losses is None else regularization_losses
    trained = variables.trainable if var_list is None else [_name(each) for each in var_list]
    unknown = [name for name in trained if name not in variables.trainable]
    if unknown:
        raise StrategyError(
            f"var_list has {', '.join(unknown)}; the trained variables are {', '.join(variables.trainable)}"
        )
    if not losses and not any(clone.has_losses for clone in clones):
        raise StrategyError(
            "no clone has a loss: call scope.add_loss(…) in the model function, or give a variable a regularizer"
        )
    run, names = _gradient_programs(clones, losses, trained)
    host = within_process(clones[0].config.optimizer_device())
    program = clones[0].cached("total", lambda: on_device(sum_clones, host))
    total = program(run(variables.fetch(variables.declared)))
    return total.loss, [(total.gradients[name], variables[name]) for name in names]


def _name(variable: str | ModelVariable) -> str:
    return variable if isinstance(variable, str) else variable.name


def sum_clones(results: Sequence[LossAndGradients]) -> LossAndGradients:
    """Sum the losses and gradients of all clones. Traceable."""
    gradients: dict[str, Any] = {}
    for each in results:
        for name, gradient in each.gradients.items():
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    losses = [each.loss for each in results]
    return LossAndGradients(sum(losses[1:], start=losses[0]), gradients, results[0].extras)


def _gradient_programs(
    clones: Sequence[Clone], regularization_losses: Sequence[Loss], trained: Iterable[str]
) -> tuple[RunClones, list[str]]:
    """Return a function that runs all clones, each on its device, and the trained variables that have a gradient.

    The function waits for no device: the clones compute at the same time. Without trained variables, it computes the
    losses alone. Regularization losses count with the first clone.
    """
    names = list(trained)
    programs, used = [], set()
    for clone in clones:
        is_first = clone is clones[0]
        if not is_first and not clone.has_losses:
            continue  # only the first one's updates and summaries count
        losses = tuple(regularization_losses) if is_first else ()
        program, influential = clone.cached(
            ("gradients", len(clones), losses, tuple(names)),
            partial(_gradient_program, clone, len(clones), losses, names),
        )
        programs.append((clone, program))
        used |= influential

    def run(values: Values) -> list[LossAndGradients]:
        return [program(values, clone.next_inputs()) for clone, program in programs]

    return run, [name for name in names if name in used]


def _gradient_program(
    clone: Clone, num_clones: int, losses: tuple[Loss, ...], names: list[str]
) -> tuple[Callable[..., LossAndGradients], set[str]]:
    """Compile a clone's loss, gradients and extras as one program; return it with the variables that have a gradient."""

    def loss(trained: Values, values: Values, inputs: InputArrays) -> tuple[Any, Extras]:
        return clone.loss(num_clones, losses, {**values, **trained}, inputs)

    values, inputs = clone.shapes()
    influential = _influential(
        lambda trained: loss(trained, *_zeros((values, inputs)))[0], {name: values[name] for name in names}
    )

    def gradients(values: Values, inputs: InputArrays) -> LossAndGradients:
        trained = {name: values[name] for name in influential}
        (value, extras), by_name = jax.value_and_grad(loss, has_aux=True)(trained, values, inputs)
        return LossAndGradients(value, by_name, extras)

    return clone.compile("gradients" if names else "loss", gradients), set(influential)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


def _influential(loss: Callable[[Values], Any], trained: Values) -> list[str]:
    """Return the variables whose change enters the derivative of a loss.

    For the others JAX returns zeros as gradients, and an optimizer with a memory would change them all the same.
    """
    if not trained:
        return []
    names = list(trained)

    def derivative(values: list[Any], changes: list[Any]) -> Any:
        primals, tangents = (dict(zip(names, each, strict=True)) for each in (values, changes))
        return jax.jvp(loss, (primals,), (tangents,))[1]

    shapes = [trained[name] for name in names]
    jaxpr = jax.make_jaxpr(derivative)(shapes, shapes)
    _, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [True])
    return [name for name, is_used in zip(names, used[len(names) :], strict=True) if is_used]


# The optimizer's state.


class OptimizerState:
    """The state of an optimizer as variables, each beside the trained variable that it belongs to.

    Adds these variables, and translates between them and the optimizer's own structure.
    """

    def __init__(
        self, optimizer: optax.GradientTransformation, variables: ModelVariables, trained: Sequence[str]
    ) -> None:
        state = optimizer.init({name: jnp.asarray(variables[name].read()) for name in trained})
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(state)
        self.names = []
        for path, leaf in leaves:
            name = f"optimizer/{jax.tree_util.keystr(path, simple=True, separator='/')}"
            owner = _owner(path, trained)
            variables.add(name, jnp.asarray(leaf), None if owner is None else variables[owner].device)
            self.names.append(name)

    def pack(self, values: Mapping[str, Any]) -> Any:
        """Build the optimizer's state from the values of its variables. Traceable."""
        return jax.tree.unflatten(self._tree, [values[name] for name in self.names])

    def unpack(self, state: Any) -> dict[str, Any]:
        """Return the values of the optimizer's variables, by name. Traceable."""
        return dict(zip(self.names, jax.tree.leaves(state), strict=True))


def _owner(path: Sequence[Any], trained: Sequence[str]) -> str | None:
    """Return the variable that a piece of state belongs to: the one whose name ends its path."""
    last = path[-1] if path else None
    return str(last.key) if isinstance(last, DictKey) and last.key in trained else None


# The model.


class DeployedModel(NamedTuple):
    """A model that is ready to be trained or evaluated. Each call takes the next inputs, one set per clone.

    Attributes:
        train_op: Makes one training step and returns the total loss before it; `None` without an optimizer, or
            if there is nothing to train.
        summary_op: Returns values to show, by name: numbers, and arrays that are best shown as histograms.
        total_loss: Returns the total loss without training; `None` if the model has no loss.
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
    """Deploy a model on several devices of this process, to train it there.

    At every step each clone computes, on its device and at the same time as the others, its gradients and its loss
    divided by the number of clones. These are summed on `config.optimizer_device()`, where the optimizer makes one
    update. Regularisation counts once. Updates (moving averages) and summaries are the first clone's.

    With parameter servers (`config.num_ps_tasks`) variables, optimizer state and global step live there. Every
    replica is a process that reads them, computes on its own devices, and adds its update there. No update of a
    variable is lost, but replicas do not wait for each other, and in the optimizer's state and the moving averages the
    last writer wins, as in TensorFlow without locks. For stronger guarantees, and for restarts, use
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
        seed: The seed of the variables' random first values.

    Raises:
        StrategyError: There is no clone, or the optimizer has no loss to work on.

    Example:
        def model_fn(scope, batch):
            w = scope.variable("w", (64, 10), regularizer=lambda w: 1e-4 * (w**2).sum())
            scope.add_loss(optax.softmax_cross_entropy_with_integer_labels(batch[0] @ w, batch[1]).mean())

        config = sg.deploy.DeploymentConfig(num_clones=2)
        model = sg.deploy.deploy(config, model_fn, [iter(batches)], optimizer=optax.sgd(0.1))
        losses = [model.train_op() for _ in range(100)]
    """
    clones = create_clones(config, model_fn, args, kwargs, session=session, seed=seed)
    if not clones:
        raise StrategyError("num_clones is 0, and a deployed model has at least one clone")
    host = within_process(config.optimizer_device())
    has_loss = any(clone.has_losses for clone in clones) or bool(clones[0].variables.regularization_losses)
    if optimizer is not None and not has_loss:
        raise StrategyError("there is nothing to optimize: call scope.add_loss(…) in the model function")
    train_op = None if optimizer is None else _train_op(clones, optimizer, host)
    return DeployedModel(
        train_op,
        _summary_op(clones, host, summarize_gradients and optimizer is not None, has_loss),
        _total_loss(clones, host) if has_loss else None,
        clones,
    )


def _train_op(
    clones: list[Clone], optimizer: optax.GradientTransformation, host: Any
) -> Callable[[], jax.Array] | None:
    variables = clones[0].variables
    variables.add(GLOBAL_STEP, jnp.int32(0))
    run, names = _gradient_programs(clones, variables.regularization_losses, variables.trainable)
    if not names:
        return None
    optimizer = optax.with_extra_args_support(optimizer)
    optimizer_state = OptimizerState(optimizer, variables, names)

    def update(results: list[LossAndGradients], params: dict[str, Any], state: dict[str, Any]) -> Any:
        total = sum_clones(results)
        changes, new_state = optimizer.update(total.gradients, optimizer_state.pack(state), params)
        new_values = {**total.extras.updates, **optimizer_state.unpack(new_state)}
        if variables.are_shared:
            return total.loss, new_values, {name: changes[name].astype(params[name].dtype) for name in names}
        return total.loss, {**new_values, **optax.apply_updates(params, changes)}, {}

    apply = on_device(update, host)

    def train_op() -> jax.Array:
        values = variables.fetch(variables.declared)
        results = run(values)
        params = {name: values[name] for name in names}
        loss, new_values, increments = apply(results, params, variables.fetch(optimizer_state.names))
        variables.write(new_values, {**increments, GLOBAL_STEP: np.int32(1)})
        return loss  # type: ignore[no-any-return]

    return train_op


def _total_loss(clones: list[Clone], host: Any) -> Callable[[], jax.Array]:
    variables = clones[0].variables
    run, _ = _gradient_programs(clones, variables.regularization_losses, ())
    program = on_device(lambda results: sum_clones(results).loss, host, name="total_loss")
    return lambda: program(run(variables.fetch(variables.declared)))


def _summary_op(
    clones: list[Clone], host: Any, with_gradients: bool, has_loss: bool
) -> Callable[[], dict[str, Any]]:
    variables = clones[0].variables
    trained = variables.trainable if with_gradients else ()
    run, _ = _gradient_programs(clones, variables.regularization_losses, trained)

    def summarize(results: list[LossAndGradients]) -> dict[str, Any]:
        total = sum_clones(results)
        summaries = dict(total.extras.summaries)
        if has_loss:
            summaries["total_loss"] = total.loss
        for name, gradient in total.gradients.items():
            summaries[f"{name}:gradient"] = gradient
            summaries[f"{name}:gradient_norm"] = jnp.linalg.norm(gradient.ravel())
        return summaries

    program = on_device(summarize, host, name="summary_op")
    return lambda: program(run(variables.fetch(variables.declared)))
