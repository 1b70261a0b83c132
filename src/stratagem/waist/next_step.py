"""Upper layers that want to see a state when it is trained for the next time: they ask here, strategies tell them."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from stratagem.waist.state import TrainState

_asking: list[WeakMethod[Any]] = []


def at_next_step(look: Callable[[TrainState], object]) -> None:
    """Have a method called once, with the state that is about to be trained next; it is not kept alive for that."""
    _asking.append(WeakMethod(look))


def about_to_train(state: TrainState) -> None:
    """Tell those who have asked; called before every step."""
    while _asking:
        look = _asking.pop()()
        if look is not None:
            look(state)
