"""A user's function that runs on a task of the cluster: traced here, shipped once, called by name there."""

from typing import Any

import jax
import numpy as np

from stratagem.devices import DeviceSpec, log_placement
from stratagem.devices.spec import as_spec
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
        peers: The cluster.
        timeout: Seconds for each call.
    """

    def __init__(self, shipments: Shipments, place: Place, peers: Peers, timeout: float) -> None:
        self._shipments = shipments
        self._place = place
        self._peers = peers
        self._timeout = timeout
        self._logged: set[str] = set()

    def at(self, device: str | DeviceSpec, timeout: float | None = None) -> "RemoteFunction":
        """The same function on another task: what is traced for one is traced for all.

        Args:
            device: Where.
            timeout: Seconds for each call, if not as many as here.
        """
        place = Place.of(as_spec(device), self._place.task)
        return RemoteFunction(
            self._shipments, place, self._peers, self._timeout if timeout is None else timeout
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
            leaf.on(peer, self._timeout, anew=anew) if isinstance(leaf, PerTask) else leaf for leaf in given
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
        self._log(shipment.program.content_hash)
        fields: Fields = {
            "program": shipment.program.content_hash,
            "device": self._place.device,
            "inputs": inputs,
            "outputs": [
                *([ASSIGN, variable.task, variable.name] for variable in self._shipments.assign_to),
                *([ADD, variable.task, variable.name] for variable in self._shipments.add_to),
                *([RETURN] for _ in shipment.are_bytes),
            ],
        }

        def run() -> Response:
            return peer.call("program.run", fields, tensors, timeout=self._timeout)

        response = run()
        if response.fields.get("missing"):  # its first call there, or it was restarted, or had to forget
            artifact = np.frombuffer(shipment.program.artifact, np.uint8)
            peer.call("program.load", fields, [artifact], timeout=self._timeout)
            response = run()
        if response.fields.get("unsuitable"):
            return None
        results = [from_array(*pair) for pair in zip(response.tensors, shipment.are_bytes, strict=True)]
        return (jax.tree.unflatten(shipment.result, results),)

    def _platform(self, peer: Peer) -> str:
        if "platform" not in peer.info:
            peer.call("ping", timeout=self._timeout)
        return str(peer.info["platform"])

    def _log(self, program: str) -> None:
        if program not in self._logged:
            self._logged.add(program)
            log_placement(self._shipments.name, "Program", self._place.task + self._place.device)
