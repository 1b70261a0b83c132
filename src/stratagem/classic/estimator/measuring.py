"""Evaluation and prediction: means over all rows, on the devices of a strategy, shared out among its workers."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stratagem.classic.estimator.model import Model
from stratagem.engines.feeds import nonempty
from stratagem.engines.rows import count_rows
from stratagem.errors import DataError
from stratagem.strategies import Strategy


def evaluate(
    strategy: Strategy, model: Model, params: Any, batches: Iterable[Any], steps: int | None
) -> dict[str, float]:
    """The loss and the metrics over some batches, each batch weighed by its rows.

    Raises:
        DataError: There is no row, or a metric is not one number.
    """
    replicas = strategy.engine.replicas
    placed = replicas.replicate(params)
    shares = strategy.feed.shares_evaluation
    deal = strategy.feed.deal() if shares else _all
    names: list[str] | None = None
    told: list[tuple[int, Any]] = []
    for batch in itertools.islice(nonempty(batches), steps):
        if names is None:
            names = _names(jax.eval_shape(model.measure, params, *batch))
        part = deal(batch)
        rows = count_rows(part)
        if rows:
            told.append((rows, replicas.settle(model.measure(placed, *replicas.place(part)))))
    sums = np.zeros(len(names or ()) + 1)
    for rows, metrics in told:
        sums += rows * np.array([*(float(metrics[name]) for name in names or ()), 1.0])
    if shares:
        sums = np.sum(list(strategy.workers.gather(sums)), axis=0)
    if not names or not sums[-1]:
        raise DataError("there is not one row to evaluate on: input_fn gave empty batches only")
    return dict(zip(names, (sums[:-1] / sums[-1]).tolist(), strict=True))


def _all(batch: Any) -> Any:
    return batch


def _names(forms: dict[str, Any]) -> list[str]:
    for name, form in forms.items():
        if form.shape:
            raise DataError(
                f"the metric {name!r} is an array of shape {form.shape}; give one number, the mean over the rows"
            )
    return sorted(forms)


def predict(
    strategy: Strategy, model: Model, params: Any, batches: Iterable[Any], keys: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """For each row what the model makes of it.

    Raises:
        DataError: The model does not predict what is asked for, or not row by row.
    """
    replicas = strategy.engine.replicas
    placed = replicas.replicate(params)
    for features, _ in nonempty(batches):
        outputs = replicas.settle(model.predict(placed, replicas.place(features)))
        named = outputs if isinstance(outputs, dict) else {"predictions": outputs}
        unknown = [key for key in keys or () if key not in named]
        if unknown:
            raise DataError(
                f"the model predicts {', '.join(named)}, not {unknown[0]!r}: ask for some of those"
            )
        wanted = {key: np.asarray(named[key]) for key in (named if keys is None else keys)}
        rows = count_rows(features)
        for key, value in wanted.items():
            if not value.shape or value.shape[0] != rows:
                raise DataError(
                    f"the prediction {key!r} has the shape {value.shape} for {rows} rows: give an array with the rows "
                    "first"
                )
        for row in range(rows):
            yield {key: value[row] for key, value in wanted.items()}
