"""Read an Estimator's checkpoints without a strategy: parameters to evaluate, and variables by name."""

import re
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import Snapshots, StoredArray, StoredSnapshot
from stratagem.training.state_arrays import check_form
from stratagem.waist.loss_functions import leaf_names

_STEP = "global_step"
_PARAMS = "params/"
_KEYS = re.compile(r"\['([^']*)'\]|\[([^\]]*)\]|\.(\w+)")


def checkpoint_directory(model_dir: Path) -> Path:
    """Return the directory of a model's checkpoints."""
    return model_dir / "checkpoints"


def check_trained(model_dir: Path) -> None:
    """Raise a `KeepError` if a model has no checkpoint. Open none."""
    directory = checkpoint_directory(model_dir)
    if Snapshots(directory).latest() is None:
        raise KeepError(
            f"there is no checkpoint in {directory} yet: call train() first, or give the model_dir of a model that is "
            "trained"
        )


def open_checkpoint(model_dir: Path, path: str | PathLike[str] | None = None) -> StoredSnapshot:
    """Open a checkpoint. By default, open the newest that can be read.

    Raises:
        KeepError: There is none.
    """
    if path is not None:
        target = Path(path).absolute()
        snapshots = Snapshots(target.parent)
        steps = [step for step in snapshots.steps() if snapshots.path(step) == target]
        if not steps:
            raise KeepError(
                f"{target} is not a checkpoint; give a path such as latest_checkpoint() returns: there are "
                f"{', '.join(snapshots.path(step).name for step in snapshots.steps()) or 'none'} beside it"
            )
        return snapshots.open(steps[0])
    check_trained(model_dir)
    snapshot = Snapshots(checkpoint_directory(model_dir)).newest_readable()
    return open_checkpoint(model_dir) if snapshot is None else snapshot


def load_params(model_dir: Path, path: str | PathLike[str] | None, like: Any) -> tuple[int, Any]:
    """Return the step of a checkpoint, by default the newest, and its parameters, in the structure of `like`.

    Raises:
        KeepError: There is none, or it is of another model.
    """
    while True:
        snapshot = open_checkpoint(model_dir, path)
        try:
            return snapshot.step, _read_params(snapshot, like)
        except KeepError:
            if path is not None or snapshot.step in Snapshots(snapshot.directory.parent).steps():
                raise
            # A training in another process removed it while it was read: there is a newer one.


def _read_params(snapshot: StoredSnapshot, like: Any) -> Any:
    leaves, tree = jax.tree.flatten(like)
    names = [f"{_PARAMS}{name}" for name in leaf_names(tree)]
    expected = dict(zip(names, map(_stored_form, leaves), strict=True))
    actual = {
        name: entry.stored for name, entry in snapshot.manifest.tensors.items() if name.startswith(_PARAMS)
    }
    check_form(actual, expected, f"the checkpoint of step {snapshot.step} in {snapshot.directory.parent}")
    return jax.tree.unflatten(tree, [snapshot.read(name) for name in names])


def _stored_form(leaf: Any) -> StoredArray:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return StoredArray(tuple(np.shape(leaf)), str(jax.dtypes.canonicalize_dtype(dtype)))


def read_all_params(snapshot: StoredSnapshot) -> dict[str, Any]:
    """Return all parameters of a checkpoint, by their readable names."""
    return {
        name: snapshot.read(stored)
        for name, stored in variable_names(snapshot).items()
        if stored.startswith(_PARAMS)
    }


def variable_names(snapshot: StoredSnapshot) -> dict[str, str]:
    """Map the readable name of each variable to its name in the checkpoint. Parameters have no prefix: `dense/kernel`."""
    return {_readable(name): name for name in snapshot.names if name != "data"}


def read_variable(snapshot: StoredSnapshot, name: str) -> Any:
    """Return the value of a variable.

    Raises:
        KeepError: There is none of that name.
    """
    if name == _STEP:
        return np.int64(snapshot.step)
    names = variable_names(snapshot)
    if name not in names:
        raise KeepError(
            f"the checkpoint of step {snapshot.step} has no variable {name!r}; it has {_STEP}, {', '.join(names)}"
        )
    return snapshot.read(names[name])


def _readable(name: str) -> str:
    """Return a name in the usual notation: `dense/kernel` for `['dense']['kernel']`.

    Example:
        >>> _readable("params/['dense']['kernel']"), _readable("opt_state/[0].mu['w']")
        ('dense/kernel', 'opt_state/0/mu/w')
    """
    kind, _, path = name.partition("/")
    keys = ["".join(groups) for groups in _KEYS.findall(path)]
    if _KEYS.sub("", path):  # not in this notation: keep it as it is
        keys = [path]
    return "/".join([*([] if kind == "params" else [kind]), *keys]) or "params"
