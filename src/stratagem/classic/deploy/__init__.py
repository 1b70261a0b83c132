"""Clones of one model on several devices, as slim's `model_deploy` had them, and parts of one model on several.

What was a tensor or an operation of a graph there is a function here, and calling it is one `session.run`:
`model.train_op()` makes a step and gives the loss. Names are loaded when first used.

Example:
    def model_fn(scope, batch):
        w = scope.variable("w", (64, 10), regularizer=lambda w: 1e-4 * (w**2).sum())
        scope.add_loss(optax.softmax_cross_entropy_with_integer_labels(batch[0] @ w, batch[1]).mean())

    config = sg.deploy.DeploymentConfig(num_clones=2)
    model = sg.deploy.deploy(config, model_fn, [iter(batches)], optimizer=optax.sgd(0.1))
    losses = [model.train_op() for _ in range(100)]
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.classic.deploy.clones import Clone as Clone
    from stratagem.classic.deploy.clones import create_clones as create_clones
    from stratagem.classic.deploy.clones import gather_clone_loss as gather_clone_loss
    from stratagem.classic.deploy.config import DeploymentConfig as DeploymentConfig
    from stratagem.classic.deploy.gradients import optimize_clones as optimize_clones
    from stratagem.classic.deploy.parts import on_device as on_device
    from stratagem.classic.deploy.scope import CloneScope as CloneScope
    from stratagem.classic.deploy.training import DeployedModel as DeployedModel
    from stratagem.classic.deploy.training import deploy as deploy

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Clone": "stratagem.classic.deploy.clones",
    "CloneScope": "stratagem.classic.deploy.scope",
    "DeployedModel": "stratagem.classic.deploy.training",
    "DeploymentConfig": "stratagem.classic.deploy.config",
    "create_clones": "stratagem.classic.deploy.clones",
    "deploy": "stratagem.classic.deploy.training",
    "gather_clone_loss": "stratagem.classic.deploy.clones",
    "on_device": "stratagem.classic.deploy.parts",
    "optimize_clones": "stratagem.classic.deploy.gradients",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
