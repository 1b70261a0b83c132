"""What leaves share, who owns slots, and what is refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import StrategyError
from stratagem.parameters.split import MOST_ELEMENTS, Piece, Plan, analyse

W, B = jnp.arange(12.0).reshape(6, 2), jnp.arange(3.0)
NAMES = ["w", "b"]


def plan_of(
    update: Callable[..., Any], slots: list[Any] | None = None, leaves: Any = (W, B), **options: Any
) -> Plan:
    return analyse(update, list(leaves), slots or [], names=NAMES, **options)


def halves(plan: Plan) -> tuple[Any, Any]:
    """The leaf w over two servers, b on the second."""
    return plan.part([Piece(0, 0, 4)]), plan.part([Piece(1), Piece(0, 4, 6)])


@pytest.mark.parametrize(
    "reduction", [jnp.sum, jnp.max, jnp.min, lambda x: jnp.all(x > 0), lambda x: jnp.any(x > 3)]
)
def test_reductions_of_cut_leaves_are_put_together(reduction: Callable[[Any], Any]) -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        common = jnp.stack([reduction(gradient) for gradient in gradients]).astype(jnp.float32).sum()
        return [leaf - common * gradient for leaf, gradient in zip(leaves, gradients, strict=True)], slots

    plan = plan_of(update)
    assert plan.rows == (True, True)
    first, second = halves(plan)
    gradients = [W + 1, B - 1]
    own = [gradients[0][:4]], [gradients[1], gradients[0][4:]]
    # Servers may report in any order.
    commons = plan.combine([(second.pieces, second.partials(own[1])), (first.pieces, first.partials(own[0]))])
    for one, other in zip(commons, plan.commons(gradients), strict=True):
        np.testing.assert_allclose(one, other)
    (expected_w, expected_b), _ = update([W, B], [], gradients, 0)
    (new_b, new_w), _ = second.update([B, W[4:]], [], own[1], commons, 0)
    np.testing.assert_allclose(new_w, expected_w[4:])
    np.testing.assert_allclose(new_b, expected_b)


def test_partials_are_small_and_commons_few() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        norm = jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in gradients))
        return [leaf - gradient / norm for leaf, gradient in zip(leaves, gradients, strict=True)], slots

    plan = plan_of(update)
    assert plan.num_commons == 1
    assert [len(plan.part([Piece(leaf)]).partials([value])) for leaf, value in enumerate([W, B])] == [1, 1]
    (coupling,) = plan.couplings
    assert "'w', 'b'" in coupling
    assert "test_analysis.py" in coupling


def test_one_leaf_may_use_a_number_of_another_ones_gradient() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [leaves[0] - gradients[0] * gradients[1].sum(), leaves[1] - gradients[1]], slots

    plan = plan_of(update)
    first, _ = halves(plan)
    (new,), _ = first.update([W[:4]], [], [W[:4]], plan.commons([W, B]), 0)
    np.testing.assert_allclose(new, (W - W * 3)[:4])


def test_leaves_that_share_nothing_have_no_commons() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [leaf - gradient / (1 + step) for leaf, gradient in zip(leaves, gradients, strict=True)], slots

    plan = plan_of(update)
    first, _ = halves(plan)
    assert (plan.couplings, plan.num_commons) == ((), 0)
    assert first.partials([W[:4]]) == []
    assert plan.combine([]) == plan.commons([W, B]) == []


def test_owners_of_slots() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        count, own_count, momentum, unused, of_norm, shadow = slots
        finite = jnp.isfinite(gradients[0]).all() & jnp.isfinite(gradients[1]).all()
        momentum = 0.9 * momentum + gradients[1]
        w = leaves[0] - gradients[0] / (count + own_count)
        b = jnp.where(finite, leaves[1] - momentum / count, leaves[1])
        return [w, b], [
            count + 1,
            own_count + 1,
            momentum,
            unused * 2,
            of_norm + finite,
            shadow * 0.9 + w * 0.1,
        ]

    slots = [jnp.float32(1), jnp.float32(1), B, jnp.float32(1), jnp.int32(0), W]
    plan = plan_of(update, slots)
    assert plan.owner_of_slot == (None, 0, 1, None, None, 0)
    assert plan.slot_follows_rows == (False, False, True, False, False, True)


def refused(update: Callable[..., Any], slots: list[Any] | None = None, leaves: Any = (W, B)) -> str:
    with pytest.raises(StrategyError) as refusal:
        plan_of(update, slots, leaves)
    message = str(refusal.value)
    assert "Use one parameter server" in message
    return message


def test_a_leaf_that_uses_another_leaf_is_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [leaves[0] - leaves[1].sum() * gradients[0], leaves[1] - gradients[1]], slots

    message = refused(update)
    assert "'w', 'b' depend on one another" in message
    assert "`mul` at" in message
    assert "test_analysis.py" in message


def test_a_slot_of_one_leaf_that_another_uses_is_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        momentum = slots[0] + leaves[1].sum()
        return [leaves[0] - gradients[0] * slots[0], leaves[1] - gradients[1]], [momentum]

    assert "'w', 'b' depend on one another" in refused(update, [jnp.float32(0)])


def test_leaves_that_meet_only_after_several_steps_are_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        first, second = slots
        return [leaves[0] - second * gradients[0], leaves[1] - gradients[1]], [leaves[1].sum(), first]

    assert "depend on one another" in refused(update, [jnp.float32(0), jnp.float32(0)])


def test_swapped_leaves_are_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [leaves[1], leaves[0]], slots

    assert "depend on one another" in refused(update, leaves=(W, W))


def test_one_slot_for_two_leaves_is_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        momentum = slots[0] + gradients[0] + gradients[1]
        return [leaf - momentum for leaf in leaves], [momentum]

    assert "'w', 'b' depend on one another" in refused(update, [B], (B, B))


def test_more_than_a_few_numbers_are_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        flat = jnp.concatenate([gradient.ravel() for gradient in gradients])
        return [leaf - jnp.linalg.norm(flat) * leaf for leaf in leaves], slots

    message = refused(update, leaves=(jnp.zeros((MOST_ELEMENTS, 2)), B))
    assert f"{2 * MOST_ELEMENTS} numbers of 'w'" in message
    assert "`concatenate` at" in message


def test_branches_and_scans_are_looked_into() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        def small_steps(carry: Any, _: Any) -> Any:
            return [value - 0.1 * gradient for value, gradient in zip(carry, gradients, strict=True)], None

        leaves = jax.lax.cond(step > 3, lambda: leaves, lambda: [leaf * 2 for leaf in leaves])
        return jax.lax.scan(small_steps, leaves, None, length=3)[0], slots

    plan = plan_of(update)
    assert plan.couplings == ()
    # Loops are not followed row by row.
    assert plan.rows == (False, False)
    (new,), _ = plan.part([Piece(1)]).update([B], [], [B], [], jnp.int32(0))
    np.testing.assert_allclose(new, 2 * B - 0.3 * B, rtol=1e-6)


def test_a_while_loop_over_all_leaves_is_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        _, leaves = jax.lax.while_loop(
            lambda carry: carry[0] < 3,
            lambda carry: (carry[0] + 1, [leaf * 0.9 for leaf in carry[1]]),
            (step, leaves),
        )
        return leaves, slots

    assert "`while` at" in refused(update)


def test_callbacks_are_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        jax.debug.print("{}", step)
        return leaves, slots

    with pytest.raises(StrategyError, match=r"leave out jax\.debug\.print"):
        plan_of(update)


def test_an_update_that_changes_a_dtype_is_refused() -> None:
    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [leaves[0], leaves[1].astype(jnp.bfloat16)], slots

    with pytest.raises(StrategyError, match="variable 1 from float32"):
        plan_of(update)


def test_integers_are_leaves_too() -> None:
    counts = jnp.arange(4)

    def update(leaves: Any, slots: Any, gradients: Any, step: Any) -> Any:
        return [leaf + gradient for leaf, gradient in zip(leaves, gradients, strict=True)], slots

    plan = plan_of(update, leaves=(counts, B))
    (new,), _ = plan.part([Piece(0, 2, 4)]).update([counts[2:]], [], [counts[2:]], [], 0)
    np.testing.assert_array_equal(new, [4, 6])
