"""A small model function and inputs for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25


def predict(weights: Any, features: Any) -> Any:
    return features @ weights["dense"]["kernel"] + weights["bias"]


def loss(weights: Any, features: Any, labels: Any) -> Any:
    return jnp.mean((predict(weights, features) - labels) ** 2)


def noisy_loss(weights: Any, features: Any, labels: Any, rng: Any) -> Any:
    return loss(weights, features + 0.1 * jax.random.normal(rng, features.shape), labels)


def absolute(weights: Any, features: Any, labels: Any) -> Any:
    return jnp.abs(predict(weights, features) - labels).mean()


def init(rng: Any, features: Any) -> Any:
    return {
        "dense": {"kernel": 0.1 * jax.random.normal(rng, (features.shape[1],))},
        "bias": jnp.zeros(()),
    }


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> sg.EstimatorSpec:
    return sg.EstimatorSpec(
        init=init,
        loss=noisy_loss if mode == sg.ModeKeys.TRAIN and params.get("noise") else loss,
        predictions=lambda weights, features: {"y": predict(weights, features), "x": features},
        eval_metrics={"absolute": absolute},
        optimizer=optax.adam(params["rate"]),
    )


def estimator(directory: Path, noise: bool = False, **config: Any) -> sg.Estimator:
    settings = {"log_step_count_steps": None, "save_summary_steps": None, **config}
    return sg.Estimator(model_fn, directory, sg.RunConfig(**settings), params={"rate": 0.05, "noise": noise})


def batches(global_step: int = 0) -> Iterator[Any]:
    """Batches without an end, of ten rows each, of which each step has its own."""
    step = global_step
    while True:
        rows = np.random.default_rng(step).integers(len(X), size=10)
        yield X[rows], Y[rows]
        step += 1


def test_batches() -> list[Any]:
    return [(X[:25], Y[:25]), (X[25:], Y[25:])]
