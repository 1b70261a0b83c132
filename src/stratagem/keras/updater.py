"""A Keras optimizer as an `Updater`."""

from typing import Any

from stratagem.waist import Arrays, Updater


class KerasUpdater(Updater):
    """An optimizer that has been built for a model's variables.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def init(self, params: Arrays) -> Arrays:
        """Its variables as they are: moments, iterations, the learning rate."""
        return [variable.value for variable in self._optimizer.variables]

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        optimizer = self._optimizer
        # By way of the class: while a model's own train_step is traced, the instance has another.
        new, state = type(optimizer).stateless_apply(optimizer, opt_state, grads, params)
        return list(new), list(state)

    def commit(self, opt_state: Arrays) -> None:
        """Take values back into the optimizer's variables."""
        for variable, value in zip(self._optimizer.variables, opt_state, strict=True):
            variable.assign(value)
