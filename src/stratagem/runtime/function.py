"""A user's function that runs on a task of the cluster: traced here, shipped once, called by name there."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from stratagem.devices import DeviceSpec
from stratagem.devices.spec import as_spec
from stratagem.errors import VariableMismatch
from stratagem.runtime.peers import Peers
from stratagem.runtime.per_task import PerTask, TaskValue
from stratagem.runtime.place import Place
from stratagem.runtime.remote_variable import RemoteVariable
from stratagem.runtime.shipments import ArgumentKind, Shipments, is_leaf
from stratagem.runtime.values import Array, from_array, to_array
from stratagem.runtime.wire import Fields, Peer, Response, dtype_of

TENSOR, VARIABLE, RETURN, ASSIGN, ADD = "tensor", "variable", "return", "assign", "add"
"""Where a program's inputs come from, and where its outputs go."""


class RemoteFunction:
    """Calls a function on a task; see `Session.function`.

    Args:
        shipments: The function's programs.
        place: Where it runs.
        assign_to: Variables that take its first results.
        add_to: Variables that the results after those are added to.
        peers: The cluster.
        timeout: Seconds for each call.
        wait: Whether to wait for a task that is not up.
    """

    def __init__(
        self,
        shipments: Shipments,
        place: Place,
        assign_to: Sequence[RemoteVariable],
        add_to: Sequence[RemoteVariable],
        peers: Peers,
        timeout: float,
        wait: bool = True,
    ) -> None:
        self._shipments = shipments
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
        """The same function on another task: what is traced for one is traced for all.

        Args:
            device: Where.
            timeout: Seconds for each call, if not as many as here.
            assign_to: Variables that take its first results there, if not the same as here; of the same shapes.
            wait: Whether to wait for a task that is not up: who has others to turn to does not.
        """
        targets = self._assign_to if assign_to is None else list(assign_to)
        if not self._shipments.serve([*targets, *self._add_to]):
            raise VariableMismatch(
                f"assign_to is {[each.name for each in targets]}, of other shapes or dtypes than "
                f"{[each.name for each in self._assign_to]}: give variables like those, or make another function"
            )
        return RemoteFunction(
            self._shipments,
            Place.of(as_spec(device), self._place.task),
            targets,
            self._add_to,
            self._peers,
            self._timeout if timeout is None else timeout,
            wait,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it there; what is not assigned comes back as NumPy arrays."""
        peer = self._peers[self._place.task]
        given, tree = jax.tree.flatten((args, kwargs), is_leaf=is_leaf)
        anew = False
        while (returned := self._run(peer, self._told(peer, given, tree, anew))) is None:
            anew = True  # the task has other values than it had
        return returned[0]

    def _told(self, peer: Peer, given: list[Any], tree: Any, anew: bool) -> tuple[list[Any], Any]:
        """The arguments, with what the task has of its own in place of what stands for it."""
        if not any(isinstance(leaf, PerTask) for leaf in given):
            return given, tree
        found = [
            leaf.on(partial(self._call, peer), peer.task, anew=anew) if isinstance(leaf, PerTask) else leaf
            for leaf in given
        ]
        leaves, whole = jax.tree.flatten(jax.tree.unflatten(tree, found), is_leaf=is_leaf)
        return leaves, whole

    def _run(self, peer: Peer, arguments: tuple[list[Any], Any]) -> tuple[Any] | None:
        """Run it with these arguments; `None` if the task no longer has what they say it has."""
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
        shipment = self._shipments.find(tree, tuple(kinds), self._platform(peer))
        self._shipments.log(shipment, self._place.task + self._place.device)
        fields: Fields = {
            "program": shipment.program.content_hash,
            "device": self._place.device,
            "inputs": inputs,
            "outputs": [
                *([ASSIGN, variable.task, variable.name] for variable in self._assign_to),
                *([ADD, variable.task, variable.name] for variable in self._add_to),
                *([RETURN] for _ in shipment.are_bytes),
            ],
        }

        def run() -> Response:
            return self._call(peer, "program.run", fields, tensors)

        response = run()
        if response.fields.get("missing"):  # its first call there, or it was restarted, or had to forget
            artifact = np.frombuffer(shipment.program.artifact, np.uint8)
            self._call(peer, "program.load", fields, [artifact])
            response = run()
        if response.fields.get("unsuitable"):
            return None
        results = [from_array(*pair) for pair in zip(response.tensors, shipment.are_bytes, strict=True)]
        return (jax.tree.unflatten(shipment.result, results),)

    def _platform(self, peer: Peer) -> str:
        if "platform" not in peer.info:
            self._call(peer, "ping", {})
        return str(peer.info["platform"])

    def _call(self, peer: Peer, name: str, fields: Fields, tensors: Sequence[Array] = ()) -> Response:
        return peer.call(name, fields, tensors, timeout=self._timeout, wait=self._wait)
