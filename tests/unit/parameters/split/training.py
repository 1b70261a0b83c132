"""Trains a small model whole, and split over servers, with any optax optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stratagem.devices import row_ranges
from stratagem.parameters.split import Part, Piece, Plan, Update, analyse
from stratagem.waist.averages import ExponentialMovingAverage
from stratagem.waist.optimizers import OptaxUpdater

SHAPES = {"bias": (6,), "embedding": (6, 6), "kernel": (6, 6)}
"""As many rows as columns: nothing may take the ones for the others. Few shapes: less to compile."""
STEPS = 5


def arrays(seed: int, shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in shapes]


@dataclass(frozen=True)
class Setting:
    """A whole update, its first values, and what it is called with."""

    update: Update
    leaves: list[Any]
    slots: list[Any]
    names: list[str]

    def plan(self, servers: int | None = None) -> Plan:
        return analyse(self.update, self.leaves, self.slots, names=self.names, servers=servers)

    def gradients(self, step: int) -> list[Any]:
        return arrays(100 + step, [leaf.shape for leaf in self.leaves])


def setting(
    optimizer: optax.GradientTransformation,
    extras: bool = False,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
) -> Setting:
    """An optimizer over a small model; with `extras`, moving averages and a leaf that is only added to."""
    params = dict(zip(shapes, arrays(0, list(shapes.values())), strict=True))
    leaves, tree = jax.tree.flatten(params)
    updater = OptaxUpdater(optimizer, tree)
    names = sorted(shapes)
    state = updater.init(leaves)
    keys = [jnp.issubdtype(slot.dtype, jax.dtypes.prng_key) for slot in state]
    # Typed keys have no form on the wire.
    state = [jax.random.key_data(slot) if key else slot for key, slot in zip(keys, state, strict=True)]

    def plain(values: list[Any], slots: list[Any], gradients: list[Any], step: Any) -> Any:
        typed = [
            jax.random.wrap_key_data(slot) if key else slot for key, slot in zip(keys, slots, strict=True)
        ]
        new, after = updater.update(values, typed, gradients)
        return new, [
            jax.random.key_data(slot) if key else slot for key, slot in zip(keys, after, strict=True)
        ]

    if not extras:
        return Setting(plain, leaves, state, names)
    ema, count = ExponentialMovingAverage(0.9), len(leaves)

    def full(values: list[Any], slots: list[Any], gradients: list[Any], step: Any) -> Any:
        new, new_state = plain(values[:count], slots[:-count], gradients[:count], step)
        shadows = ema.update(slots[-count:], new, num_updates=step + 1)
        statistics = values[count] + gradients[count]
        return [*new, statistics], [*new_state, *shadows]

    return Setting(full, [*leaves, jnp.ones(6)], [*state, *ema.init(leaves)], [*names, "statistics"])


def assignment(plan: Plan, setting: Setting, servers: int, cut: bool) -> list[list[Piece]]:
    """Leaves dealt out to servers; those that may be cut, by rows over all servers."""
    held: list[list[Piece]] = [[] for _ in range(servers)]
    for leaf, value in enumerate(setting.leaves):
        if cut and plan.rows[leaf] and value.shape[0] >= servers > 1:
            for server, rows in enumerate(row_ranges(value.shape[0], servers)):
                held[server].append(Piece(leaf, rows.start, rows.stop))
        else:
            held[leaf % servers].append(Piece(leaf))
    return held


def trained_whole(setting: Setting, compiled: bool = False) -> tuple[list[Any], list[Any]]:
    leaves, slots = setting.leaves, setting.slots
    update = jax.jit(setting.update) if compiled else setting.update
    for step in range(STEPS):
        leaves, slots = update(leaves, slots, setting.gradients(step), jnp.int32(step))
    return leaves, slots


def trained_split(
    plan: Plan, setting: Setting, held: list[list[Piece]], compiled: bool = False
) -> tuple[list[Any], list[Any]]:
    parts = [plan.part(pieces) for pieces in held]

    def update(state: Any, gradients: list[Any], step: Any) -> Any:
        taken = [[piece.taken_from(gradients[piece.leaf]) for piece in pieces] for pieces in held]
        pairs = list(zip(parts, taken, strict=True))
        commons = plan.combine([(part.pieces, part.partials(own)) for part, own in pairs])
        new = [
            part.update(leaves, slots, own, commons, step)
            for (part, own), (leaves, slots) in zip(pairs, state, strict=True)
        ]
        return new, commons, plan.commons(gradients)

    run = jax.jit(update) if compiled else update
    state: Any = [
        (
            [piece.taken_from(setting.leaves[piece.leaf]) for piece in part.pieces],
            [kept.taken_from(setting.slots[kept.slot]) for kept in part.slots],
        )
        for part in parts
    ]
    for step in range(STEPS):
        state, commons, at_once = run(state, setting.gradients(step), jnp.int32(step))
        for one, other in zip(commons, at_once, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    return gathered(setting, parts, state)


def gathered(setting: Setting, parts: Sequence[Part], state: Any) -> tuple[list[Any], list[Any]]:
    """Whole leaves and slots from those of all servers; copies must agree."""
    leaves: list[Any] = [None] * len(setting.leaves)
    slots: list[Any] = [None] * len(setting.slots)
    for part, (own_leaves, own_slots) in zip(parts, state, strict=True):
        for piece, value in zip(part.pieces, own_leaves, strict=True):
            leaves[piece.leaf] = _put(leaves[piece.leaf], value, piece, setting.leaves[piece.leaf])
        for kept, value in zip(part.slots, own_slots, strict=True):
            slots[kept.slot] = _put(slots[kept.slot], value, kept, setting.slots[kept.slot])
    return leaves, slots


def _put(whole: Any, value: Any, place: Any, like: Any) -> Any:
    value = np.asarray(value)
    if place.stop is None:
        if whole is not None:
            np.testing.assert_array_equal(whole, value)
        return value
    whole = np.full(like.shape, 0, like.dtype) if whole is None else whole
    whole[place.start : place.stop] = value
    return whole


def assert_same(got: tuple[list[Any], list[Any]], expected: tuple[list[Any], list[Any]]) -> None:
    for some, others in zip(got, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
