"""What steps over parameter servers share, whether each worker runs them or one client does: gradients and log lines."""

import logging
import time
from typing import Any

import jax

from stratagem.parameters.planning import ModelPlan
from stratagem.waist import Arrays, Metrics, Trainable

_log = logging.getLogger("stratagem")


def worker_key(seed: Any, step: Any, worker: Any) -> jax.Array:
    """Return the random key of one worker's step."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), worker)


def server_gradients(
    trainable: Trainable,
    plan: ModelPlan,
    params: Arrays,
    others: Arrays,
    batch: Any,
    rng: jax.Array,
    alone: bool,
) -> tuple[Arrays, Arrays, Metrics, Arrays]:
    """Compute what a worker sends to the servers, and what it keeps; traceable.

    Args:
        trainable: The model.
        plan: Which server holds what of it.
        params: Its parameters.
        others: Its non-trained state.
        batch: The rows.
        rng: The random key of the step.
        alone: Whether these gradients make an update by themselves. If several are averaged, the servers compute what
            the gradients of all leaves have in common.

    Returns:
        Gradients and changes of shared state, for the servers; the new non-trained state; metrics; and what the
        gradients of all leaves have in common, such as a global norm.
    """
    (loss, after, metrics), grads = trainable.loss_and_grad(params, others, batch, rng)
    statistics = zip(plan.shared(others), plan.shared(after), strict=True)
    gradients = [
        *(grad.astype(param.dtype) for grad, param in zip(grads, params, strict=True)),
        *((new - old).astype(old.dtype) for old, new in statistics),
    ]
    commons = plan.plan.commons(gradients) if alone else []
    return gradients, after, {**metrics, "loss": loss, **trainable.report(after)}, commons


class StepLog:
    """Logs how a worker's training goes, in the form that users of parameter servers know."""

    def __init__(self, every: int = 100) -> None:
        self._every = every
        self._steps = 0
        self._rows = 0
        self._since = time.monotonic()

    def count(self, rows: int, global_step: int, metrics: dict[str, Any]) -> None:
        """Count one more step, of so many examples."""
        if not self._steps:
            self._since = time.monotonic()  # the first step compiles
        self._steps += 1
        self._rows += rows
        if self._steps % self._every:
            return
        seconds = time.monotonic() - self._since
        if _log.isEnabledFor(logging.INFO) and "loss" in metrics:
            _log.info(
                "After %d training steps (%d global steps), loss on training batch is %g. (%.3f sec/batch, %.0f examples/sec)",
                self._steps,
                global_step,
                float(metrics["loss"]),
                seconds / self._every,
                self._rows / max(seconds, 1e-9),
            )
        self._rows, self._since = 0, time.monotonic()
