"""A user's function that runs on a task of the cluster: traced here, shipped once, called by name there."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.devices import log_placement
from stratagem.errors import VariableMismatch
from stratagem.runtime.peers import Peers
from stratagem.runtime.place import Place
from stratagem.runtime.programs import Program, export_program
from stratagem.runtime.remote_variable import RemoteVariable
from stratagem.runtime.values import Array, from_array, to_array
from stratagem.runtime.wire import Fields, Peer, dtype_of

TENSOR, VARIABLE, RETURN, ASSIGN = "tensor", "variable", "return", "assign"
"""Where a program's inputs come from, and where its outputs go."""


@dataclass(frozen=True)
class _Shipment:
    """A program for one shape of arguments, and how to put together what it returns.

    Attributes:
        program: The program; its outputs are the values to assign, then the leaves of the result.
        result: The result's tree.
        are_bytes: Which leaves of the result are byte strings.
    """

    program: Program
    result: Any
    are_bytes: tuple[bool, ...]


class RemoteFunction:
    """Calls a function on a task; see `Session.function`.

    Args:
        fn: The function, of arrays, RemoteVariables, or trees of them.
        place: Where it runs.
        assign_to: Variables that take its first results.
        peers: The cluster.
        timeout: Seconds for each call.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        place: Place,
        assign_to: Sequence[RemoteVariable],
        peers: Peers,
        timeout: float,
    ) -> None:
        self._fn = fn
        self._place = place
        self._assign_to = list(assign_to)
        self._peers = peers
        self._timeout = timeout
        self._shipments: dict[Any, _Shipment] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """Run it there; what is not assigned comes back as NumPy arrays."""
        leaves, tree = jax.tree.flatten(args, is_leaf=_is_leaf)
        inputs: list[list[object]] = []
        tensors: list[Array] = []
        kinds: list[tuple[tuple[int, ...], Any, bool]] = []
        for leaf in leaves:
            if isinstance(leaf, RemoteVariable):
                inputs.append([VARIABLE, leaf.task, leaf.name])
                kinds.append((leaf.shape, dtype_of(leaf.dtype), leaf.holds_bytes))
            else:
                array, is_bytes = to_array(leaf)
                inputs.append([TENSOR, len(tensors)])
                tensors.append(array)
                kinds.append((array.shape, array.dtype, is_bytes))
        peer = self._peers[self._place.task]
        shipment = self._shipment(peer, tree, tuple(kinds))
        fields: Fields = {
            "program": shipment.program.content_hash,
            "device": self._place.device,
            "inputs": inputs,
            "outputs": [
                *([ASSIGN, variable.task, variable.name] for variable in self._assign_to),
                *([RETURN] for _ in shipment.are_bytes),
            ],
        }
        response = peer.call("program.run", fields, tensors, timeout=self._timeout)
        if response.fields.get("missing"):  # its first call there, or it was restarted, or had to forget
            artifact = np.frombuffer(shipment.program.artifact, np.uint8)
            peer.call("program.load", fields, [artifact], timeout=self._timeout)
            response = peer.call("program.run", fields, tensors, timeout=self._timeout)
        leaves = [from_array(*pair) for pair in zip(response.tensors, shipment.are_bytes, strict=True)]
        return jax.tree.unflatten(shipment.result, leaves)

    def _shipment(self, peer: Peer, tree: Any, kinds: tuple[Any, ...]) -> _Shipment:
        """The program for these arguments, traced when they are first seen."""
        if "platform" not in peer.info:
            peer.call("ping", timeout=self._timeout)
        key = (tree, kinds, peer.info["platform"])
        with self._lock:
            if key not in self._shipments:
                self._shipments[key] = self._trace(tree, kinds, str(peer.info["platform"]))
                name = getattr(self._fn, "__name__", type(self._fn).__name__)
                log_placement(name, "Program", self._place.task + self._place.device)
            return self._shipments[key]

    def _trace(self, tree: Any, kinds: tuple[Any, ...], platform: str) -> _Shipment:
        result: Any = None
        are_bytes: tuple[bool, ...] = ()
        takes_bytes = any(is_bytes for *_, is_bytes in kinds)

        def flat(*leaves: Any) -> list[Any]:
            nonlocal result, are_bytes
            values, rest = self._split(self._fn(*jax.tree.unflatten(tree, leaves)))
            rest_leaves, result = jax.tree.flatten(rest, is_leaf=_is_leaf)
            arrays = [to_array(leaf)[0] if isinstance(leaf, bytes) else leaf for leaf in rest_leaves]
            are_bytes = tuple(
                isinstance(leaf, bytes)
                or (takes_bytes and getattr(leaf, "dtype", None) == np.uint8 and np.ndim(leaf) == 1)
                for leaf in rest_leaves
            )
            return [*values, *arrays]

        examples = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in kinds]
        return _Shipment(export_program(flat, *examples, platform=platform), result, are_bytes)

    def _split(self, returned: Any) -> tuple[list[Any], Any]:
        """What a call of the function returned, as the values to assign and the rest."""
        count = len(self._assign_to)
        if count == 0:
            return [], returned
        parts = returned if isinstance(returned, tuple) else (returned,)
        if len(parts) < count:
            raise VariableMismatch(
                f"the function returns {len(parts)} values, and {count} variables are to be assigned: return the new "
                "values first, in the order of assign_to, then the result"
            )
        for variable, value in zip(self._assign_to, parts, strict=False):
            shape, dtype = np.shape(value), getattr(value, "dtype", None)
            if shape != variable.shape or str(dtype) != variable.dtype:
                raise VariableMismatch(
                    f"the function returns {dtype}{list(shape)} for variable {variable.name!r}, which is "
                    f"{variable.dtype}{list(variable.shape)}"
                )
        rest = parts[count:]
        return list(parts[:count]), None if not rest else rest[0] if len(rest) == 1 else rest


def _is_leaf(value: Any) -> bool:
    return isinstance(value, bytes | RemoteVariable)
