"""What servers are told of a model, and how a worker that means another is told."""

from dataclasses import replace

import msgpack
import pytest

from stratagem.errors import ProtocolError, StrategyError
from stratagem.parameters.config import Held, StoreConfig
from stratagem.parameters.rules import Async, BoundedStaleness, Sync
from stratagem.runtime.programs.summary import TensorSpec

CONFIG = StoreConfig(
    name="model-0",
    server=1,
    servers=("/job:ps/task:0", "/job:ps/task:1"),
    workers=("/job:worker/task:0",),
    participants=(0, 1),
    leaves=(Held("params/w", TensorSpec((3, 2), "float32")),),
    slots=(Held("opt_state/count", TensorSpec((), "int32")),),
    commons=(TensorSpec((), "float32"),),
    rule=Async(),
    update="a" * 64,
    partials="",
    combine="",
    snapshot_dir=None,
    snapshot_secs=60,
    rejoin_timeout=60,
    tensors=[["params/w", [[1, "params/w"]]]],
)


@pytest.mark.parametrize("rule", [Async(overlap=True), Sync(2, 3), BoundedStaleness(4)])
def test_it_travels_in_plain_values(rule: Async | Sync | BoundedStaleness) -> None:
    config = replace(CONFIG, rule=rule)
    told = msgpack.unpackb(msgpack.packb(config.to_fields()))
    assert StoreConfig.from_fields(told) == config


def test_it_knows_its_size() -> None:
    assert CONFIG.nbytes == 28


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            replace(CONFIG, leaves=(*CONFIG.leaves, CONFIG.leaves[0])),
            "what is trained is 2 of them instead of 1",
        ),
        (
            replace(CONFIG, leaves=(Held("params/w", TensorSpec((4, 2), "float32")),), update="b" * 64),
            r"what is trained is \['params/w', \[4, 2\], 'float32'\] instead of \['params/w', \[3, 2\]",
        ),
        (replace(CONFIG, rule=Sync()), "the update rule is 'Sync' instead of 'Async'"),
        (replace(CONFIG, update="b" * 64), "the optimizer, or a number in it, is another one"),
    ],
)
def test_another_model_is_refused_by_what_a_user_can_see(other: StoreConfig, words: str) -> None:
    with pytest.raises(StrategyError, match=f"/job:worker/task:1 brings another model .*: {words}"):
        CONFIG.check_same(other, "/job:worker/task:1")


def test_what_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a model that cannot be read"):
        StoreConfig.from_fields({**CONFIG.to_fields(), "rule": ["Never", {}]})
