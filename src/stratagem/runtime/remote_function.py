"""A user's function that runs on a task of the cluster: traced here, shipped once, called by name there."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem.devices import DeviceSpec, as_spec, log_placement
from stratagem.errors import ProtocolError, VariableMismatch
from stratagem.runtime.peers import Peers, TaskDevice
from stratagem.runtime.programs import Program, export_program
from stratagem.runtime.remote_variable import RemoteVariable, from_array, to_array
from stratagem.runtime.wire import Fields, Peer, Response, dtype_of
from stratagem.runtime.wire.arrays import Array

TENSOR, VARIABLE, RETURN, ASSIGN, ADD = "tensor", "variable", "return", "assign", "add"
"""Where a program's inputs come from, and where its outputs go."""
TaskCall: TypeAlias = Callable[[str, Fields], Response]
"""Calls a task: the name of the call, and plain values."""
Supplier: TypeAlias = Callable[[list[list[Any]]], list[Any] | None]
"""Returns the values for all references of its kind in a call, on their task. Returns `None` if it does not have these
values, or no longer: nothing is used up then, and the client asks again what there is."""
ArgumentKind: TypeAlias = tuple[tuple[int, ...], Any, bool]
"""Shape and dtype of an argument, and whether it is a byte string."""


@dataclass(frozen=True)
class TaskValue:
    """An array that a task has, as a client refers to it in a call to that task.

    Attributes:
        reference: What the task's supplier finds it by: first the kind of supplier, then plain values.
        shape: The shape of the array.
        dtype: The dtype of the array, by name.
    """

    reference: tuple[object, ...]
    shape: tuple[int, ...]
    dtype: str


class PerTask(ABC):
    """An argument of which each task has its own, such as the next batch of its data. The values never pass the client."""

    @abstractmethod
    def on(self, call: TaskCall, task: str, *, anew: bool) -> Any:
        """Return its value on a task: a tree of `TaskValue`.

        Args:
            call: Calls the task.
            task: The task's name.
            anew: Whether the last value returned for it was no longer true.
        """


@dataclass(frozen=True)
class TracedProgram:
    """A program for one shape of arguments, and how to assemble the result.

    Attributes:
        program: The program; its outputs are the values for variables, then the leaves of the result.
        result: The result's tree.
        are_bytes: Which leaves of the result are byte strings.
    """

    program: Program
    result: Any
    are_bytes: tuple[bool, ...]


class TracedPrograms:
    """All programs of one function: one for each shape of arguments and each platform.

    Args:
        fn: The function, of arrays, RemoteVariables, or trees of them.
        variables: The variables that take its first results, or others of the same shapes.
    """

    def __init__(self, fn: Callable[..., Any], variables: Sequence[RemoteVariable]) -> None:
        self._fn = fn
        self._variables = list(variables)
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._known: dict[Any, TracedProgram] = {}
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def fits(self, variables: Sequence[RemoteVariable]) -> bool:
        """Return whether the first results also fit these variables."""
        return [(each.shape, each.dtype) for each in variables] == [
            (each.shape, each.dtype) for each in self._variables
        ]

    def log(self, traced: TracedProgram, device: str) -> None:
        """Write into the placement log that a program runs on a device, once."""
        key = (traced.program.content_hash, device)
        if key not in self._logged:
            self._logged.add(key)
            log_placement(self._name, "Program", device)

    def find(self, tree: Any, kinds: tuple[ArgumentKind, ...], platform: str) -> TracedProgram:
        """Return the program for such arguments, traced when they are first seen."""
        key = (tree, kinds, platform)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._trace(tree, kinds, platform)
            return self._known[key]

    def _trace(self, tree: Any, kinds: tuple[ArgumentKind, ...], platform: str) -> TracedProgram:
        result: Any = None
        are_bytes: tuple[bool, ...] = ()
        takes_bytes = any(is_bytes for *_, is_bytes in kinds)

        def flat(*leaves: Any) -> list[Any]:
            nonlocal result, are_bytes
            args, kwargs = jax.tree.unflatten(tree, leaves)
            values, rest = self._split(self._fn(*args, **kwargs))
            rest_leaves, result = jax.tree.flatten(rest, is_leaf=is_leaf)
            arrays = [self._to_array(leaf) for leaf in rest_leaves]
            are_bytes = tuple(
                is_bytes or (takes_bytes and getattr(leaf, "dtype", None) == np.uint8 and np.ndim(leaf) == 1)
                for leaf, is_bytes in arrays
            )
            return [*values, *(leaf for leaf, _ in arrays)]

        examples = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in kinds]
        return TracedProgram(export_program(flat, *examples, platform=platform), result, are_bytes)

    def _to_array(self, leaf: Any) -> tuple[Any, bool]:
        """Return a leaf of the function's result as an array, and whether it stands for a byte string."""
        if isinstance(leaf, jax.Array) or hasattr(leaf, "__jax_array__"):  # also a traced array
            return leaf, False
        try:
            return to_array(leaf)
        except ProtocolError as error:
            raise ProtocolError(
                f"{self._name} returned {leaf!r:.80}; a function that runs on a task may return arrays, numbers, bytes, "
                f"None, and tuples, lists and dictionaries of them: {error}"
            ) from None

    def _split(self, result: Any) -> tuple[list[Any], Any]:
        """Split the function's result into the values for variables and the rest."""
        count = len(self._variables)
        if count == 0:
            return [], result
        values = result if isinstance(result, tuple) else (result,)
        if len(values) < count:
            raise VariableMismatch(
                f"the function returns {len(values)} values, and {count} variables are to be assigned: return the new "
                "values first, in the order of assign_to and then of add_to, then the result"
            )
        for variable, value in zip(self._variables, values, strict=False):
            shape, dtype = np.shape(value), getattr(value, "dtype", None)
            if shape != variable.shape or str(dtype) != variable.dtype:
                raise VariableMismatch(
                    f"the function returns {dtype}{list(shape)} for variable {variable.name!r}, which is "
                    f"{variable.dtype}{list(variable.shape)}"
                )
        rest = values[count:]
        return list(values[:count]), None if not rest else rest[0] if len(rest) == 1 else rest


def is_leaf(value: Any) -> bool:
    """Return whether a value travels as one, although JAX might look into it."""
    return isinstance(value, bytes | RemoteVariable)


class RemoteFunction:
    """A function on a task of the cluster; made by `Session.function`, which describes its arguments."""

    def __init__(
        self,
        programs: TracedPrograms,
        place: TaskDevice,
        assign_to: Sequence[RemoteVariable],
        add_to: Sequence[RemoteVariable],
        peers: Peers,
        timeout: float,
        wait: bool = True,
    ) -> None:
        self._programs = programs
        self._place = place
        self._assign_to = list(assign_to)
        self._add_to = list(add_to)
        self._peers = peers
        self._timeout = timeout
        self._wait = wait

    def at(
        self,
        device: str | DeviceSpec,
        timeout: float | None = None,
        assign_to: Sequence[RemoteVariable] | None = None,
        *,
        wait: bool = True,
    ) -> "RemoteFunction":
        """Return the same function on another task: a program that is traced for one task serves all.

        Args:
            device: Where it runs.
            timeout: Seconds for each call, if not the same as here.
            assign_to: Variables that take its first results there, if not the same as here; of the same shapes.
            wait: Whether to wait for a task that is not up; a caller that has other tasks to turn to does not.
        """
        targets = self._assign_to if assign_to is None else list(assign_to)
        if not self._programs.fits([*targets, *self._add_to]):
            raise VariableMismatch(
                f"assign_to is {[each.name for each in targets]}, of other shapes or dtypes than "
                f"{[each.name for each in self._assign_to]}: give variables like those, or make another function"
            )
        return RemoteFunction(
            self._programs,
            TaskDevice.of(as_spec(device), self._place.task),
            targets,
            self._add_to,
            self._peers,
            self._timeout if timeout is None else timeout,
            wait,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it there; results that are not assigned come back as NumPy arrays."""
        peer = self._peers[self._place.task]
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_leaf)
        anew = False
        while (result := self._run(peer, self._resolve(peer, leaves, tree, anew))) is None:
            anew = True  # the task has other values than it had
        return result[0]

    def _resolve(self, peer: Peer, leaves: list[Any], tree: Any, anew: bool) -> tuple[list[Any], Any]:
        """Replace each `PerTask` argument by the values that the task has for it."""
        if not any(isinstance(leaf, PerTask) for leaf in leaves):
            return leaves, tree
        values = [
            leaf.on(partial(self._call, peer), peer.task, anew=anew) if isinstance(leaf, PerTask) else leaf
            for leaf in leaves
        ]
        return jax.tree.flatten(jax.tree.unflatten(tree, values), is_leaf=is_leaf)

    def _run(self, peer: Peer, arguments: tuple[list[Any], Any]) -> tuple[Any] | None:
        """Run it with these arguments; return `None` if the task no longer has the values that they refer to."""
        leaves, tree = arguments
        inputs: list[list[object]] = []
        tensors: list[Array] = []
        kinds: list[ArgumentKind] = []
        for leaf in leaves:
            if isinstance(leaf, RemoteVariable):
                inputs.append([VARIABLE, leaf.task, leaf.name])
                kinds.append((leaf.shape, dtype_of(leaf.dtype), leaf.holds_bytes))
            elif isinstance(leaf, TaskValue):
                inputs.append(list(leaf.reference))
                kinds.append((leaf.shape, dtype_of(leaf.dtype), False))
            else:
                array, is_bytes = to_array(leaf)
                inputs.append([TENSOR, len(tensors)])
                tensors.append(array)
                kinds.append((array.shape, array.dtype, is_bytes))
        traced = self._programs.find(tree, tuple(kinds), self._platform(peer))
        self._programs.log(traced, self._place.task + self._place.device)
        fields: Fields = {
            "program": traced.program.content_hash,
            "device": self._place.device,
            "inputs": inputs,
            "outputs": [
                *([ASSIGN, variable.task, variable.name] for variable in self._assign_to),
                *([ADD, variable.task, variable.name] for variable in self._add_to),
                *([RETURN] for _ in traced.are_bytes),
            ],
        }
        response = self._call(peer, "program.run", fields, tensors)
        if response.fields.get(
            "missing"
        ):  # its first call there, or the task was restarted, or had to forget it
            self._call(peer, "program.load", fields, [np.frombuffer(traced.program.artifact, np.uint8)])
            response = self._call(peer, "program.run", fields, tensors)
        if response.fields.get("unsuitable"):
            return None
        results = [from_array(*pair) for pair in zip(response.tensors, traced.are_bytes, strict=True)]
        return (jax.tree.unflatten(traced.result, results),)

    def _platform(self, peer: Peer) -> str:
        if "platform" not in peer.info:
            self._call(peer, "ping", {})
        return str(peer.info["platform"])

    def _call(self, peer: Peer, name: str, fields: Fields, tensors: Sequence[Array] = ()) -> Response:
        return peer.call(name, fields, tensors, timeout=self._timeout, wait=self._wait)
