"""What keeps rows apart and what mixes them, on small functions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.parameters.split import Piece, Plan, analyse

KERNEL = jnp.arange(24.0).reshape(4, 6) + 1
SQUARE = jnp.arange(16.0).reshape(4, 4) + 1
TABLE = jnp.arange(4.0)


def plan_of(function: Callable[[Any, Any], Any], leaf: Any = KERNEL, slots: Any = ()) -> Plan:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [function(leaves[0], gradients[0])], slots

    return analyse(update, [leaf], list(slots), names=["w"])


ROW_WISE: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise": lambda w, g: w - 0.1 * jnp.sign(g) * jnp.sqrt(jnp.abs(w)),
    "scalars": lambda w, g: w - jnp.float32(0.5) * g,
    "zeros of its shape": lambda w, g: jnp.maximum(w, jnp.zeros_like(w)) - g,
    "only a constant": lambda w, g: jnp.ones_like(w),
    "reduction over columns": lambda w, g: w - g / jnp.sqrt(jnp.sum(g**2, axis=1, keepdims=True)),
    "mean over columns": lambda w, g: w - (g - g.mean(axis=1)[:, None]),
    "largest column": lambda w, g: w - jnp.argmax(g, axis=1)[:, None].astype(g.dtype),
    "softmax over columns": lambda w, g: w - jax.nn.softmax(g, axis=1),
    "there and back": lambda w, g: (w.T - 2 * g.T).T,
    "new axes": lambda w, g: w - g.reshape(4, 2, 3).sum(axis=1, keepdims=True).repeat(2, 1).reshape(4, 6),
    "broadcast vector": lambda w, g: w - g * jnp.arange(6.0),
    "choice": lambda w, g: jnp.where(g > 0, w, w - g),
    "clamp": lambda w, g: w - jnp.clip(g, -1, 1),
    "sort of columns": lambda w, g: w - jnp.sort(g, axis=1),
    "running sum of columns": lambda w, g: w - jnp.cumsum(g, axis=1),
    "reversed columns": lambda w, g: w - g[:, ::-1],
    "columns cut and joined": lambda w, g: w - jnp.concatenate([g[:, 3:], g[:, :3]], axis=1),
    "padded columns": lambda w, g: w - jnp.pad(g[:, 1:], ((0, 0), (1, 0))),
    "product with a matrix": lambda w, g: w - g @ jnp.ones((6, 6)),
    "product from the left": lambda w, g: w - (jnp.ones((6, 6)) @ g.T).T,
    "batched product": lambda w, g: w - jnp.einsum("ij,ij->i", g, w)[:, None],
    "batched product with a constant": lambda w, g: w - jnp.einsum("ij,ij->i", g, KERNEL)[:, None],
    "branch": lambda w, g: jax.lax.cond(jnp.float32(2) > 1, lambda: w - g, lambda: jnp.zeros_like(w)),
    "a table with a number for each row": lambda w, g: w - g * TABLE[:, None],
    "the number of the row": lambda w, g: w - g * jnp.arange(4.0)[:, None],
    "random bits": lambda w, g: w - g + jax.random.bits(jax.random.key(0), w.shape).astype(w.dtype),
    "custom derivative": lambda w, g: w - jax.nn.relu(g),
    "inner jit": lambda w, g: jax.jit(lambda x: w - x)(g),
}
MIXING: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "sum": (lambda w, g: w - g.sum(), "reduce_sum"),
    "mean over rows": (lambda w, g: w - g.mean(axis=0), "reduce_sum"),
    "norm": (lambda w, g: w - g / jnp.linalg.norm(g), "reduce_sum"),
    "largest": (lambda w, g: w - g / g.max(), "reduce_max"),
    "sort of rows": (lambda w, g: w - jnp.sort(g, axis=0), "sort"),
    "running sum of rows": (lambda w, g: w - jnp.cumsum(g, axis=0), "cumsum"),
    "reversed rows": (lambda w, g: w - g[::-1], "rev"),
    "rows moved": (lambda w, g: w - jnp.roll(g, 1, axis=0), "slice"),
    "flat": (lambda w, g: (w.ravel() - g.ravel()).reshape(w.shape), "reshape"),
    "product over rows": (lambda w, g: w - w @ (g.T @ g), "dot_general"),
    "rows with rows": (lambda w, g: w - (g @ g.T) @ w, "dot_general"),
    "a row picked": (lambda w, g: w - g[0], "slice"),
    "gathered": (lambda w, g: w - g[jnp.array([1, 0, 3, 2])], "gather"),
    "scattered": (lambda w, g: w.at[0].set(g[1]), "slice"),
    "loop": (lambda w, g: jax.lax.fori_loop(0, 3, lambda _, x: x - g, w), "scan"),
    "branch on rows": (lambda w, g: jax.lax.cond(g[0, 0] > 0, lambda: w, lambda: w - g), "slice"),
    "sum in a branch": (
        lambda w, g: jax.lax.cond(jnp.float32(2) > 1, lambda: w - g.sum(), lambda: w),
        "reduce_sum",
    ),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_row_wise(name: str) -> None:
    function = ROW_WISE[name]
    plan = plan_of(function)
    assert plan.whole_because == (None,)
    gradient = jnp.cos(KERNEL)
    expected = function(KERNEL, gradient)
    for start, stop in ((0, 1), (1, 4)):
        (rows,), _ = plan.part([Piece(0, start, stop)]).update(
            [KERNEL[start:stop]], [], [gradient[start:stop]], [], 0
        )
        np.testing.assert_allclose(rows, expected[start:stop], rtol=1e-6)


@pytest.mark.parametrize("name", MIXING)
def test_mixing(name: str) -> None:
    function, primitive = MIXING[name]
    (reason,) = plan_of(function).whole_because
    assert reason is not None
    assert f"`{primitive}` at " in reason
    assert "test_row_analysis.py" in reason


def test_a_transposed_square_leaf_is_not_row_wise() -> None:
    (reason,) = plan_of(lambda w, g: w - g.T, SQUARE).whole_because
    assert reason is not None


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (jnp.float32(1), "it is a scalar"),
        (jnp.ones((1, 4)), "it has 1 row"),
        (jnp.ones((0, 4)), "it has 0 row"),
    ],
)
def test_leaves_without_rows_to_cut(leaf: Any, reason: str) -> None:
    (because,) = plan_of(lambda w, g: w - g, leaf).whole_because
    assert because is not None
    assert because.startswith(reason)


def test_a_leaf_without_columns_can_be_cut() -> None:
    leaf = jnp.ones((4, 0))
    plan = plan_of(lambda w, g: w - g, leaf)
    (new,), _ = plan.part([Piece(0, 1, 3)]).update([leaf[1:3]], [], [leaf[1:3]], [], 0)
    assert new.shape == (2, 0)


def test_python_in_the_optimizer_decides_once_for_the_whole_leaf() -> None:
    def by_size(w: Any, g: Any) -> Any:
        return w - g if w.shape[0] >= 4 else w + g

    plan = plan_of(by_size)
    (new,), _ = plan.part([Piece(0, 0, 2)]).update([KERNEL[:2]], [], [KERNEL[:2]], [], 0)
    np.testing.assert_array_equal(new, jnp.zeros((2, 6)))


def slot_plan(function: Callable[[Any, Any, Any], Any], slot: Any, leaf: Any = SQUARE) -> Plan:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        new_leaf, new_slot = function(leaves[0], slots[0], gradients[0])
        return [new_leaf], [new_slot]

    return analyse(update, [leaf], [slot], names=["w"])


def test_a_slot_with_one_number_for_each_row_follows_rows() -> None:
    plan = slot_plan(lambda w, s, g: (w - g / s[:, None], s + g.sum(axis=1)), jnp.ones(4))
    assert (plan.rows, plan.slot_follows_rows) == ((True,), (True,))
    part = plan.part([Piece(0, 1, 3)])
    assert [(kept.slot, kept.piece, kept.start, kept.stop) for kept in part.slots] == [(0, 0, 1, 3)]


def test_a_slot_with_one_number_for_each_column_does_not() -> None:
    # As many columns as rows, by chance.
    plan = slot_plan(lambda w, s, g: (w - g * s[None, :], s * 0.9), jnp.arange(4.0))
    assert (plan.rows, plan.slot_follows_rows) == ((True,), (False,))
    part = plan.part([Piece(0, 1, 3)])
    (new,), (slot,) = part.update([SQUARE[1:3]], [jnp.arange(4.0)], [SQUARE[1:3]], [], 0)
    np.testing.assert_allclose(new, SQUARE[1:3] * (1 - jnp.arange(4.0)))
    np.testing.assert_allclose(slot, jnp.arange(4.0) * 0.9)


def test_a_square_slot_that_is_multiplied_with_does_not() -> None:
    plan = slot_plan(lambda w, s, g: (w - g @ s, s), SQUARE)
    assert (plan.rows, plan.slot_follows_rows) == ((True,), (False,))
    part = plan.part([Piece(0, 0, 2)])
    (new,), _ = part.update([SQUARE[:2]], [SQUARE], [SQUARE[:2]], [], 0)
    np.testing.assert_allclose(new, (SQUARE - SQUARE @ SQUARE)[:2])


def test_a_slot_that_sums_columns_over_rows_keeps_the_leaf_whole() -> None:
    plan = slot_plan(lambda w, s, g: (w - g * s[None, :], s + g.sum(axis=0)), jnp.ones(4))
    assert plan.whole_because[0] is not None
    assert plan.slot_follows_rows == (False,)


def test_a_slot_that_starts_anew_follows_rows() -> None:
    plan = slot_plan(lambda w, s, g: (w - s, jnp.zeros_like(s)), SQUARE)
    assert plan.slot_follows_rows == (True,)
    _, (slot,) = plan.part([Piece(0, 1, 3)]).update([SQUARE[1:3]], [SQUARE[1:3]], [SQUARE[1:3]], [], 0)
    assert slot.shape == (2, 4)


def test_a_count_of_one_leaf_is_copied_to_its_parts() -> None:
    plan = slot_plan(lambda w, s, g: (w - g / (s + 1), s + 1), jnp.int32(0))
    assert (plan.rows, plan.owner_of_slot, plan.slot_follows_rows) == ((True,), (0,), (False,))
