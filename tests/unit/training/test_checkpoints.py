"""Checkpoints of strategies in one process: what is in them, which stay, and what is said of those that cannot be read."""

import logging
import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

import stratagem as sg

BATCH = np.arange(24, dtype=np.float32).reshape(6, 4) / 24


def loss_fn(params: Any, batch: Any) -> Any:
    return jnp.mean((batch @ params["dense"]["kernel"].astype(jnp.float32) + params["bias"]) ** 2)


def initial() -> Any:
    return {
        "dense": {"kernel": jnp.full((4, 3), 0.5, jnp.bfloat16)},
        "bias": np.zeros(3, np.float32),
        "nothing": np.zeros((0, 5), np.float32),
        "scale": np.float32(1),
    }


def noisy() -> optax.GradientTransformation:
    """Keeps a key, a flag and a number of less than a byte, which few optimizers do."""

    def init(params: Any) -> Any:
        return {
            "key": jax.random.key(3),
            "keys": jax.random.split(jax.random.key(4), 2),
            "on": jnp.array(True),
        }

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        return updates, {**state, "key": jax.random.split(state["key"], 2)[1], "on": ~state["on"]}

    return optax.GradientTransformation(init, update)


@cache
def model(seed: int) -> tuple[Any, sg.TrainState, Any]:
    """A strategy, an untrained state and its step, which is compiled once for all tests."""
    strategy = sg.OneDeviceStrategy()
    optimizer = optax.chain(noisy(), optax.adam(0.1))
    state = strategy.init(initial(), optimizer, ema_decay=0.5, seed=seed)
    return strategy, state, strategy.train_step(loss_fn)


class Training:
    """A state that is trained step by step."""

    def __init__(self, seed: int = 0) -> None:
        self.strategy, first, self._step = model(seed)
        self.state: sg.TrainState = jax.tree.map(lambda leaf: leaf.copy(), first)

    def to(self, step: int) -> sg.TrainState:
        """The state at a step."""
        while int(self.state.step) < step:
            self.state, _ = self._step(self.state, BATCH)
        return self.state


def numbers(state: Any) -> dict[str, Any]:
    """All arrays of a state in plain form."""
    return {
        jax.tree_util.keystr(path): np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def assert_same(found: Any, expected: dict[str, Any]) -> None:
    assert found is not None
    found = numbers(found)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name, strict=True)


def saved(directory: Path, *steps: int, **options: Any) -> Training:
    training = Training()
    with sg.Checkpointer(directory, **options) as checkpoints:
        for step in steps:
            checkpoints.save(training.to(step))
    return training


# What is in them.


def test_all_of_a_state_comes_back_in_its_place(tmp_path: Path) -> None:
    training = Training(seed=5)
    expected = numbers(training.to(3))
    with sg.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(training.state)
    like = Training(seed=5).state
    restored = sg.Checkpointer(tmp_path).restore(like=like)
    assert_same(restored, expected)
    assert restored is not None
    for new, old in zip(jax.tree.leaves(restored), jax.tree.leaves(like), strict=True):
        assert (new.sharding, new.dtype) == (old.sharding, old.dtype)
    again = Training(seed=5)
    again.state = restored
    assert_same(again.to(6), numbers(training.to(6)))
    otherwise = sg.Checkpointer(tmp_path).restore(like=Training(seed=0).state)
    assert otherwise is not None and otherwise.recipe.seed == 5


def test_what_is_not_trained_comes_too(tmp_path: Path) -> None:
    state = Training().to(1)
    expected = replace(state, flat_state=[jnp.array([0.5, 2.0]), jnp.uint32(7), jax.random.key(9)])
    with sg.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(expected)
    like = replace(state, flat_state=[jnp.zeros(2), jnp.uint32(0), jax.random.key(0)])
    assert_same(sg.Checkpointer(tmp_path).restore(like=like), numbers(expected))


def test_a_state_may_go_into_the_next_step_at_once(tmp_path: Path) -> None:
    training = Training()
    with sg.Checkpointer(tmp_path) as checkpoints:
        for step in (1, 2):
            expected = numbers(training.to(step))
            checkpoints.save(training.state)
            for leaf in jax.tree.leaves(training.to(step + 1)):
                leaf.block_until_ready()
    assert_same(sg.Checkpointer(tmp_path).restore(like=Training().state), expected)


def test_host_copies_are_restored_as_such(tmp_path: Path) -> None:
    strategy = sg.OneDeviceStrategy()
    fetched = strategy.fetch(strategy.init(initial(), optax.adam(0.1)))
    with sg.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(fetched)
    restored = sg.Checkpointer(tmp_path).restore(like=fetched)
    assert_same(restored, numbers(fetched))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(restored))


@pytest.mark.parametrize("data", [None, 7, {"epoch": 1, "files": ["a", "b"]}, b"\x00\xff", b""])
def test_where_the_data_stood(tmp_path: Path, data: Any) -> None:
    state = Training().state
    with sg.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state, data=data)
    checkpoints = sg.Checkpointer(tmp_path)
    assert checkpoints.restore(like=state) is not None
    assert checkpoints.data == data
    assert type(checkpoints.data) is type(data)


def test_data_that_cannot_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(sg.KeepError, match=r"data\['x'\] is .* a ndarray"):
        sg.Checkpointer(tmp_path).save(Training().state, data={"x": np.zeros(2)})


def test_export_for_serving(tmp_path: Path) -> None:
    training = Training()
    state = training.to(2)
    checkpoints = sg.Checkpointer(tmp_path / "checkpoints")
    for ema, expected in ((False, state.params), (True, state.ema)):
        path = tmp_path / "models" / f"ema-{ema}.safetensors"
        checkpoints.export(state, path, ema=ema)
        found = load_file(path)
        assert sorted(found) == ["bias", "dense/kernel", "nothing", "scale"]
        np.testing.assert_array_equal(found["bias"], expected["bias"], strict=True)
        np.testing.assert_array_equal(found["dense/kernel"], expected["dense"]["kernel"])
    without = training.strategy.init(initial(), optax.sgd(0.1))
    with pytest.raises(sg.KeepError, match="no moving averages: export without ema"):
        checkpoints.export(without, tmp_path / "model", ema=True)


# Which there are.


def test_without_any_there_is_none(tmp_path: Path) -> None:
    checkpoints = sg.Checkpointer(tmp_path / "new")
    assert checkpoints.restore(like=Training().state) is None
    assert (checkpoints.latest(), checkpoints.steps()) == (None, [])
    assert not (tmp_path / "new").exists()


def test_the_newest_stay_and_some_for_good(tmp_path: Path) -> None:
    saved(tmp_path, *range(1, 10), keep=2, keep_every=3)
    checkpoints = sg.Checkpointer(tmp_path)
    assert checkpoints.steps() == [3, 6, 8, 9]
    assert checkpoints.latest() == 9
    restored = checkpoints.restore(like=Training().state, step=6)
    assert_same(restored, numbers(Training().to(6)))
    with pytest.raises(
        sg.KeepError, match=r"step-000000000007 is not a finished snapshot; .* steps \[3, 6, 8, 9\]"
    ):
        checkpoints.restore(like=Training().state, step=7)


@pytest.mark.parametrize(
    ("options", "words"), [({"keep": 0}, "keep is 0"), ({"keep_every": 0}, "keep_every is 0")]
)
def test_numbers_that_make_no_sense(tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(sg.KeepError, match=words):
        sg.Checkpointer(tmp_path, **options)


def test_what_was_just_saved_is_there(tmp_path: Path) -> None:
    with sg.Checkpointer(tmp_path) as checkpoints:
        training = Training()
        for step in (1, 2, 3):
            checkpoints.save(training.to(step))
            assert checkpoints.latest() == step
            assert checkpoints.steps() == [*range(1, step + 1)]


def test_one_step_is_saved_once(tmp_path: Path) -> None:
    state = saved(tmp_path, 2).state
    checkpoints = sg.Checkpointer(tmp_path)
    restored = checkpoints.restore(like=state)
    assert restored is not None
    manifest = tmp_path / "step-000000000002" / "manifest.json"
    before = manifest.stat().st_ino
    checkpoints.save(restored)
    checkpoints.close()
    assert manifest.stat().st_ino == before


def test_going_back_to_an_earlier_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 2, 3, 4)
    training = Training()
    checkpoints = sg.Checkpointer(tmp_path)
    restored = checkpoints.restore(like=training.state, step=2)
    assert checkpoints.steps() == [2, 3, 4], "nothing is removed until there is something new"
    assert restored is not None
    training.state = restored
    with caplog.at_level(logging.WARNING, "stratagem"):
        checkpoints.save(training.to(3))
        checkpoints.close()
    assert "step-000000000004 is removed: training has gone back to step 2" in caplog.text
    assert checkpoints.steps() == [2, 3]


def test_another_training_in_the_same_place_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = sg.Checkpointer(tmp_path)
    checkpoints.save(Training().to(5))
    with caplog.at_level(logging.WARNING, "stratagem"):
        checkpoints.save(Training().to(1))
        checkpoints.save(Training().to(2))
    assert caplog.text.count("has a checkpoint of step 5, so none is made at step 1") == 1
    assert "step 2" not in caplog.text, "once is enough"
    checkpoints.save(Training().to(6))
    checkpoints.close()
    assert checkpoints.steps() == [5, 6]


# Which cannot be used.


def damage(directory: Path) -> None:
    (shard,) = directory.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))


def test_a_damaged_one_is_passed_over_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 2, 3)
    damage(tmp_path / "step-000000000003")
    training = Training()
    checkpoints = sg.Checkpointer(tmp_path)
    with caplog.at_level(logging.WARNING, "stratagem"):
        restored = checkpoints.restore(like=training.state)
    assert "step 3 is skipped" in caplog.text and "step 2 is used instead" in caplog.text
    assert_same(restored, numbers(Training().to(2)))
    assert restored is not None
    training.state = restored
    checkpoints.save(training.to(3))
    checkpoints.close()
    assert_same(sg.Checkpointer(tmp_path).restore(like=Training().state), numbers(training.state))


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    damage(tmp_path / "step-000000000002")
    with pytest.raises(sg.KeepError, match=r"none of the snapshots in .* can be read, of steps \[2\]"):
        sg.Checkpointer(tmp_path).restore(like=Training().state)


def test_another_model_is_told_by_its_differences(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    strategy = sg.OneDeviceStrategy()
    other = strategy.init(
        {"dense": {"kernel": np.zeros((4, 9), np.float32)}, "more": np.zeros(1, np.float32)}, optax.sgd(0.1)
    )
    with pytest.raises(sg.KeepError) as caught:
        sg.Checkpointer(tmp_path).restore(like=other)
    told = str(caught.value)
    assert f"the checkpoint of step 1 in {tmp_path} is of another model" in told
    assert "it lacks params/['more'];" in told
    assert (
        "it also has params/['bias'], params/['nothing'], params/['scale'], " in told
        and "more; it differs: " in told
    )
    assert "params/['dense']['kernel'] is bfloat16[4, 3] there and float32[4, 9] here" in told
    step = strategy.train_step(lambda params, batch: jnp.sum(params["dense"]["kernel"]) * jnp.mean(batch))
    for _ in range(2):
        other, _ = step(other, BATCH)
    with pytest.raises(sg.KeepError, match="is of another model"):
        sg.Checkpointer(tmp_path).save(other)
    assert sg.Checkpointer(tmp_path).steps() == [1]


def test_what_another_training_left_is_not_mixed_in(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    with pytest.raises(
        sg.KeepError, match=r"checkpoint of step 4 already, so none can be made at step 2.*restore"
    ):
        sg.Checkpointer(tmp_path).save(Training().to(2))
    assert sg.Checkpointer(tmp_path).steps() == [4]


def test_a_training_that_does_not_restore_is_told_at_its_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 4)
    with caplog.at_level(logging.WARNING, "stratagem"):
        forgetful = sg.Checkpointer(tmp_path)
        Training().to(2)
        assert caplog.text.count("holds a checkpoint of step 4, and a training that has not restored it") == 1
        assert "goes on from step 0: none can be saved there until it is past that" in caplog.text
        with pytest.raises(sg.KeepError, match="has a checkpoint of step 4 already"):
            forgetful.save(Training().to(2))

        caplog.clear()
        restoring, asked, elsewhere = (sg.Checkpointer(tmp_path) for _ in range(3))
        training = Training()
        training.state = restoring.restore(like=training.state) or training.state
        assert asked.latest() == 4
        del elsewhere  # of no use to anybody any more
        training.to(5)
        Training().to(1)
    assert not caplog.text


def test_unfinished_leftovers_are_not_read(tmp_path: Path) -> None:
    training = saved(tmp_path, 2, 3)
    (tmp_path / "step-000000000003" / "manifest.json").unlink()
    checkpoints = sg.Checkpointer(tmp_path)
    restored = checkpoints.restore(like=training.state)
    assert restored is not None and int(restored.step) == 2
    fresh = Training()
    checkpoints.save(fresh.to(3))
    checkpoints.close()
    assert checkpoints.steps() == [2, 3]
    assert_same(checkpoints.restore(like=Training().state), numbers(fresh.state))


def test_errors_of_the_thread_come_with_the_next_call(tmp_path: Path) -> None:
    training = Training()
    (tmp_path / "step-000000000001" / "chief.safetensors").mkdir(parents=True)  # where a file is to be
    checkpoints = sg.Checkpointer(tmp_path)
    checkpoints.save(training.to(1))
    with pytest.raises(sg.KeepError, match=r"chief\.safetensors cannot be written: Is a directory"):
        checkpoints.save(training.to(2))
    checkpoints.save(training.state)
    checkpoints.close()
    assert checkpoints.steps() == [2]
    checkpoints.save(training.to(3))  # closed is not gone
    checkpoints.wait()
    assert checkpoints.steps() == [2, 3]
    checkpoints.close()


# Being asked to end.


def test_sigterm_in_a_training_loop(tmp_path: Path) -> None:
    training = Training()
    checkpoints = sg.Checkpointer(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, checkpoints.preemption() as preempted:
        while True:
            training.to(int(training.state.step) + 1)
            assert bool(preempted) == (int(training.state.step) > 3)
            if preempted:
                checkpoints.save(training.state)
                break
            if int(training.state.step) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoints.steps() == [4], "finished before the process ends"


def test_without_sigterm_the_block_is_only_a_block(tmp_path: Path) -> None:
    with sg.Checkpointer(tmp_path).preemption() as preempted:
        assert not preempted
    with pytest.raises(ValueError, match="of the user's"), sg.Checkpointer(tmp_path).preemption():
        raise ValueError("of the user's")


@pytest.mark.parametrize("below", ["", "training"])
def test_a_file_in_place_of_the_directory_is_told_at_once(tmp_path: Path, below: str) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(
        sg.KeepError, match=r"cannot hold checkpoints: \S+notes is not a directory; give another one"
    ):
        sg.Checkpointer(tmp_path / "notes" / below)
    assert (tmp_path / "notes").read_text() == "mine"


# Of a training by hand.


def by_hand(steps: int, params: Any, optimizer: Any, opt_state: Any) -> tuple[Any, Any]:
    for _ in range(steps):
        grads = sg.average_gradients([jax.grad(loss_fn)(params, part) for part in (BATCH[:3], BATCH[3:])])
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, opt_state


def test_a_training_by_hand_is_saved_and_gone_on_with(tmp_path: Path) -> None:
    optimizer = optax.adam(0.1)
    params: Any = {"dense": {"kernel": jnp.full((4, 3), 0.5)}, "bias": jnp.zeros(3)}
    first, slots = by_hand(2, params, optimizer, optimizer.init(params))
    with sg.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(sg.TrainState.of(first, optimizer, slots, step=2, ema=params))
    expected, _ = by_hand(3, first, optimizer, slots)
    with sg.Checkpointer(tmp_path) as checkpoints:
        state = checkpoints.restore(like=sg.TrainState.of(params, optimizer, ema=params))
    assert state is not None and int(state.step) == 2
    np.testing.assert_array_equal(state.ema["dense"]["kernel"], params["dense"]["kernel"])
    again, _ = by_hand(3, state.params, optimizer, state.opt_state)
    np.testing.assert_array_equal(again["dense"]["kernel"], expected["dense"]["kernel"])
    # A strategy goes on with the same.
    strategy = sg.OneDeviceStrategy()
    like, step = strategy.init(params, optimizer, ema_decay=0.5), strategy.train_step(loss_fn)
    with sg.Checkpointer(tmp_path) as checkpoints:
        state = checkpoints.restore(like=like) or like
    for _ in range(3):
        state, _ = step(state, BATCH)
    np.testing.assert_allclose(state.params["dense"]["kernel"], expected["dense"]["kernel"], rtol=1e-5)


def test_what_does_not_make_a_state(tmp_path: Path) -> None:
    params = {"w": jnp.ones(3)}
    adam = optax.adam(0.1)
    with pytest.raises(sg.StrategyError, match=r"optimizer is 0\.1; give an optax optimizer"):
        sg.TrainState.of(params, 0.1)
    for wrong in (optax.sgd(0.1).init(params), adam.init({"w": jnp.ones(4)})):
        with pytest.raises(sg.StrategyError, match="not of this optimizer for these parameters"):
            sg.TrainState.of(params, adam, wrong)
    with pytest.raises(sg.StrategyError, match="give one for each"):
        sg.TrainState.of(params, adam, ema={"v": jnp.ones(3)})
    with sg.Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(sg.StrategyError, match=r"save was given a dict; .* sg\.TrainState\.of\(params"):
            checkpoints.save(params)  # type: ignore[arg-type]
        with pytest.raises(sg.StrategyError, match=r"restore was given like= a dict"):
            checkpoints.restore(like=params)  # type: ignore[arg-type]
