"""The words in which workers and parameter servers talk: names of calls, states of answers, times, and a model's description."""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Final, TypeAlias, cast

from stratagem.errors import ProtocolError, StrategyError
from stratagem.parameters.rules import Async, BoundedStaleness, Sync, UpdateRule
from stratagem.runtime.allowed_imports import AllowedImports
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.wire import Fields
from stratagem.tables.row_store import RowSpec

MODEL = "parameters.model"
PROGRAM = "parameters.program"
FILL = "parameters.fill"
OPEN = "parameters.open"
JOIN = "parameters.join"
PAUSE = "parameters.pause"
"""The calls by which a model comes to the servers, and workers to it."""
PUSH = "parameters.push"
PULL = "parameters.pull"
HOLD = "parameters.hold"
RELEASE = "parameters.release"
"""The calls by which a worker trains it, and reads all of it."""
ROWS = "parameters.rows"
TABLE = "parameters.table"
"""The calls by which it reads rows of tables: those of some ids, or all of a table, some at a time."""
STAGE = "parameters.stage"
ASSIGN = "parameters.assign"
KEEP = "parameters.keep"
RECORD = "parameters.record"
"""The calls by which the chief sets values, and has every server write its own into a checkpoint."""
ENDED = "parameters.ended"
AGREE = "parameters.agree"
MARK = "parameters.mark"
MARKED = "parameters.marked"
"""The calls by which workers that are not in step look at the same values: the third comes from server 0."""
GATHER = "parameters.gather"
SAME = "parameters.same"
NOTE = "parameters.note"
NOTED = "parameters.noted"
"""The calls by which workers share small things with each other."""
ARRIVED = "parameters.arrived"
DECISION = "parameters.decision"
PARTIALS = "parameters.partials"
BROKEN = "parameters.broken"
BEGIN = "parameters.begin"
RESTORE = "parameters.restore"
TAKE = "parameters.take"
SNAPSHOT = "parameters.snapshot"
FORGET = "parameters.forget"
"""The calls by which servers act as one: the first four are for server 0, the others come from it."""
TO_ALL = (BEGIN, RESTORE, TAKE, MARK, SNAPSHOT, FORGET, KEEP, RECORD)
"""The calls that server 0, or the chief, makes to every server."""

STATE: Final = "state"
OK = "ok"
PENDING = "pending"
SEND = "send"
ROLLED_BACK = "rolled back"
WAIT = "wait"
WANTED = "wanted"
LOST = "lost"
OVER = "over"
REPLACED = "replaced"
"""The state of an answer, in order: here it is; ask again; send it again; the worker knows an earlier history, since servers
went back to an earlier step or begin anew; something is missing; the chief is to bring values; values are lost for good; this
worker is not needed any more; a newer start of it has taken its place."""
Reading: TypeAlias = float | list[Any]
"""A metric as it travels: a number, or a list of them for one that has several."""
PATIENCE: Final = 1.0
"""Seconds for which a server lets a caller wait before it says that it is still alive."""
CALL_SECONDS: Final = 20.0
"""Seconds within which a live server has answered something, even if it has a large model to send."""


_RULES: dict[str, Any] = {rule.__name__: rule for rule in (Async, Sync, BoundedStaleness)}


@dataclass(frozen=True)
class ArrayConfig:
    """One array that a server holds."""

    name: str  # its name, in words that a user knows
    spec: TensorSpec


@dataclass(frozen=True)
class StackConfig:
    """Tables that a server keeps together; it has the rows of some of their ids."""

    names: tuple[str, ...]
    spec: RowSpec  # the arrays of each row
    # Shape, type and first bytes of each part of the optimizer's state that all rows share.
    scalars: tuple[tuple[tuple[int, ...], str, bytes], ...]
    # Hashes of the programs that make first values, for each number of rows that there are programs for.
    first: tuple[str, ...]
    update: tuple[str, ...]  # hashes of the programs that make updates


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The settings that all models of a job share."""

    servers: tuple[str, ...]
    workers: tuple[str, ...]
    rule: UpdateRule  # how pushes become updates
    snapshot_dir: str | None  # the directory of snapshots; there are none without it
    snapshot_secs: float  # seconds from snapshot to snapshot
    rejoin_timeout: float  # seconds for which a worker, or a server, that is silent may come back


@dataclass(frozen=True, kw_only=True)
class StoreConfig(JobConfig):
    """The part of one model on one server. Every worker computes the same, and any of them may send it."""

    name: str  # of the model, among those of a job
    server: int  # which server this part is for
    # The servers that have to have their part of a push: those that hold something, and server 0.
    participants: tuple[int, ...]
    leaves: tuple[ArrayConfig, ...]  # the arrays that have gradients, in order
    slots: tuple[ArrayConfig, ...]  # the arrays that the update keeps beside them
    # The values that the gradients of all servers share, which the update takes.
    commons: tuple[TensorSpec, ...]
    update: str  # hash of the program: leaves, slots, gradients, commons, step → leaves, slots
    partials: str  # hash of the program: gradients → this server's share in the commons; empty if it has none
    combine: str  # hash of the program: all servers' partials, in their order → commons; for server 0 alone
    tensors: Any = None  # for server 0: where each tensor is in a snapshot, as the manifest has it
    tables: tuple[StackConfig, ...] = ()  # tables of which it has some rows

    @property
    def arrays(self) -> tuple[ArrayConfig, ...]:
        """All arrays of this server."""
        return (*self.leaves, *self.slots)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that they take."""
        return sum(each.spec.nbytes for each in self.arrays)

    def to_fields(self) -> Fields:
        """Return the same in plain values."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "leaves": [_plain(each.spec, each.name) for each in self.leaves],
            "slots": [_plain(each.spec, each.name) for each in self.slots],
            "commons": [_plain(spec) for spec in self.commons],
            "rule": [_name_of(type(self.rule)), asdict(cast(Any, self.rule))],
            "tables": [asdict(stack) for stack in self.tables],
        }

    @classmethod
    def from_fields(cls, values: Fields, imports: AllowedImports) -> "StoreConfig":
        """Return the configuration that a worker has sent; a rule of the user's has to come from one of `imports`.

        Raises:
            ProtocolError: The fields make no configuration.
            StrategyError: Its update rule may not be imported here, or cannot be.
        """
        try:
            kind, options = values["rule"]
            plain = {each.name: _tuples(values[each.name]) for each in fields(cls)}
            arrays = {
                each: tuple(ArrayConfig(name, TensorSpec(*spec)) for name, *spec in plain[each])
                for each in ("leaves", "slots")
            }
            tables = (StackConfig(**{**stack, "spec": RowSpec(**stack["spec"])}) for stack in plain["tables"])
            return cls(
                **{
                    **plain,
                    **arrays,
                    "commons": tuple(TensorSpec(*spec) for spec in plain["commons"]),
                    "rule": _rule_from_fields(kind, options, imports),
                    "tensors": values["tensors"],
                    "tables": tuple(tables),
                }
            )
        except StrategyError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a model that cannot be read: {error!r:.200}") from error

    def check_same(self, other: "StoreConfig", teller: str) -> None:
        """Raise unless another worker means the same model.

        Raises:
            StrategyError: It differs; the message shows where.
        """
        mine, theirs = self.to_fields(), other.to_fields()
        for key in sorted(mine, key=lambda key: key in _DERIVED):  # what a user can see comes first
            if theirs[key] != mine[key]:
                difference = "another one" if key in _DERIVED else _difference(theirs[key], mine[key])
                raise StrategyError(
                    f"{teller} brings another model than the one on {self.servers[self.server]}: {_WORDS.get(key, key)} "
                    f"is {difference}. All workers must run the same script with the same arguments"
                )


# Update rules on the wire: those of Stratagem by name, those of users by module and class, with their fields.


def check_rule(rule: object) -> None:
    """Raise unless an update rule can be sent to servers.

    Raises:
        StrategyError: It is not an update rule, or not one that servers can import.
    """
    if not isinstance(rule, UpdateRule):
        raise StrategyError(
            f"update is {rule!r}; give sg.Async(), sg.Sync(), sg.BoundedStaleness(steps), or a rule of your own, a subclass of "
            "sg.UpdateRule"
        )
    kind = type(rule)
    if not is_dataclass(cast(Any, kind)):
        raise StrategyError(
            f"the update rule {kind.__name__} is not a dataclass: put @dataclass(frozen=True) before it, since servers make "
            "their own of its fields"
        )
    if kind.__module__ == "__main__" or not kind.__qualname__.isidentifier():
        raise StrategyError(
            f"the update rule {kind.__qualname__} is defined in {kind.__module__}, where servers cannot find it: define it at "
            "the top level of a module of its own, beside the script, and start the servers with --allow-import MODULE"
        )
    for name, value in asdict(cast(Any, rule)).items():
        if not _is_plain(value):
            raise StrategyError(
                f"{name} of the update rule {kind.__name__} is {value!r:.80}: give numbers, strings, booleans, None, or tuples "
                "of them, which can be sent to servers"
            )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _name_of(kind: type[UpdateRule]) -> str:
    """Return the name of a rule's class: one that all servers know, or `module:class`."""
    return kind.__name__ if _RULES.get(kind.__name__) is kind else f"{kind.__module__}:{kind.__qualname__}"


def modules_of(rule: UpdateRule) -> tuple[str, ...]:
    """Return the modules that servers have to be allowed to import for a rule."""
    module, colon, _ = _name_of(type(rule)).partition(":")
    return (module,) if colon else ()


def _rule_from_fields(name: str, options: Fields, imports: AllowedImports) -> UpdateRule:
    """Return the rule that plain values describe, whose class is imported only if that is allowed.

    Raises:
        StrategyError: The class may not be imported, cannot be, or does not make a rule of these fields.
    """
    options = _tuples(options)
    if ":" not in name:
        return cast(UpdateRule, _RULES[name](**options))
    kind = imports.find(name, "an update rule", "stratagem run", StrategyError)
    if not (isinstance(kind, type) and issubclass(kind, UpdateRule)):
        module, _, name = name.partition(":")
        raise StrategyError(
            f"module {module!r} on {imports.task} defines no update rule {name!r}: workers and servers need the same module"
        )
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise StrategyError(
            f"{imports.task} cannot make {name} of {options}: {error}. Workers and servers need the same module"
        ) from error


_DERIVED = ("update", "partials", "combine", "tensors", "tables")
_WORDS = {
    "leaves": "what is trained",
    "slots": "the optimizer's state",
    "update": "the optimizer, or a number in it,",
    "partials": "the optimizer",
    "combine": "the optimizer",
    "tensors": "what is kept of it",
    "rule": "the update rule",
    "tables": "what is kept of its tables, or how they are trained,",
}


def _tuples(values: Any) -> Any:
    """Return the same values with tuples for lists, in dictionaries too."""
    if isinstance(values, dict):
        return {name: _tuples(value) for name, value in values.items()}
    return tuple(_tuples(value) for value in values) if isinstance(values, list | tuple) else values


def _plain(spec: TensorSpec, *name: str) -> list[Any]:
    return [*name, list(spec.shape), spec.dtype]


def _difference(got: Any, expected: Any) -> str:
    """Describe two values, or for lists the first elements in which they differ."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        for one, other in zip(got, expected, strict=False):
            if one != other:
                return f"{one!r} instead of {other!r}"
        return f"{len(got)} of them instead of {len(expected)}"
    return f"{got!r} instead of {expected!r}"
