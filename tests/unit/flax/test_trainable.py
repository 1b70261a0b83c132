"""A Flax model as strategies see it: on one device it trains as plain Flax does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import stratagem as sg
from stratagem.waist import Trainable
from unit.flax.models import Dense, Noisy, batches, drawing_loss_fn, linear, loss_fn, plain, trained

STEPS = 4


def test_it_is_a_trainable() -> None:
    assert isinstance(sg.flax.Trainable(Dense(), loss_fn), Trainable)


def test_one_device_trains_as_plain_flax_does() -> None:
    """Parameters, batch statistics, dropout, optimizer, metrics and predictions."""
    expected = plain("noisy", STEPS)
    found = trained(sg.OneDeviceStrategy(), "noisy", STEPS, with_flax_optimizer=True)
    assert found.pop("step") == STEPS
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_dropout_comes_from_the_steps_key_and_is_reproducible() -> None:
    trainable = sg.flax.Trainable(Noisy(), drawing_loss_fn)
    params, state = trainable.init()
    step = jax.jit(trainable.loss_and_grad)
    keys = [jax.random.key(seed) for seed in (7, 7, 8)]
    one, same, other = (step(params, state, batches(1)[0], key)[0] for key in keys)
    assert one[0] == same[0] != other[0]
    assert one[2]["drawn"] == same[2]["drawn"] != other[2]["drawn"]


def test_names_are_ways_and_what_is_shared_is_there_once() -> None:
    names = sg.flax.Trainable(Dense(), loss_fn).names
    assert list(names) == [
        "blocks.0.bias",
        "blocks.0.kernel",
        "first.bias",
        "first.kernel",
        "last.bias",
        "last.kernel",
    ]


def test_statistics_are_averaged_and_streams_are_each_workers_own() -> None:
    trainable = sg.flax.Trainable(Noisy(), drawing_loss_fn)
    _, state = trainable.init()
    assert len(trainable.kinds) == len(state)
    for kind, each in zip(trainable.kinds, state, strict=True):
        assert kind == ("mean" if jnp.issubdtype(each.dtype, jnp.floating) else "own")
        assert not jnp.issubdtype(each.dtype, jax.dtypes.prng_key), "keys travel as integers"


def test_fetch_writes_into_the_model_itself_and_training_goes_on() -> None:
    model = Dense()
    kernel, shared = model.first.kernel, model.shared
    before = np.array(kernel[...])
    strategy = sg.OneDeviceStrategy()
    trainable = sg.flax.Trainable(model, loss_fn)
    state, step = strategy.init(trainable, optax.sgd(0.1)), strategy.train_step(trainable)
    state, _ = step(state, batches(1)[0])
    np.testing.assert_array_equal(kernel[...], before)
    fetched = strategy.fetch(state)
    assert model.first.kernel is kernel
    assert model.shared is shared is model.blocks[0]
    np.testing.assert_array_equal(kernel[...], fetched.params["first.kernel"])
    assert not np.array_equal(kernel[...], before)
    state, _ = step(state, batches(1)[0])
    assert not np.array_equal(strategy.fetch(state).params["first.kernel"], fetched.params["first.kernel"])


def test_evaluate_and_predict_are_in_eval_mode_and_change_nothing() -> None:
    model: Any = Noisy()
    trainable = sg.flax.Trainable(model, loss_fn)
    params, state = trainable.init()
    batch = batches(1)[0]
    model.eval()
    loss, metrics = loss_fn(model, batch)
    told = trainable.evaluate(params, state, batch)
    assert told.keys() == {"loss", "accuracy"}
    np.testing.assert_allclose(told["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(told["accuracy"], metrics["accuracy"])
    np.testing.assert_allclose(trainable.predict(params, state, batch[0]), model(batch[0]), rtol=1e-6)


def test_a_loss_function_may_ask_for_random_numbers_and_return_the_loss_alone() -> None:
    def noisy_loss(model: Any, batch: Any, rng: jax.Array) -> jax.Array:
        return loss_fn(model, batch)[0] + jax.random.uniform(rng)

    trainable = sg.flax.Trainable(Dense(), noisy_loss)
    params, state = trainable.init()
    step = jax.jit(trainable.loss_and_grad)
    losses = [float(step(params, state, batches(1)[0], jax.random.key(seed))[0][0]) for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


class Frozen(nnx.Module):
    """A model of which one layer is trained."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.base = linear(6, 8, rngs)
        self.head = linear(8, 3, rngs)

    def __call__(self, images: Any) -> Any:
        return self.head(nnx.tanh(self.base(images)))


HEAD = nnx.All(nnx.Param, nnx.PathContains("head"))


def test_parameters_that_are_not_trained_stay_where_they_are() -> None:
    model = Frozen()
    before = nnx.to_pure_dict(nnx.state(model))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=HEAD)
    trainable = sg.flax.Trainable(model, loss_fn, wrt=HEAD)
    assert list(trainable.names) == ["head.bias", "head.kernel"]
    assert list(trainable.kinds) == ["own", "own"]
    strategy = sg.OneDeviceStrategy()
    updater = trainable.updater(optimizer)
    assert updater is not None
    state, step = strategy.init(trainable, updater), strategy.train_step(trainable)
    for batch in batches(2):
        state, _ = step(state, batch)
    strategy.fetch(state)
    assert optimizer.step[...] == 2
    for name in ("bias", "kernel"):
        np.testing.assert_array_equal(getattr(model.base, name)[...], before["base"][name])
        assert not np.array_equal(getattr(model.head, name)[...], before["head"][name])


def test_an_optimizer_of_other_variables_is_refused() -> None:
    model = Frozen()
    with pytest.raises(
        sg.StrategyError, match=r"for head\.bias, head\.kernel; trained are base\.bias.*same\s+filter"
    ):
        sg.flax.Trainable(model, loss_fn).updater(nnx.Optimizer(model, optax.sgd(0.1), wrt=HEAD))


def test_an_optimizer_with_a_model_in_it_is_refused() -> None:
    model = Frozen()
    with pytest.raises(sg.StrategyError, match=r"give an nnx\.Optimizer"):
        sg.flax.Trainable(model, loss_fn).updater(nnx.ModelAndOptimizer(model, optax.sgd(0.1)))


def test_an_optimizer_may_have_random_keys() -> None:
    model = Frozen()
    optimizer = nnx.Optimizer(model, optax.add_noise(1.0, 0.5, key=3), wrt=nnx.Param)
    updater = sg.flax.Trainable(model, loss_fn).updater(optimizer)
    assert updater is not None
    params = jax.tree.leaves(nnx.state(model))
    opt_state = updater.init(params)
    assert not any(jnp.issubdtype(each.dtype, jax.dtypes.prng_key) for each in opt_state)
    grads = [jnp.zeros_like(param) for param in params]
    new, after = jax.jit(updater.update)(params, opt_state, grads)
    assert not np.array_equal(new[0], params[0])
    updater.commit([np.asarray(each) for each in after])
    assert optimizer.step[...] == 1
    assert jnp.issubdtype(optimizer.opt_state.rng_key[...].dtype, jax.dtypes.prng_key)


class Counting(nnx.Module):
    """A model that does what the test says with itself when it is called."""

    def __init__(self, act: Any) -> None:
        self.layer = linear(6, 3, nnx.Rngs(0))
        self.frozen = nnx.LoRAParam(jnp.zeros(2))
        self.act = act

    def __call__(self, images: Any) -> Any:
        self.act(self)
        return self.layer(images)


def run(model: nnx.Module, **options: Any) -> Any:
    trainable = sg.flax.Trainable(model, loss_fn, **options)
    params, state = trainable.init()
    return trainable.loss_and_grad(params, state, batches(1)[0], jax.random.key(0))


LAYER = nnx.PathContains("layer")


def test_writing_to_a_parameter_that_is_not_trained_is_refused() -> None:
    def write(model: Any) -> None:
        model.frozen[...] += 1

    with pytest.raises(sg.StrategyError, match=r"writes to frozen: .*nnx\.Variable"):
        run(Counting(write), wrt=LAYER)


def test_a_variable_that_comes_later_is_refused() -> None:
    def add(model: Any) -> None:
        model.late = nnx.BatchStat(jnp.zeros(1))

    with pytest.raises(sg.StrategyError, match=r"late came\. A model has all its variables from the start"):
        run(Counting(add), wrt=LAYER)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_what_is_left_to_be_looked_at_is_not_kept() -> None:
    model = Counting(lambda model: model.sow(nnx.Intermediate, "seen", jnp.ones(2)))
    model(batches(1)[0][0])
    assert "seen" in nnx.state(model)
    (_, state, _), _ = run(model, wrt=LAYER)
    assert len(state) == 1
    assert "seen" in nnx.state(model), "the user's own stays"


@pytest.mark.parametrize("model", [None, {"w": 1}, Dense, nnx.Rngs(0)])
def test_something_else_is_refused(model: Any) -> None:
    with pytest.raises(sg.StrategyError, match=r"trains a flax\.nnx\.Module, not .*strategy\.train_step"):
        sg.flax.Trainable(model, loss_fn)


def test_a_model_of_linen_is_told_where_to_go() -> None:
    from flax import linen

    with pytest.raises(
        sg.StrategyError, match=r"not flax\.linen\.linear\.Dense\. Flax Linen .* need no front"
    ):
        sg.flax.Trainable(linen.Dense(3), loss_fn)  # type: ignore[arg-type]


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(sg.StrategyError, match=r"no variable .*nothing to train"):
        sg.flax.Trainable(nnx.Dropout(0.5), loss_fn)


def test_a_loss_that_is_no_function_is_refused() -> None:
    with pytest.raises(sg.StrategyError, match=r"loss_fn is 0\.5; give a function loss_fn\(model, batch\)"):
        sg.flax.Trainable(Dense(), 0.5)  # type: ignore[arg-type]


def test_two_variables_of_one_name_are_refused() -> None:
    model = nnx.Dict({"a.b": nnx.Param(jnp.zeros(1)), "a": nnx.Dict({"b": nnx.Param(jnp.zeros(1))})})
    with pytest.raises(sg.StrategyError, match=r"two variables of the model are called 'a\.b'"):
        sg.flax.Trainable(model, loss_fn)
