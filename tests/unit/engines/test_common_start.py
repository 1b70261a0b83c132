"""What workers compare before they train in step: the names of parameters, and what their optimizers do."""

from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest

from stratagem.engines.common_start import check_changes, check_names, trial_changes
from stratagem.errors import StrategyError
from stratagem.waist import TrainState, new_state

SMALL = {"b": np.zeros(2, np.float16), "w": np.zeros((3, 2), np.float32)}


def compare(*states: TrainState) -> None:
    check_changes([trial_changes(state) for state in states], states[0].recipe.names)


def clipped(norm: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(norm), optax.adam(1e-3))


def warmed_up(rate: float) -> optax.GradientTransformation:
    return optax.sgd(optax.warmup_cosine_decay_schedule(0.0, rate, 100, 1000))


def by_name(rate: float) -> optax.GradientTransformation:
    rules = {"slow": optax.sgd(0.1), "fast": optax.adam(rate)}
    return optax.multi_transform(rules, {"b": "slow", "w": "fast"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (optax.sgd(0.01), optax.sgd(0.2)),
        (optax.sgd(0.1), optax.sgd(-0.1)),
        (optax.sgd(0.1, momentum=0.9), optax.sgd(0.1, momentum=0.8)),
        (optax.adam(1e-3), optax.adam(1e-3, b1=0.8)),
        (optax.adam(1e-3), optax.adam(1e-3, b2=0.99)),
        (optax.adam(1e-3), optax.adam(1e-3, eps=1e-7)),
        (optax.adamw(1e-3), optax.adamw(1e-3, weight_decay=2e-4)),
        (clipped(1.0), clipped(5.0)),
        (warmed_up(0.1), warmed_up(0.2)),
        (by_name(0.1), by_name(0.2)),
    ],
    ids=["rate", "sign", "momentum", "b1", "b2", "epsilon", "decay", "clipping", "schedule", "by name"],
)
def test_settings_show_in_what_an_optimizer_does(one: Any, other: Any) -> None:
    compare(new_state(SMALL, one), new_state(SMALL, one))
    with pytest.raises(
        StrategyError, match="the optimizer of worker 1 does not do what that of worker 0 does"
    ):
        compare(new_state(SMALL, one), new_state(SMALL, other))


def test_of_many_parameters_some_of_each_kind_are_tried() -> None:
    many = {f"layer {number:02}": SMALL for number in range(20)}

    def decayed(rate: float) -> optax.GradientTransformation:
        mask = {name: {"b": False, "w": True} for name in many}
        return optax.chain(optax.add_decayed_weights(rate, mask), optax.sgd(0.1))

    one, other = (trial_changes(new_state(many, decayed(rate))) for rate in (1e-4, 2e-4))
    assert 0 < one.shape[1] < 40
    differ = (np.abs(one - other) > 1e-6).any(axis=0)
    assert differ.any()
    assert not differ.all()


def test_settings_that_are_kept_in_the_state_are_those_of_worker_0() -> None:
    first, second = (
        new_state(SMALL, optax.inject_hyperparams(optax.sgd)(learning_rate=rate)) for rate in (0.1, 0.2)
    )
    with pytest.raises(StrategyError):
        compare(first, second)
    compare(first, replace(second, flat_opt_state=first.flat_opt_state))


def test_a_trial_leaves_the_optimizer_as_it_was() -> None:
    state = new_state(SMALL | {str(number): np.float32(0) for number in range(30)}, optax.adam(0.1))
    assert trial_changes(state).size
    after = state.updated(state.flat_params, [])
    assert [each.shape for each in after.flat_opt_state] == [each.shape for each in state.flat_opt_state]
    assert [each.dtype for each in after.flat_opt_state] == [each.dtype for each in state.flat_opt_state]


def test_an_optimizer_that_cannot_be_tried_is_not_compared() -> None:
    searching = trial_changes(new_state(SMALL, optax.lbfgs()))
    assert searching.size == 0
    names = ["b", "w"]
    check_changes([searching, searching], names)
    tried = trial_changes(new_state(SMALL, optax.sgd(0.1)))
    check_changes([searching, tried, tried], names)
    with pytest.raises(
        StrategyError, match="the optimizer of worker 2 does not do what that of worker 1 does"
    ):
        check_changes([searching, tried, 2 * tried], names)


def test_what_differs_between_processors_is_let_pass() -> None:
    changes = trial_changes(new_state(SMALL, optax.adam(1e-3)))
    check_changes([changes, changes * np.float32(1.005), changes + np.float32(1e-11)], ["b", "w"])
    nothing = np.full_like(changes, np.nan)
    check_changes([nothing, nothing], ["b", "w"])
    with pytest.raises(StrategyError, match="the optimizer of worker 1, 3"):
        check_changes([changes, changes * 2, changes, nothing], ["b", "w"])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([["w"], ["v"], ["w"]], "of worker 1 .* not all have w on workers 0, 2, v on worker 1"),
        ([["a", "b"], ["a"]], "of worker 1 .* not all have b on worker 0"),
        ([["a", "b"], ["b", "a"]], "of worker 1 .* they come in another order"),
        ([[], list("abcdefg")], "not all have a, b, c, d, e and 2 more on worker 1"),
    ],
)
def test_names_that_not_all_have(told: list[list[str]], message: str) -> None:
    check_names([told[0], told[0]])
    with pytest.raises(StrategyError, match=message):
        check_names(told)
