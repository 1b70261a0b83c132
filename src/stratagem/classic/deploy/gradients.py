"""The losses of all clones and the gradients of their variables, summed over the clones."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.interpreters import partial_eval

from stratagem.classic.deploy.clones import Clone, Extras, Values
from stratagem.classic.deploy.config import within_process
from stratagem.classic.deploy.inputs import Taken
from stratagem.classic.deploy.parts import on_device
from stratagem.classic.deploy.variables import Loss, Variable
from stratagem.errors import StrategyError


class Part(NamedTuple):
    """What one clone has computed.

    Attributes:
        loss: Its share of the loss.
        gradients: Of the variables that this depends on, by name.
        extras: What it brings besides.
    """

    loss: Any
    gradients: dict[str, Any]
    extras: Extras


class Total(NamedTuple):
    """What all clones have computed together.

    Attributes:
        loss: The sum of their shares.
        gradients: For each variable the sum of the gradients of those clones that have one.
        extras: What the first clone brought.
    """

    loss: Any
    gradients: dict[str, Any]
    extras: Extras


Run = Callable[[Values], list[Part]]


def parts_of(
    clones: Sequence[Clone], regularization_losses: Sequence[Loss], trained: Iterable[str]
) -> tuple[Run, list[str]]:
    """A function that runs all clones, each on its device, and which of the trained variables have a gradient.

    Nothing waits in it: the clones compute at the same time.

    Args:
        clones: The clones.
        regularization_losses: Counted with the first of them.
        trained: The variables to differentiate by; none for the losses alone.
    """
    names = list(trained)
    given = [tuple(regularization_losses) if clone is clones[0] else () for clone in clones]
    running = [
        # The first one brings updates and summaries, even if it has no loss.
        (clone, losses)
        for clone, losses in zip(clones, given, strict=True)
        if clone is clones[0] or clone.has_losses
    ]
    programs, found = [], set()
    for clone, losses in running:
        program, needed = clone.once(
            ("gradients", len(clones), losses, tuple(names)),
            partial(_program, clone, len(clones), losses, names),
        )
        programs.append((clone, program))
        found |= needed

    def run(values: Values) -> list[Part]:
        return [program(values, clone.next_inputs()) for clone, program in programs]

    return run, [name for name in names if name in found]


def total_of(parts: Sequence[Part]) -> Total:
    """The sums over clones; traceable."""
    gradients: dict[str, Any] = {}
    for part in parts:
        for name, gradient in part.gradients.items():
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    losses = [part.loss for part in parts]
    return Total(sum(losses[1:], start=losses[0]), gradients, parts[0].extras)


def optimize_clones(
    clones: Sequence[Clone],
    optimizer: Any = None,
    regularization_losses: Sequence[Loss] | None = None,
    *,
    var_list: Iterable[str | Variable] | None = None,
) -> tuple[jax.Array, list[tuple[jax.Array, Variable]]]:
    """The loss of all clones and its gradients, for the next inputs of each.

    Args:
        clones: What `create_clones` made.
        optimizer: Not asked: optax takes gradients from whoever has them. It is here since slim has it here.
        regularization_losses: Functions of the variables by name; by default those of the regularizers that the
            variables were declared with. They count once, with the first clone; `[]` leaves them out.
        var_list: The variables to differentiate by, or their names; by default all that are trained.

    Returns:
        The sum of the clones' losses, each divided by the number of clones; and for each variable the sum of its
        gradients over the clones. One that no clone's loss depends on is left out.
    """
    if not clones:
        raise StrategyError("there are no clones to optimize: num_clones has to be 1 at least")
    variables = clones[0].variables
    losses = variables.regularization_losses if regularization_losses is None else regularization_losses
    wanted = variables.trainable if var_list is None else [_name(each) for each in var_list]
    strangers = [name for name in wanted if name not in variables.trainable]
    if strangers:
        raise StrategyError(
            f"var_list has {', '.join(strangers)}; the trained variables are {', '.join(variables.trainable)}"
        )
    if not losses and not any(clone.has_losses for clone in clones):
        raise StrategyError(
            "no clone has a loss: call scope.add_loss(…) in the model function, or give a variable a regularizer"
        )
    run, names = parts_of(clones, losses, wanted)
    host = within_process(clones[0].config.optimizer_device())
    total = clones[0].once("total", lambda: on_device(total_of, host))(
        run(variables.fetch(variables.declared))
    )
    return total.loss, [(total.gradients[name], variables[name]) for name in names]


def _name(variable: str | Variable) -> str:
    return variable if isinstance(variable, str) else variable.name


def _program(
    clone: Clone, num_clones: int, losses: tuple[Loss, ...], names: list[str]
) -> tuple[Callable[..., Part], set[str]]:
    """A clone's loss, gradients and extras as one program, and the variables that have a gradient."""

    def loss(trained: Values, values: Values, taken: Taken) -> tuple[Any, Extras]:
        return clone.loss(num_clones, losses, {**values, **trained}, taken)

    values, taken = clone.shapes()
    needed = _influential(
        lambda trained: loss(trained, *_zeros((values, taken)))[0], {name: values[name] for name in names}
    )

    def gradients(values: Values, taken: Taken) -> Part:
        trained = {name: values[name] for name in needed}
        (value, extras), found = jax.value_and_grad(loss, has_aux=True)(trained, values, taken)
        return Part(value, found, extras)

    return clone.compiled("gradients" if names else "loss", gradients), set(needed)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda shape: jax.numpy.zeros(shape.shape, shape.dtype), shapes)


def _influential(loss: Callable[[Values], Any], trained: Values) -> list[str]:
    """The variables that a loss has a gradient by: those whose change is in what the change of the loss is made of.

    Where it has none, JAX gives zeros; an optimizer with a memory would change the variable all the same.
    """
    if not trained:
        return []
    names = list(trained)

    def change(values: list[Any], changes: list[Any]) -> Any:
        whole, ahead = (dict(zip(names, each, strict=True)) for each in (values, changes))
        return jax.jvp(loss, (whole,), (ahead,))[1]

    shapes = [trained[name] for name in names]
    jaxpr = jax.make_jaxpr(change)(shapes, shapes)
    _, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [True])
    return [name for name, is_used in zip(names, used[len(names) :], strict=True) if is_used]
