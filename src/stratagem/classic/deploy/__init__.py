"""Clones of one model on several devices, as in slim's `model_deploy`, and parts of one model on several devices.

slim's tensors and operations are functions here, and calling one is one `session.run`: `model.train_op()` makes a step
and returns the loss. Names are loaded when first used.

A map, from the outside in:

    deployed_model     deploy: gradients summed over clones, the optimizer and its state
    clones             CloneScope, Clone, create_clones: one model function called once per device
    model_variables    the variables, in this process or on parameter servers
    device_functions   on_device: a function compiled for one device
    deployment_config  DeploymentConfig: how many clones and replicas, and which device has what
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.classic.deploy.clones import Clone as Clone
    from stratagem.classic.deploy.clones import CloneScope as CloneScope
    from stratagem.classic.deploy.clones import create_clones as create_clones
    from stratagem.classic.deploy.clones import gather_clone_loss as gather_clone_loss
    from stratagem.classic.deploy.deployed_model import DeployedModel as DeployedModel
    from stratagem.classic.deploy.deployed_model import deploy as deploy
    from stratagem.classic.deploy.deployed_model import optimize_clones as optimize_clones
    from stratagem.classic.deploy.deployment_config import DeploymentConfig as DeploymentConfig
    from stratagem.classic.deploy.device_functions import on_device as on_device

# The same list as above, for the interpreter: a test compares the two.
_HOMES = {
    "Clone": "stratagem.classic.deploy.clones",
    "CloneScope": "stratagem.classic.deploy.clones",
    "DeployedModel": "stratagem.classic.deploy.deployed_model",
    "DeploymentConfig": "stratagem.classic.deploy.deployment_config",
    "create_clones": "stratagem.classic.deploy.clones",
    "deploy": "stratagem.classic.deploy.deployed_model",
    "gather_clone_loss": "stratagem.classic.deploy.clones",
    "on_device": "stratagem.classic.deploy.device_functions",
    "optimize_clones": "stratagem.classic.deploy.deployed_model",
}

if not TYPE_CHECKING:  # so that type checkers still report unknown names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
