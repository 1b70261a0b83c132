"""The rows of a batch: how many there are, and which of them are whose. Pure."""

from typing import Any

import jax
import numpy as np

from stratagem.errors import DataError


def count_rows(batch: Any, of_nothing: int | None = None) -> int:
    """The length of the first axis, which all arrays of a batch share; arrays without axes have no say.

    Args:
        batch: The batch.
        of_nothing: What to say of a batch without arrays; `None`: that is no batch.

    Raises:
        DataError: The arrays do not agree, or none has an axis.
    """
    leaves = jax.tree.leaves(batch)
    if not leaves and of_nothing is not None:
        return of_nothing
    try:
        lengths = {leaf.shape[0] for leaf in leaves if leaf.shape}
    except AttributeError:  # some are plain numbers or lists
        lengths = {np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf) > 0}
    if len(lengths) == 1:
        return int(lengths.pop())
    told = ", ".join(
        f"{jax.tree_util.keystr(path)}: {np.shape(leaf)[0]}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
        if np.ndim(leaf) > 0
    )
    raise DataError(
        f"the arrays of a batch must have the same number of rows, this one has {told or 'no array with rows'}"
    )


def share_of(rows: int, index: int, count: int) -> slice:
    """Part `index` of `count` of so many rows; parts differ by at most one row.

    Example:
        >>> [share_of(10, index, 4) for index in range(4)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    size, longer = divmod(rows, count)
    start = index * size + min(index, longer)
    return slice(start, start + size + (index < longer))


def take_rows(batch: Any, rows: slice) -> Any:
    """These rows of every array that has rows."""
    return jax.tree.map(
        lambda leaf: leaf[rows] if getattr(leaf, "ndim", 0) or np.ndim(leaf) > 0 else leaf, batch
    )
