"""`sg.data.pipeline` as data of `fit`, `evaluate` and `predict`, which Keras by itself does not know."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from stratagem.data.batch_pipeline import Pipeline
from stratagem.errors import DataError

_LOOKED_AT: Final = 2
"""How many batches Keras draws at most to see what they are like: one, and one more that it moves to a device ahead."""
_STEPS: Final = {
    "fit": {"x": "steps_per_epoch", "validation_data": "validation_steps"},
    "evaluate": {"x": "steps"},
    "predict": {"x": "steps"},
}
"""The arguments that may be a pipeline, and the one that says how many of its batches."""
_WITH_ROWS: Final = ("y", "sample_weight", "class_weight", "validation_split", "batch_size")
"""Arguments that are said of arrays."""


class PipelineAdapter(DataAdapter):  # type: ignore[misc]
    """A pipeline as Keras wants it: an epoch is a pass over it.

    Args:
        pipeline: The pipeline.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._begun: Iterator[Any] = iter(())
        self._first: list[Any] = []
        self._has_more = False

    def get_jax_iterator(self) -> Iterator[Any]:
        """A new pass; or once more the one of which Keras has only looked at the first batches."""
        if not self._has_more or len(self._first) == self.num_batches:
            self._begun, self._first, self._has_more = iter(self._pipeline), [], True
        return itertools.chain(self._first[:], self._rest())

    get_numpy_iterator = get_jax_iterator

    def _rest(self) -> Iterator[Any]:
        for number, batch in enumerate(self._begun, len(self._first)):
            if number < _LOOKED_AT:
                self._first.append(batch)
            else:
                self._has_more = False
            yield batch
        self._has_more = False

    @property
    def num_batches(self) -> int | None:
        """How many batches a pass has, if that is known."""
        return self._pipeline.batches_per_pass

    @property
    def batch_size(self) -> None:
        """Not told: batches have the sizes that they have."""
        return


@contextmanager
def with_pipelines(method: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a method by name, with pipelines in a form that Keras takes, for the time of the call.

    Raises:
        DataError: An argument does not go with a pipeline, or a pipeline has no end and nothing says where to stop.
    """
    pipelines = {
        name: steps for name, steps in _STEPS[method].items() if isinstance(arguments.get(name), Pipeline)
    }
    if "x" in pipelines:
        for name in _WITH_ROWS:
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
        if to_their_end:  # which Keras may learn only there: a stream's, or that of a pass gone on with
            warnings.filterwarnings("ignore", "Your input ran out of data")
        yield {**arguments, **{name: PipelineAdapter(arguments[name]) for name in pipelines}}
