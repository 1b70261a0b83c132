"""What the checkpoints of an Estimator hold, read without a strategy: parameters to evaluate, variables by name."""

import re
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import Snapshots, StoredArray, StoredSnapshot
from stratagem.training.checkpoint_form import check_form
from stratagem.waist.loss_functions import leaf_names

_STEP = "global_step"
_PARAMS = "params/"
_PLACES = re.compile(r"\['([^']*)'\]|\[([^\]]*)\]|\.(\w+)")


def checkpoint_directory(model_dir: Path) -> Path:
    """Where in its directory a model has its checkpoints."""
    return model_dir / "checkpoints"


def check_there(model_dir: Path) -> None:
    """Refuses a model that is not trained; reads nothing.

    Raises:
        KeepError: There is no checkpoint.
    """
    directory = checkpoint_directory(model_dir)
    if Snapshots(directory).latest() is None:
        raise KeepError(
            f"there is no checkpoint in {directory} yet: call train() first, or give the model_dir of a model that is "
            "trained"
        )


def open_checkpoint(model_dir: Path, path: str | PathLike[str] | None = None) -> StoredSnapshot:
    """A checkpoint, the newest that can be read by default.

    Raises:
        KeepError: There is none.
    """
    if path is not None:
        given = Path(path).absolute()
        cuts = Snapshots(given.parent)
        found = [step for step in cuts.steps() if cuts.path(step) == given]
        if not found:
            raise KeepError(
                f"{given} is no checkpoint; give a path such as latest_checkpoint() returns: there are "
                f"{', '.join(cuts.path(step).name for step in cuts.steps()) or 'none'} beside it"
            )
        return cuts.open(found[0])
    check_there(model_dir)
    cut = Snapshots(checkpoint_directory(model_dir)).newest_readable()
    return open_checkpoint(model_dir) if cut is None else cut


def load_params(model_dir: Path, path: str | PathLike[str] | None, like: Any) -> tuple[int, Any]:
    """The step of a checkpoint, the newest by default, and the parameters that it holds.

    Args:
        model_dir: Where the model is.
        path: Which checkpoint.
        like: Parameters of the same model.

    Raises:
        KeepError: There is none, or it is of another model.
    """
    while True:
        cut = open_checkpoint(model_dir, path)
        try:
            return cut.step, _params(cut, like)
        except KeepError:
            if path is not None or cut.step in Snapshots(cut.directory.parent).steps():
                raise
            # It was removed while it was read, as old ones are when others train on: there is a newer one.


def _params(cut: StoredSnapshot, like: Any) -> Any:
    leaves, tree = jax.tree.flatten(like)
    names = [f"{_PARAMS}{name}" for name in leaf_names(tree)]
    expected = dict(zip(names, (_stored(leaf) for leaf in leaves), strict=True))
    found = {name: entry.stored for name, entry in cut.manifest.tensors.items() if name.startswith(_PARAMS)}
    check_form(found, expected, f"the checkpoint of step {cut.step} in {cut.directory.parent}")
    return jax.tree.unflatten(tree, [cut.read(name) for name in names])


def _stored(leaf: Any) -> StoredArray:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return StoredArray(tuple(np.shape(leaf)), str(jax.dtypes.canonicalize_dtype(dtype)))


def variable_names(cut: StoredSnapshot) -> dict[str, str]:
    """For each variable its name in the checkpoint: parameters are called by their place alone, `dense/kernel`."""
    return {_readable(name): name for name in cut.names if name != "data"}


def read_variable(cut: StoredSnapshot, name: str) -> Any:
    """A variable.

    Raises:
        KeepError: There is none of that name.
    """
    if name == _STEP:
        return np.int64(cut.step)
    names = variable_names(cut)
    if name not in names:
        raise KeepError(
            f"the checkpoint of step {cut.step} has no variable {name!r}; it has {_STEP}, {', '.join(names)}"
        )
    return cut.read(names[name])


def _readable(name: str) -> str:
    """A name as people write it: `['dense']['kernel']` is `dense/kernel`.

    Example:
        >>> _readable("params/['dense']['kernel']"), _readable("opt_state/[0].mu['w']")
        ('dense/kernel', 'opt_state/0/mu/w')
    """
    kind, _, place = name.partition("/")
    parts = ["".join(found) for found in _PLACES.findall(place)]
    if _PLACES.sub("", place):  # not such a name: it stays as it is
        parts = [place]
    return "/".join([*([] if kind == "params" else [kind]), *parts]) or "params"
