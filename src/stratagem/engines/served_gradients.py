"""What is computed of a model that lives on servers, wherever its workers are: what goes back to these."""

from typing import Any

import jax

from stratagem.parameters.planning import ModelPlan
from stratagem.waist import Arrays, Metrics, Trainable


def served_gradients(
    trainable: Trainable,
    plan: ModelPlan,
    params: Arrays,
    others: Arrays,
    batch: Any,
    rng: jax.Array,
    alone: bool,
) -> tuple[Arrays, Arrays, Metrics, Arrays]:
    """Gradients and differences of the shared state, the new state, metrics, what all gradients share; traceable.

    Args:
        trainable: The model.
        plan: Who holds what of it.
        params: Its parameters.
        others: Its non-trained state.
        batch: The rows.
        rng: Random numbers for them.
        alone: Whether these gradients make an update by themselves. The mean of several shares something else, which
            servers compute.
    """
    (loss, after, metrics), grads = trainable.loss_and_grad(params, others, batch, rng)
    statistics = zip(plan.shared(others), plan.shared(after), strict=True)
    gradients = [
        *(grad.astype(param.dtype) for grad, param in zip(grads, params, strict=True)),
        *((new - old).astype(old.dtype) for old, new in statistics),
    ]
    commons = plan.plan.commons(gradients) if alone else []
    return gradients, after, {**metrics, "loss": loss, **trainable.report(after)}, commons
