"""The rows of a batch: how many there are, and which worker computes which. Pure."""

from typing import Any

import jax
import numpy as np

from stratagem.errors import DataError


def count_rows(batch: Any, default: int | None = None) -> int:
    """Return the length of the first axis, which all arrays of a batch share; arrays without axes do not count.

    Args:
        batch: The batch.
        default: What to return for a batch without arrays; `None` makes that an error.

    Raises:
        DataError: The arrays do not agree, or none has an axis.
    """
    leaves = jax.tree.leaves(batch)
    if not leaves and default is not None:
        return default
    try:
        lengths = {leaf.shape[0] for leaf in leaves if leaf.shape}
    except AttributeError:  # some are plain numbers or lists
        lengths = {np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf) > 0}
    if len(lengths) == 1:
        return int(lengths.pop())
    listing = ", ".join(
        f"{jax.tree_util.keystr(path)}: {np.shape(leaf)[0]}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
        if np.ndim(leaf) > 0
    )
    raise DataError(
        "the arrays of a batch must have the same number of rows, this one has "
        + (listing or "no array with rows")
    )


def share_of(rows: int, index: int, count: int) -> slice:
    """Return share `index` of `count` shares of a batch; shares differ by at most one row.

    Example:
        >>> [share_of(10, index, 4) for index in range(4)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    size, longer = divmod(rows, count)
    start = index * size + min(index, longer)
    return slice(start, start + size + (index < longer))


def take_rows(batch: Any, rows: slice) -> Any:
    """Return a batch with these rows of every array that has rows."""
    return jax.tree.map(
        lambda leaf: leaf[rows] if getattr(leaf, "ndim", 0) or np.ndim(leaf) > 0 else leaf, batch
    )
