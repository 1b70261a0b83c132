"""What servers are told of a model, and how a worker that means another is told."""

from dataclasses import dataclass, replace
from typing import Any

import msgpack
import pytest

from stratagem.errors import ProtocolError, StrategyError
from stratagem.parameters.protocol import ArrayConfig, StoreConfig, check_rule, modules_of
from stratagem.parameters.rules import Async, BoundedStaleness, PushMachine, Sync, UpdateRule
from stratagem.runtime.allowed_imports import AllowedImports
from stratagem.runtime.programs.summary import TensorSpec

NONE = AllowedImports("/job:ps/task:0")
OWN = AllowedImports("/job:ps/task:0", (__name__,))

CONFIG = StoreConfig(
    name="model-0",
    server=1,
    servers=("/job:ps/task:0", "/job:ps/task:1"),
    workers=("/job:worker/task:0",),
    participants=(0, 1),
    leaves=(ArrayConfig("params/w", TensorSpec((3, 2), "float32")),),
    slots=(ArrayConfig("opt_state/count", TensorSpec((), "int32")),),
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
    assert StoreConfig.from_fields(told, NONE) == config


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
            replace(
                CONFIG, leaves=(ArrayConfig("params/w", TensorSpec((4, 2), "float32")),), update="b" * 64
            ),
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
        StoreConfig.from_fields({**CONFIG.to_fields(), "rule": ["Never", {}]}, NONE)


@dataclass(frozen=True)
class OwnRule(UpdateRule):
    limit: Any = 1

    def machine(self, workers: int) -> PushMachine:
        return Async().machine(workers)


class NoDataclass(UpdateRule):
    def machine(self, workers: int) -> PushMachine:
        return Async().machine(workers)


def told_of(name: str, **options: Any) -> Any:
    fields = {**CONFIG.to_fields(), "rule": [f"{__name__}:{name}", options]}
    return msgpack.unpackb(msgpack.packb(fields))


def test_a_rule_of_the_users_travels_as_its_class_and_its_fields() -> None:
    rule = OwnRule((2, "two", None))
    config = replace(CONFIG, rule=rule)
    told = msgpack.unpackb(msgpack.packb(config.to_fields()))
    assert told["rule"] == [f"{__name__}:OwnRule", {"limit": [2, "two", None]}]
    assert StoreConfig.from_fields(told, OWN) == config
    assert modules_of(rule) == (__name__,)
    assert modules_of(Sync()) == ()


@pytest.mark.parametrize(
    ("imports", "name", "options", "words"),
    [
        (
            NONE,
            "OwnRule",
            {},
            "may not import .* for an update rule; it was started with: none. .*--allow-import",
        ),
        (OWN, "Never", {}, "defines no update rule 'Never'"),
        (
            OWN,
            "UpdateRule",
            {},
            "defines no update rule 'UpdateRule'",
        ),  # imported there, and defined elsewhere
        (OWN, "told_of", {}, "defines no update rule 'told_of'"),
        (OWN, "OwnRule", {"bound": 1}, "cannot make .*OwnRule of {'bound': 1}: .* need the same module"),
    ],
)
def test_a_server_makes_no_other_rule_than_it_may(
    imports: AllowedImports, name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(StrategyError, match=words):
        StoreConfig.from_fields(told_of(name, **options), imports)


def test_a_server_does_not_import_what_nobody_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(name: str) -> None:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr("stratagem.runtime.allowed_imports.import_module", imported)
    fields = {**CONFIG.to_fields(), "rule": ["os:system", {"command": "true"}]}
    with pytest.raises(StrategyError, match="may not import 'os'"):
        StoreConfig.from_fields(fields, OWN)


class Outer:
    @dataclass(frozen=True)
    class Nested(UpdateRule):
        def machine(self, workers: int) -> PushMachine:
            return Async().machine(workers)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("async", "update is 'async'; give sg.Async"),
        (NoDataclass(), "NoDataclass is not a dataclass: put @dataclass"),
        (OwnRule(b"1"), "limit of the update rule OwnRule is b'1': give numbers"),
        (OwnRule([1]), "limit of the update rule OwnRule is"),
        (Outer.Nested(), "define it at the top level of a module of its own"),
    ],
)
def test_a_rule_that_servers_cannot_be_told_of_is_refused_at_once(rule: object, words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        check_rule(rule)
