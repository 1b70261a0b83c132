"""Every optimizer gives the same numbers split over servers as whole, is kept whole, or is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from stratagem.errors import StrategyError
from unit.parameters.split.training import (
    SHAPES,
    STEPS,
    Setting,
    assert_same,
    assignment,
    setting,
    trained_split,
    trained_whole,
)

RATE = 0.01
MATRICES = {name: len(shape) > 1 for name, shape in SHAPES.items()}
ALL, BIAS, NONE = ("bias", "embedding", "kernel"), ("bias",), ()


@dataclass(frozen=True)
class Case:
    """An optimizer, and what can be done with it.

    Attributes:
        make: Makes it.
        cut: The leaves that may be cut by rows.
        coupled: Whether leaves share something through their gradients.
        compiled: Run it compiled: branches are slow one operation at a time.
        extras: Keep moving averages of the parameters too, and a leaf that is only added to.
    """

    make: Callable[[], optax.GradientTransformation]
    cut: tuple[str, ...] = ALL
    coupled: bool = False
    compiled: bool = False
    extras: bool = False


def clipped(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(0.5), inner)


def every_other(inner: optax.GradientTransformation, **options: Any) -> optax.GradientTransformation:
    return optax.MultiSteps(inner, 2, **options).gradient_transformation()


SEPARABLE = {
    "sgd": Case(lambda: optax.sgd(RATE)),
    "momentum": Case(lambda: optax.sgd(RATE, 0.9), extras=True),
    "nesterov": Case(lambda: optax.sgd(RATE, 0.9, nesterov=True)),
    "adam": Case(lambda: optax.adam(RATE), extras=True),
    "adamw with a schedule": Case(lambda: optax.adamw(optax.cosine_decay_schedule(RATE, 10))),
    "adamw with a mask": Case(lambda: optax.adamw(RATE, mask=MATRICES)),
    "nadam": Case(lambda: optax.nadam(RATE)),
    "adamax": Case(lambda: optax.adamax(RATE)),
    "amsgrad": Case(lambda: optax.amsgrad(RATE)),
    "adabelief": Case(lambda: optax.adabelief(RATE)),
    "adagrad": Case(lambda: optax.adagrad(RATE)),
    "adadelta": Case(lambda: optax.adadelta(RATE)),
    "rmsprop": Case(lambda: optax.rmsprop(RATE, centered=True, momentum=0.9)),
    "lion": Case(lambda: optax.lion(RATE)),
    "yogi": Case(lambda: optax.yogi(RATE)),
    "radam": Case(lambda: optax.radam(RATE)),
    "rprop": Case(lambda: optax.rprop(RATE)),
    "adan": Case(lambda: optax.adan(RATE)),
    "optimistic": Case(lambda: optax.optimistic_gradient_descent(RATE)),
    "sign_sgd": Case(lambda: optax.sign_sgd(RATE)),
    "schedule_free": Case(lambda: contrib.schedule_free_sgd(RATE)),
    "cocob": Case(lambda: contrib.cocob(RATE)),
    "ademamix": Case(lambda: contrib.ademamix(RATE)),
    "adopt": Case(lambda: contrib.adopt(RATE)),
    "madgrad": Case(lambda: contrib.madgrad(RATE)),
    "sam": Case(lambda: contrib.sam(optax.sgd(RATE), optax.sgd(RATE), sync_period=2)),
    "clip": Case(lambda: optax.chain(optax.clip(0.1), optax.sgd(RATE))),
    "centralize": Case(lambda: optax.chain(optax.centralize(), optax.sgd(RATE))),
    "ema": Case(lambda: optax.chain(optax.ema(0.9), optax.sgd(RATE))),
    "masked": Case(lambda: optax.masked(optax.adam(RATE), MATRICES)),
    "partition": Case(
        lambda: optax.partition(
            {True: clipped(optax.sgd(RATE)), False: optax.adam(RATE)},
            MATRICES,
        ),
        coupled=True,
    ),
    "inject_hyperparams": Case(
        lambda: optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(RATE, 0, 10))
    ),
    "MultiSteps": Case(lambda: every_other(optax.sgd(RATE, 0.9)), compiled=True),
    # Every part draws the noise of the whole leaf and takes its rows.
    "add_noise": Case(lambda: optax.noisy_sgd(RATE, key=1), compiled=True),
    # What leaves share comes from gradients alone.
    "clip_by_global_norm": Case(lambda: clipped(optax.adam(RATE)), coupled=True, extras=True),
    "normalized": Case(lambda: optax.chain(optax.normalize_by_update_norm(), optax.adam(RATE)), coupled=True),
    "injected clip": Case(
        lambda: optax.inject_hyperparams(
            lambda learning_rate, norm: optax.chain(
                optax.clip_by_global_norm(norm), optax.adam(learning_rate)
            )
        )(RATE, 0.5),
        coupled=True,
    ),
    "apply_if_finite": Case(
        lambda: optax.apply_if_finite(optax.sgd(RATE, 0.9), 3), coupled=True, compiled=True
    ),
    "apply_if_finite of clip": Case(
        lambda: optax.apply_if_finite(clipped(optax.sgd(RATE, 0.9)), 3), coupled=True, compiled=True
    ),
    "clip before MultiSteps": Case(
        lambda: clipped(every_other(optax.sgd(RATE, 0.9))), coupled=True, compiled=True
    ),
    "MultiSteps that skips": Case(
        lambda: every_other(optax.sgd(RATE), should_skip_update_fn=optax.skip_not_finite),
        coupled=True,
        compiled=True,
    ),
    # These mix rows: norms, means and products over a leaf.
    "lars": Case(lambda: optax.lars(RATE), NONE),
    "lamb": Case(lambda: optax.lamb(RATE), NONE, extras=True),
    "novograd": Case(lambda: optax.novograd(RATE), NONE),
    "fromage": Case(lambda: optax.fromage(RATE), NONE),
    "adafactor": Case(lambda: optax.adafactor(RATE, min_dim_size_to_factor=4), NONE),
    "clip_by_block_rms": Case(lambda: optax.chain(optax.clip_by_block_rms(0.5), optax.sgd(RATE)), NONE),
    "adaptive_grad_clip": Case(lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(RATE)), NONE),
    "zero_nans": Case(lambda: optax.chain(optax.zero_nans(), optax.sgd(RATE)), NONE),
    "sm3": Case(lambda: optax.sm3(RATE), BIAS),
    "muon": Case(lambda: contrib.muon(RATE, ns_steps=2), BIAS, compiled=True),
    # Small enough here for whole gradients to count as what leaves share; large ones are refused.
    "flatten": Case(lambda: optax.flatten(optax.adam(RATE)), NONE, coupled=True),
    "clip twice": Case(lambda: clipped(clipped(optax.sgd(RATE))), NONE, coupled=True),
}
# Leaves depend on one another through more than gradients, in the function named.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "prodigy": (lambda: contrib.prodigy(RATE), "prodigy"),
    "dadapt_adamw": (lambda: contrib.dadapt_adamw(RATE), "dadapt_adamw"),
    "dog": (lambda: contrib.dog(RATE), "dog"),
    "dowg": (lambda: contrib.dowg(RATE), "dowg"),
    "mechanize": (lambda: contrib.mechanize(optax.adam(RATE)), "mechanize"),
    "lbfgs": (lambda: optax.lbfgs(RATE, linesearch=None), "scale_by_lbfgs"),
    "norm of the update": (
        lambda: optax.chain(optax.adam(RATE), optax.normalize_by_update_norm()),
        "normalize_by_update_norm",
    ),
    "clip of accumulated gradients": (lambda: every_other(clipped(optax.adam(RATE))), "clip_by_global_norm"),
}


@pytest.mark.parametrize("name", SEPARABLE)
def test_split_is_the_same_as_whole(name: str) -> None:
    case = SEPARABLE[name]
    model = setting(case.make(), extras=case.extras)
    plan = model.plan()
    cuttable = tuple(leaf for leaf, cut in zip(model.names, plan.rows, strict=True) if cut)
    assert cuttable == ((*case.cut, "statistics") if case.extras else case.cut)
    assert bool(plan.num_commons) == bool(plan.couplings) == case.coupled
    whole = trained_whole(model, case.compiled)
    for servers, cut in ((3, True),) if case.compiled else ((2, False), (3, True)):
        held = assignment(plan, model, servers, cut)
        assert_same(trained_split(plan, model, held, case.compiled), whole)


@pytest.mark.parametrize(("servers", "cut"), [(1, False), (2, False), (2, True), (3, False)])
def test_compiled_split_is_the_same_as_whole(servers: int, cut: bool) -> None:
    model = setting(SEPARABLE["clip_by_global_norm"].make(), extras=True)
    plan = model.plan()
    got = trained_split(plan, model, assignment(plan, model, servers, cut), compiled=True)
    assert_same(got, trained_whole(model))


@pytest.mark.parametrize("name", ["momentum", "adam", "rmsprop", "lion"])
def test_the_number_of_servers_does_not_change_a_bit(name: str) -> None:
    model = setting(SEPARABLE[name].make(), extras=True)
    plan = model.plan()
    alone = trained_split(plan, model, assignment(plan, model, 1, False))
    cut = trained_split(plan, model, assignment(plan, model, 3, True))
    for one, other in zip(alone[0] + alone[1], cut[0] + cut[1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_place_where_leaves_meet(name: str) -> None:
    make, function = REFUSED[name]
    model = setting(make())
    with pytest.raises(StrategyError) as refusal:
        model.plan()
    message = str(refusal.value)
    assert "'bias', 'embedding', 'kernel' depend on one another" in message
    assert f"{function}.<locals>" in message
    assert "Use one parameter server" in message


@pytest.mark.parametrize("name", ["norm of the update", "dog"])
def test_one_server_takes_what_cannot_be_split(name: str) -> None:
    model = setting(REFUSED[name][0](), extras=True)
    plan = model.plan(servers=1)
    assert plan.inseparable is not None
    assert plan.couplings == (plan.inseparable,)
    assert_same(trained_split(plan, model, assignment(plan, model, 1, False)), trained_whole(model))
    with pytest.raises(StrategyError, match="Only one server"):
        plan.part(assignment(plan, model, 2, False)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.lamb(RATE),
        lambda: optax.lars(RATE, weight_decay=0.1),
        lambda: optax.adafactor(RATE, min_dim_size_to_factor=2),
        lambda: contrib.muon(RATE, ns_steps=2),
    ],
    ids=["lamb", "lars", "adafactor", "muon"],
)
def test_a_cut_of_rows_that_is_not_allowed_would_be_wrong(make: Callable[[], Any]) -> None:
    """What the optimizer makes of the upper half alone is far from the upper half of what it makes."""
    model = setting(make(), shapes={"kernel": (6, 6)})
    assert model.plan().rows == (False,)
    (whole,), _ = trained_whole(model, compiled=True)
    half = setting(make(), shapes={"kernel": (3, 6)})
    upper = Setting(half.update, [model.leaves[0][:3]], half.slots, half.names)
    leaves, slots = upper.leaves, upper.slots
    update = jax.jit(upper.update)
    for step in range(STEPS):
        leaves, slots = update(leaves, slots, [model.gradients(step)[0][:3]], jnp.int32(step))
    moved = float(jnp.abs(whole[:3] - model.leaves[0][:3]).max())
    assert float(jnp.abs(leaves[0] - whole[:3]).max()) > 0.01 * moved
