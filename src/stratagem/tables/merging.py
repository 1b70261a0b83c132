"""The gradients of several pushes, as those of one."""

from collections.abc import Sequence

import numpy as np

from stratagem.runtime.wire.arrays import Array


def merged(pushes: Sequence[tuple[int, Array, Array]]) -> tuple[Array, Array]:
    """All ids of some pushes, each once, and the means of their gradients over all examples, in the order of the pushes.

    Args:
        pushes: Of each the number of examples, the ids, each once, and their gradients.
    """
    if len(pushes) == 1:
        return pushes[0][1:]
    ids, places = np.unique(np.concatenate([ids for _, ids, _ in pushes]), return_inverse=True)
    first = pushes[0][2]
    sums = np.zeros((len(ids), *first.shape[1:]), np.promote_types(first.dtype, np.float32))
    examples = sum(count for count, _, _ in pushes)
    start = 0
    for count, own, gradients in pushes:
        sums[places[start : start + len(own)]] += gradients * np.float32(count / examples)
        start += len(own)
    return ids, sums.astype(first.dtype)
