"""The arguments of `fit`, `evaluate` and `predict`: by name, and with `sg.data.pipeline`, which Keras does not know."""

import inspect
import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from stratagem.data.batch_pipeline import Pipeline
from stratagem.errors import DataError, StrategyError

_PEEKED: Final = 2
"""Keras draws at most this many batches to see their form: one, and one more that it moves to a device ahead."""
_STEPS: Final = {
    "fit": {"x": "steps_per_epoch", "validation_data": "validation_steps"},
    "evaluate": {"x": "steps"},
    "predict": {"x": "steps"},
}
"""The arguments that may be a pipeline, and for each the argument that gives the number of its batches."""
_OF_ARRAYS: Final = ("y", "sample_weight", "class_weight", "validation_split", "batch_size")
"""Arguments that go with arrays only."""


def named_arguments(name: str, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, as the model's method takes them, whether Keras's own or the user's.

    Raises:
        StrategyError: The user's own `fit` takes no callbacks.
    """
    own = inspect.signature(getattr(type(model), name)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    takes_rest = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in own.values())
    if name == "fit" and "callbacks" not in own and not takes_any:
        raise StrategyError(
            f"{type(model).__name__}.fit takes no callbacks, which a strategy needs: give it **kwargs, and pass them on "
            "to super().fit"
        )
    # A method with *args passes them on to Keras's, whose arguments these are.
    method = getattr(keras.Model if takes_rest else type(model), name)
    signature = inspect.signature(method)
    named = dict(list(signature.bind(model, *args, **kwargs).arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return named


class PipelineAdapter(DataAdapter):  # type: ignore[misc]
    """A pipeline in Keras's interface: an epoch is a pass over it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._pass: Iterator[Any] = iter(())
        self._first: list[Any] = []
        self._has_more = False

    def get_jax_iterator(self) -> Iterator[Any]:
        """Return a new pass, or the last one again if Keras has drawn only its first batches to see their form."""
        if not self._has_more or len(self._first) == self.num_batches:
            self._pass, self._first, self._has_more = iter(self._pipeline), [], True
        return itertools.chain(self._first[:], self._rest())

    get_numpy_iterator = get_jax_iterator

    def _rest(self) -> Iterator[Any]:
        for number, batch in enumerate(self._pass, len(self._first)):
            if number < _PEEKED:
                self._first.append(batch)
            else:
                self._has_more = False
            yield batch
        self._has_more = False

    @property
    def num_batches(self) -> int | None:
        """The number of batches of a pass, if it is known."""
        return self._pipeline.batches_per_pass

    @property
    def batch_size(self) -> None:
        """Unknown: batches may differ in size."""
        return


@contextmanager
def with_pipelines(method: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a method with pipelines in a form that Keras takes, for the time of the call.

    Raises:
        DataError: An argument does not go with a pipeline, or a pipeline has no end and nothing says where to stop.
    """
    pipelines = {
        name: steps for name, steps in _STEPS[method].items() if isinstance(arguments.get(name), Pipeline)
    }
    if "x" in pipelines:
        for name in _OF_ARRAYS:
            if arguments.get(name) is not None:
                raise DataError(
                    f"{method} was given {name} beside a pipeline, whose batches have all: let them be (x, y) or "
                    "(x, y, sample_weight), in batches of the pipeline's batch_size"
                )
    to_their_end = [name for name, steps in pipelines.items() if arguments.get(steps) is None]
    for name in to_their_end:
        if arguments[name].is_endless:
            once = arguments[name].batches_per_epoch
            raise DataError(
                f"{method} was given a pipeline without an end (epochs=None) as {name}: say how many batches to take, "
                f"{pipelines[name]}={'…' if once is None else f'{once} for once over the source'}, or give the pipeline "
                "a number of epochs"
            )
    with warnings.catch_warnings():
        if to_their_end:  # Keras may learn the length of a stream, or of a resumed pass, only at its end
            warnings.filterwarnings("ignore", "Your input ran out of data")
        yield {**arguments, **{name: PipelineAdapter(arguments[name]) for name in pipelines}}
