"""The parts that servers are given: what they hold, what they compute, that they can be shipped."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stratagem.errors import StrategyError
from stratagem.parameters.split import KeptSlot, Part, Piece
from stratagem.runtime.programs import export_program
from unit.parameters.split.training import (
    assert_same,
    assignment,
    setting,
    trained_split,
    trained_whole,
)

MANY = {f"leaf{index:03}": (8, 4) if index % 2 else (8,) for index in range(161)}
ADAM = optax.adam(0.01)


def specs(model: Any, part: Part) -> tuple[list[Any], list[Any]]:
    leaves = [piece.taken_from(model.leaves[piece.leaf]) for piece in part.pieces]
    return leaves, [kept.taken_from(model.slots[kept.slot]) for kept in part.slots]


def equations(part: Part, model: Any, commons: Any = ()) -> int:
    leaves, slots = specs(model, part)
    closed = jax.make_jaxpr(part.update)(leaves, slots, leaves, list(commons), jnp.int32(0))
    return len(closed.jaxpr.eqns)


def test_a_part_holds_only_its_own_equations() -> None:
    model = setting(ADAM, shapes=MANY)
    plan = model.plan()
    assert plan.couplings == ()
    assert all(plan.rows)
    everything = equations(plan.part([Piece(leaf) for leaf in range(161)]), model)
    none, one, two = (equations(plan.part([Piece(leaf) for leaf in range(n)]), model) for n in range(3))
    assert 0 < none < one < two < 0.03 * everything
    whole = plan.part([Piece(5)])
    assert [(kept.slot, kept.piece) for kept in whole.slots] == [(0, None), (6, 0), (167, 0)]
    # The rows of a piece cost the same operations.
    assert equations(plan.part([Piece(0, 2, 5)]), model) <= one + none


def test_pieces_and_the_slots_that_go_with_them() -> None:
    plan = setting(ADAM).plan()
    part = plan.part([Piece(0), Piece(2, 1, 4), Piece(2, 5, 6)])
    assert part.slots == (
        KeptSlot(0, None),
        KeptSlot(1, 0),
        KeptSlot(4, 0),
        KeptSlot(3, 1, 1, 4),
        KeptSlot(6, 1, 1, 4),
        KeptSlot(3, 2, 5, 6),
        KeptSlot(6, 2, 5, 6),
    )


def test_all_rows_are_the_whole_leaf() -> None:
    plan = setting(optax.lamb(0.01)).plan()
    assert plan.part([Piece(1, 0, 6)]).pieces == (Piece(1),)


@pytest.mark.parametrize("optimizer", [ADAM, optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1))])
def test_leaves_that_cannot_be_cut_live_among_others(optimizer: Any) -> None:
    shapes = {"one": (1, 2), "none": (0, 2), "scale": (), "kernel": (6, 2)}
    model = setting(optimizer, shapes=shapes)
    plan = model.plan()
    assert [name for name, cut in zip(model.names, plan.rows, strict=True) if cut] == ["kernel"]
    got = trained_split(plan, model, assignment(plan, model, 3, True), compiled=True)
    assert_same(got, trained_whole(model, compiled=True))


def test_several_pieces_of_one_leaf_on_one_server() -> None:
    model = setting(ADAM)
    plan = model.plan()
    held = [[Piece(1, 4, 6), Piece(0), Piece(1, 0, 2)], [Piece(2), Piece(1, 2, 4)], []]
    assert_same(trained_split(plan, model, held, compiled=True), trained_whole(model, compiled=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Piece(0, 3, 3), "start < stop"),
        (lambda: Piece(0, 1), "starts at 0"),
        (lambda: setting(ADAM).plan().part([Piece(3)]), "leaves are 0 to 2"),
        (lambda: setting(ADAM).plan().part([Piece(0, 3, 7)]), "'bias' has 6 rows"),
        (
            lambda: setting(optax.lamb(0.1)).plan().part([Piece(1, 0, 3)]),
            "'embedding' cannot be cut along axis 0",
        ),
        (lambda: setting(ADAM).plan().part([Piece(0)]).update([], [], [], [], 0), "takes 1 pieces"),
        (lambda: setting(optax.clip_by_global_norm(1)).plan().commons([]), "give all of them"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        make()


def test_commons_need_every_row_once() -> None:
    model = setting(optax.clip_by_global_norm(1.0))
    plan = model.plan()
    upper, rest = plan.part([Piece(1, 0, 3)]), plan.part([Piece(0), Piece(2)])
    shares = [
        (part.pieces, part.partials([piece.taken_from(model.leaves[piece.leaf]) for piece in part.pieces]))
        for part in (upper, rest)
    ]
    with pytest.raises(StrategyError, match="those of all 6 rows are needed"):
        plan.combine(shares)
    with pytest.raises(StrategyError, match="those of all 6 rows are needed"):
        plan.combine([*shares, shares[0]])
    with pytest.raises(StrategyError, match="belong to none of the pieces"):
        plan.combine([(upper.pieces, [*shares[0][1], jnp.float32(0)])])
    with pytest.raises(StrategyError, match="0 were given"):
        upper.update([model.leaves[1][:3]], [], [model.leaves[1][:3]], [], 0)


def test_parts_can_be_shipped() -> None:
    model = setting(
        optax.apply_if_finite(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, 0.9)), 3)
    )
    plan = model.plan()
    part = plan.part([Piece(0), Piece(2, 2, 6)])
    leaves, slots = specs(model, part)
    commons = plan.commons(model.leaves)
    step = jnp.int32(0)
    program = export_program(part.update, leaves, slots, leaves, commons, step)
    assert len(program.outputs) == len(leaves) + len(slots)
    run = jax.jit(jax.export.deserialize(bytearray(program.artifact)).call)
    got = run(*program.flatten(leaves, slots, leaves, commons, step))
    expected = jax.tree.leaves(part.update(leaves, slots, leaves, commons, step))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert export_program(part.partials, leaves).outputs
    assert export_program(plan.commons, model.leaves).outputs
