"""replica_device_setter puts variables where TensorFlow's does."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.devices import current_device, device, replica_device_setter

tf = pytest.importorskip("tensorflow")

DEVICES = st.sampled_from(
    ["", "/job:ps", "/job:worker/task:1", "/cpu:0", "/job:ps/task:5/gpu:1", "/task:3", None]
)
ARGUMENTS = st.fixed_dictionaries(
    {
        "ps_device": st.sampled_from(["/job:ps", "/job:ps/cpu:0", "/job:ps/task:7", "/job:other", "/cpu:0"]),
        "worker_device": st.sampled_from(["/job:worker", "/job:worker/task:2/gpu:0", ""]),
    }
)
SERVERS = st.integers(min_value=0, max_value=4)


def placed_by_tensorflow(setter: Any, outer: str | None, inner: list[str | None]) -> list[str]:
    devices = []
    with tf.Graph().as_default(), tf.compat.v1.device(outer), tf.compat.v1.device(setter):
        for number, name in enumerate(inner):
            with tf.compat.v1.device(name):
                variable = tf.compat.v1.get_variable(f"v{number}", [2, 2], use_resource=True)
                devices.append(variable.op.device)
                devices.append(tf.constant(1.0).op.device)
    return devices


def placed_here(setter: Any, outer: str | None, inner: list[str | None]) -> list[str]:
    devices = []
    with device(outer), device(setter):
        for name in inner:
            with device(name):
                devices.append(current_device(tf.TensorSpec([2, 2], tf.float32)).to_string())
                devices.append(current_device().to_string())
    return devices


@settings(max_examples=60)
@given(
    SERVERS, ARGUMENTS, st.sampled_from(["", "/job:far/task:9"]), st.lists(DEVICES, max_size=5), st.booleans()
)
def test_same_places(
    servers: int, arguments: dict[str, Any], outer: str, inner: list[str | None], as_cluster: bool
) -> None:
    how_many: dict[str, Any] = {"ps_tasks": servers}
    if as_cluster:
        hosts = {"worker": ["w:1"]} | ({"ps": [f"p{i}:1" for i in range(servers)]} if servers else {})
        how_many = {"cluster": hosts}
    theirs = tf.compat.v1.train.replica_device_setter(
        **({"cluster": tf.train.ClusterSpec(how_many["cluster"])} if as_cluster else how_many), **arguments
    )
    ours = replica_device_setter(**how_many, **arguments)
    assert (theirs is None) == (ours is None)
    if ours is None:
        return
    # A device of this process inside the block would be looked for here; the outer job makes it remote.
    assert placed_here(ours, outer or "/job:far", inner) == placed_by_tensorflow(
        theirs, outer or "/job:far", inner
    )


def test_same_strategy_function() -> None:
    arguments: dict[str, Any] = {"ps_tasks": 3, "ps_strategy": lambda _: 2}
    theirs = tf.compat.v1.train.replica_device_setter(**arguments)
    assert placed_here(replica_device_setter(**arguments), None, [""]) == placed_by_tensorflow(
        theirs, None, [""]
    )
