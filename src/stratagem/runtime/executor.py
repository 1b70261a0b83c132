"""What a server does for clients: keep variables, and run programs on values of its own, of other tasks and of the client."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from typing import Any, TypeVar

import jax
import numpy as np

from stratagem.devices import find_device, list_devices
from stratagem.errors import ProtocolError, VariableNotFound
from stratagem.runtime.memory import physical_memory
from stratagem.runtime.peers import Peers
from stratagem.runtime.programs import ProgramCache
from stratagem.runtime.remote_function import ADD, ASSIGN, RETURN, TENSOR, VARIABLE, Supplier
from stratagem.runtime.variable_store import VariableStore
from stratagem.runtime.wire import Fields, Handler, Reply, Request, Response
from stratagem.runtime.wire.peer import DEFAULT_TIMEOUT
from stratagem.runtime.wire.waiting import Deadline

_MOST_FETCHES = 64
_SECONDS_TO_ANSWER = 5.0
K = TypeVar("K")
T = TypeVar("T")


class Executor:
    """The variables and programs of one task, and the calls that reach them.

    Args:
        task: This task's name.
        peers: The tasks of the cluster, for values that live on them.

    Attributes:
        programs: The programs that clients have shipped.
        suppliers: Functions that supply the inputs of programs that are neither the client's nor variables, by kind.
    """

    def __init__(self, task: str, peers: Peers) -> None:
        self._task = task
        self._peers = peers
        self._store = VariableStore(physical_memory())
        self.programs = ProgramCache()
        self.suppliers: dict[str, Supplier] = {}
        self._local_device = cache(find_device)  # the devices of a process do not change
        self._threads = ThreadPoolExecutor(_MOST_FETCHES, thread_name_prefix="stratagem-fetch")

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the calls that clients may make."""
        return {
            "devices": self._devices,
            "variable.put": self._put,
            "variable.describe": lambda request: Reply(self._store[_names(request)[0]].describe()),
            "variable.read": self._read,
            "variable.assign": lambda request: self._each(request, self._store.assign),
            "variable.add": lambda request: self._each(request, self._store.add),
            "variable.delete": self._delete,
            "variable.forget": self._forget,
            "program.load": self._load,
            "program.run": self._run,
        }

    def describe(self) -> Fields:
        """Return variables and programs, for the status."""
        return {"variables": self._store.describe(), "programs": asdict(self.programs.statistics())}

    def close(self) -> None:
        """End the threads and processes that it started."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.programs.close()

    # Devices.

    def _devices(self, request: Request) -> Reply:
        return Reply(
            {
                "devices": [
                    {"name": self._full_name(device.name), "description": device.description}
                    for device in list_devices()
                ]
            }
        )

    def _full_name(self, local_name: str) -> str:
        """Return the cluster's name of a device such as `/job:localhost/replica:0/task:0/device:CPU:0`."""
        job, task = self._task.removeprefix("/").split("/")
        return f"/{job}/replica:0/{task}/{local_name.rpartition('/')[2]}"

    # Variables.

    def _put(self, request: Request) -> Reply:
        fields = request.fields
        local = self._local_device(fields["device"])
        (name,) = _names(request)
        self._store.put(
            name, request.tensors[0], local.device, self._full_name(local.name), fields["holds_bytes"]
        )
        return Reply(self._store[name].describe())

    def _read(self, request: Request) -> Reply:
        return Reply(tensors=[np.asarray(self._store.read(name)) for name in _names(request)])

    def _each(self, request: Request, act: Callable[[str, Any], None]) -> Reply:
        for index, name in enumerate(_names(request)):
            act(name, request.tensors[index])
        return Reply()

    def _delete(self, request: Request) -> Reply:
        for name in _names(request):
            self._store.delete(name)
        return Reply()

    def _forget(self, request: Request) -> Reply:
        """Delete those of the variables that still exist."""
        for name in _names(request):
            with contextlib.suppress(VariableNotFound):
                self._store.delete(name)
        return Reply()

    # Programs.

    def _load(self, request: Request) -> Reply:
        _, donate, device = self._variant(request.fields)
        self.programs.load(request.take(0).tobytes(), donate, device)
        return Reply()

    def _variant(self, fields: Fields) -> tuple[set[str], tuple[int, ...], jax.Device]:
        """Return how a program is compiled for a call: variables it updates here, inputs it may reuse, its device."""
        updated = self._updated_here(fields["inputs"], fields["outputs"])
        donate = tuple(
            index for index, source in enumerate(fields["inputs"]) if self._name_here(source) in updated
        )
        return updated, donate, self._local_device(fields["device"]).device

    def _run(self, request: Request) -> Reply:
        fields = request.fields
        inputs, outputs = fields["inputs"], fields["outputs"]
        updated, donate, device = self._variant(fields)
        program = self.programs.find(fields["program"], donate, device)
        if program is None:
            return Reply({"missing": True})
        supplied = self._supply(inputs)
        if supplied is None:
            return Reply({"unsuitable": True})
        deadline = Deadline(DEFAULT_TIMEOUT if request.timeout is None else request.timeout)
        values = {**supplied, **self._fetch(inputs, deadline)}
        written = {name for target in outputs if (name := self._name_here(target)) is not None}
        for index, source in enumerate(inputs):
            if source[0] == TENSOR:
                values[index] = request.tensors[source[1]]
            elif (name := self._name_here(source)) is not None and name not in written:
                values[index] = self._store.read(name)
        with self._store.lock(written):
            for index, source in enumerate(inputs):
                if (name := self._name_here(source)) in written and name is not None:
                    variable = self._store[name]
                    values[index] = variable.value if name in updated else variable.view_locked()
            # The client reuses its shared memory after the reply: nothing may still read from it then.
            results = program([values[index] for index in range(len(inputs))], wait=True)
            pairs = list(zip(outputs, results, strict=True))
            for target, result in pairs:
                if (name := self._name_here(target)) is not None:
                    self._store[name].take(result)
            # Taken under the lock: a later update may give away the memory of results that are being sent.
            tensors = [np.asarray(result) for target, result in pairs if target[0] == RETURN]
        self._deliver(
            [pair for pair in pairs if pair[0][0] in (ASSIGN, ADD) and self._name_here(pair[0]) is None],
            deadline,
        )
        return Reply(tensors=tensors)

    def _supply(self, inputs: list[list[Any]]) -> dict[int, Any] | None:
        """Return the inputs that this task supplies; `None` if it has others than the client believes."""
        indices_by_kind = defaultdict(list)
        for index, source in enumerate(inputs):
            if source[0] not in (TENSOR, VARIABLE):
                indices_by_kind[source[0]].append(index)
        supplied: dict[int, Any] = {}
        for kind, indices in indices_by_kind.items():
            if kind not in self.suppliers:
                raise ProtocolError(f"{self._task} supplies no inputs of the kind {kind!r:.80}")
            values = self.suppliers[kind]([inputs[index] for index in indices])
            if values is None:
                return None
            supplied.update(zip(indices, values, strict=True))
        return supplied

    def _name_here(self, reference: list[Any]) -> str | None:
        """Return the variable's name, if the reference is to a variable of this task."""
        if reference[0] in (VARIABLE, ASSIGN) and reference[1] == self._task:
            return str(reference[2])
        return None

    def _updated_here(self, inputs: list[list[Any]], outputs: list[list[Any]]) -> set[str]:
        """Return the variables of this task that the program reads once and replaces: their memory may be reused."""
        reads = Counter(self._name_here(source) for source in inputs)
        written = {self._name_here(target) for target in outputs}
        return {name for name, count in reads.items() if name is not None and count == 1 and name in written}

    def _fetch(self, inputs: Iterable[list[Any]], deadline: Deadline) -> dict[int, Any]:
        """Return the values of variables of other tasks, with one call to each of them, all at the same time."""
        variables_of = defaultdict(list)
        for index, source in enumerate(inputs):
            if source[0] == VARIABLE and source[1] != self._task:
                variables_of[source[1]].append((index, source[2]))

        def fetch(task: str) -> list[np.ndarray[Any, Any]]:
            names = [name for _, name in variables_of[task]]
            return self._call(task, "variable.read", names, (), deadline).tensors

        return {
            index: value
            for task, values in zip(variables_of, self._at_once(fetch, variables_of), strict=True)
            for (index, _), value in zip(variables_of[task], values, strict=True)
        }

    def _deliver(self, values: list[tuple[list[Any], jax.Array]], deadline: Deadline) -> None:
        """Assign results to variables of other tasks, or add them, with one call of each kind to each task."""
        elsewhere = defaultdict(list)
        for (action, task, name), value in values:
            elsewhere[task, action].append((name, value))

        def deliver(destination: tuple[str, str]) -> None:
            task, action = destination
            names, arrays = zip(*elsewhere[destination], strict=True)
            tensors = [np.asarray(array) for array in arrays]
            if task == self._task:
                for name, tensor in zip(names, tensors, strict=True):
                    self._store.add(name, tensor)
            else:
                self._call(task, f"variable.{action}", list(names), tensors, deadline)

        self._at_once(deliver, elsewhere)

    def _call(
        self, task: str, call: str, names: list[str], tensors: Sequence[Any], deadline: Deadline
    ) -> Response:
        """Call another task. One that was up before and is gone is not waited for, since its variables went with it."""
        peer, left = self._peers[task], deadline.left()
        # Less than this task's caller waits, so that the caller learns whom this task has waited for.
        seconds = left - min(left / 4, _SECONDS_TO_ANSWER)
        return peer.call(call, {"names": names}, tensors, timeout=seconds, wait=not peer.was_reached)

    def _at_once(self, call: Callable[[K], T], tasks: Collection[K]) -> list[T]:
        """Call several tasks at the same time; call a single one from this thread, so that it waits for no other."""
        return [call(task) for task in tasks] if len(tasks) == 1 else list(self._threads.map(call, tasks))


def _names(request: Request) -> list[str]:
    """Return the names of the variables in a request."""
    names = request.fields["names"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ProtocolError(f"the names of variables are texts, not {names!r:.80}")
    return names
