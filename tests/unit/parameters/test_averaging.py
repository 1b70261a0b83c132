"""Several pushes make the update that their mean, by rows, would make."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.parameters.versions import AveragedUpdate
from stratagem.runtime.programs import ProgramCache, export_program

SHAPES = ((3, 4), (5,))


@pytest.fixture(scope="module")
def cache() -> Iterator[ProgramCache]:
    with ProgramCache() as programs:
        yield programs


def arrays(seed: int, dtype: Any) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in SHAPES]


def update(*given: Any) -> Any:
    """Momentum: two leaves and their two slots, two gradients, and the step."""
    leaves, gradients, step = given[:2], given[4:6], given[6]
    slots = [0.5 * slot + gradient for slot, gradient in zip(given[2:4], gradients, strict=True)]
    rate = 0.1 / (1 + step)
    return (
        *(leaf - (rate * slot).astype(leaf.dtype) for leaf, slot in zip(leaves, slots, strict=True)),
        *slots,
    )


@pytest.mark.parametrize("rows", [(100, 100), (1, 7, 92), (10, 20, 30, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("donated", [(), (0, 1, 2, 3)])
def test_the_mean_by_rows(
    cache: ProgramCache, rows: tuple[int, ...], dtype: Any, donated: tuple[int, ...]
) -> None:
    values, pushes = (
        [*arrays(1, dtype), *arrays(2, dtype)],
        [arrays(10 + number, dtype) for number in range(len(rows))],
    )
    program = export_program(update, *values, *pushes[0], np.int32(0))
    averaged = AveragedUpdate(cache.load(program.artifact, donate=donated), len(values), len(SHAPES))
    held = [jnp.array(value) for value in values]
    for step in range(3):
        before = held
        held = averaged(held, rows, pushes, [np.int32(step)])
        assert [each.is_deleted() for each in before] == [index in donated for index in range(4)]
        weights = np.array(rows) / sum(rows)
        mean = [
            sum(
                weight * each.astype(np.float64) for weight, each in zip(weights, column, strict=True)
            ).astype(dtype)
            for column in zip(*pushes, strict=True)
        ]
        values = [np.asarray(each) for each in update(*map(jnp.asarray, (*values, *mean)), np.int32(step))]
        for found, expected in zip(held, values, strict=True):
            assert found.dtype == dtype
            np.testing.assert_allclose(
                found, expected, rtol=1e-5 if dtype == np.float32 else 4e-3, atol=1e-3 * (dtype == np.float16)
            )
