"""A worker's tie to the servers of one model: how it comes, comes back after losses, and calls them."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import numpy as np

from stratagem import environment
from stratagem.errors import DeadlineExceeded, RolledBack, TaskLost, TaskUnreachable
from stratagem.parameters import protocol
from stratagem.parameters.asked import FreeMemory, ServerAsked
from stratagem.parameters.planning import ModelPlan, Pieces
from stratagem.parameters.protocol import STATE
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.server import Server
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.failures import first_line
from stratagem.runtime.wire.waiting import WaitingLog

_log = logging.getLogger("stratagem")
_PAUSE = 0.05
LONG = 300.0
"""Seconds for a call that brings a whole model."""
GONE = (RolledBack, TaskLost, TaskUnreachable, DeadlineExceeded)
"""What a worker comes back from."""
T = TypeVar("T")


class Tie:
    """One worker and the servers of one model.

    Args:
        server: This worker's own server, by which it is known and calls others.
        worker: Its number.
        is_chief: Whether it brings the initial values.
        plan: The model.
        initial: Gives the initial values for each server.

    Attributes:
        server: See above.
        worker: See above.
        model: The model's name.
        server_count: How many servers there are.
        participants: Those that have something to do with every push.
        step: The newest global step that was heard of.
        epoch: The stretch of history that the servers are in, as far as it was heard of.
        patience: Seconds for which a lost task may come back.
        turn: Held by whoever uses the tie: the user's thread, or the one that tells a restarted leader of a pause.
    """

    def __init__(
        self, server: Server, worker: int, is_chief: bool, plan: ModelPlan, initial: Callable[[], Pieces]
    ) -> None:
        self.server = server
        self.worker = worker
        self.model = plan.configs[0].name
        self.server_count = len(plan.configs)
        self.participants = frozenset(plan.configs[0].participants)
        self.step = 0
        self.epoch = ""
        self.turn = threading.RLock()
        self._is_chief = is_chief
        self._plan = plan
        self._initial = initial
        self.patience = plan.options.rejoin_timeout
        self._memory = [FreeMemory(config) for config in plan.configs]
        self._threads = (
            ThreadPoolExecutor(self.server_count, thread_name_prefix="stratagem-tie")
            if self.server_count > 1
            else None
        )
        self._waiting_log = WaitingLog()
        self._has_begun = False

    # Coming, and coming back.

    def connect(self, why: BaseException | str = "") -> None:
        """Tell all servers of the model, and wait until it is open for training.

        Args:
            why: What makes a worker come again, for the log. That the servers are at another step is no loss: the chief
                may have restored a checkpoint.

        Raises:
            TaskLost: A server is lost for good, or does not come back in time.
        """
        began = time.monotonic()
        has_lost = bool(why) and not isinstance(why, RolledBack)
        if has_lost:
            self._say_lost(why)
        while True:
            try:
                waiting = self._try_to_join()
            except _Unrecoverable as error:
                raise TaskLost(str(error)) from None
            except GONE as error:
                waiting = first_line(error)
                if time.monotonic() - began > self.patience:
                    self._give_up(waiting, time.monotonic() - began)
            if waiting is None:
                if why:
                    level = logging.WARNING if has_lost else logging.INFO
                    _log.log(level, "%s is back, at step %d", self.server.task, self.step)
                return
            if why and not has_lost:
                has_lost = True
                self._say_lost(why)
            self.say_waiting(f"for its servers: {waiting}", time.monotonic() - began)
            # A server that is coming up, or a chief on its way, has no event to wait for here.
            time.sleep(_PAUSE)

    def _say_lost(self, why: BaseException | str) -> None:
        said = why if isinstance(why, str) else first_line(why)
        _log.warning("%s lost its servers and tries to come back: %s", self.server.task, said)

    def _say_cost(self, reached: int, step: int) -> None:
        _log.warning(
            "%s: %d update(s) are lost with a server: all have gone back from step %d to the snapshot of step %d",
            self.server.task,
            reached - step,
            reached,
            step,
        )

    def _give_up(self, problem: str, seconds: float) -> NoReturn:
        hint = ""
        if self._plan.options.snapshot_dir is None:
            hint = (
                ". There are no snapshots that they could come back from: give the strategy a snapshot_dir "
                "(stratagem run makes one by itself)"
            )
        raise TaskLost(
            f"the parameter servers could not be reached for {seconds:.0f} s (rejoin_timeout={self.patience:g}): "
            f"{problem.rstrip('.?')}. Either they are not running, or the job is over and they have ended{hint}"
        )

    def _try_to_join(self) -> str | None:
        """Why this worker has to wait, as a whole sentence; `None` when it has joined."""
        told = self.everywhere(self._found)
        if waiting := next(filter(None, (answer["waiting"] for answer in told)), None):
            return str(waiting)
        starts = [answer["start"] for answer in told]
        fields = {
            "worker": self.worker,
            "incarnation": self.server.incarnation,
            "chief": self._is_chief,
            "starts": starts,
            "had_values": bool(self.epoch) or any(answer["has_values"] for answer in told[1:]),
            "epoch": self.epoch,
            "reached": self.step,
        }
        answer = self.call(0, protocol.JOIN, fields).fields
        match answer[STATE]:
            case protocol.OK:
                self.epoch, self.step = answer["epoch"], answer["step"]
                if self._is_chief and self.step and not self._has_begun:
                    self._say_found()
                self._has_begun = True
                if "reached" in answer:
                    self._say_cost(answer["reached"], answer["cut"])
                return None
            case protocol.WANTED:
                self._has_begun = True
                self._fill()
                self.call(0, protocol.OPEN, {"starts": starts})
                return self._try_to_join()
            case protocol.WAIT:
                return str(answer["why"])
            case protocol.OVER:
                _log.warning("there is nothing left to do here: %s", answer["why"])
                raise SystemExit(0)
            case protocol.LOST:
                raise _Unrecoverable(str(answer["why"]))
            case _:
                raise RolledBack(str(answer.get("why", answer)))

    def _say_found(self) -> None:
        """Say that a model that this chief did not begin is trained already: it may be that of an earlier job."""
        peers = self.server.peers
        where = ", ".join(f"{task} at {peers.address(task)}" for task in self._plan.options.servers)
        was_restarted = environment.generation() > 0
        _log.log(
            logging.INFO if was_restarted else logging.WARNING,
            "%s finds %s trained to step %d already (%s), and goes on from there. That is right for a chief that was "
            "started again. If this is a new job, its servers are those of an earlier one, or went on from the snapshot_dir "
            "of one: end them, or give another snapshot_dir, and start again to train from the beginning",
            self.server.task,
            self.model,
            self.step,
            where,
        )

    def _found(self, server: int) -> Fields:
        config = self._plan.configs[server]
        told = {"config": config.to_fields(), "chief": self._is_chief}
        answer = self.call(server, protocol.FOUND, told).fields
        for missing in answer["missing"]:
            artifact = np.frombuffer(self._plan.programs[missing].artifact, np.uint8)
            self.call(server, protocol.PROGRAM, {}, [artifact], seconds=LONG)
        return answer

    def _fill(self) -> None:
        values = self._initial()
        self.everywhere(lambda server: self.call(server, protocol.FILL, {}, values[server], seconds=LONG))

    def persistent(self, act: Callable[[], T]) -> T:
        """Do something, again after every loss of the servers."""
        with self.turn:
            while True:
                try:
                    return act()
                except GONE as error:
                    self.connect(error)

    # Calls.

    @property
    def is_near(self) -> bool:
        """Whether all servers that take part are on this host."""
        return all(self._peer(server).transport == SHARED_MEMORY for server in self.participants)

    def ask(self, server: int, call: str, fields: Fields, tensors: Sequence[Any] = ()) -> ServerAsked:
        """Ask a server of the model for parameters, and listen to it later.

        Args:
            server: Its number.
            call: The call's name.
            fields: What goes with it.
            tensors: Arrays that go with it.
        """
        return self._asked(server, call, fields, tensors, self._memory[server], protocol.CALL_SECONDS)

    def call(
        self,
        server: int,
        call: str,
        fields: Fields,
        tensors: Sequence[Any] = (),
        seconds: float = protocol.CALL_SECONDS,
    ) -> Response:
        """Call a server about the model, and listen to it, for so many seconds at most."""
        return self._asked(server, call, fields, tensors, None, seconds).answer()

    def _asked(
        self,
        server: int,
        call: str,
        fields: Fields,
        tensors: Sequence[Any],
        memory: FreeMemory | None,
        seconds: float,
    ) -> ServerAsked:
        told = {"model": self.model, **fields}
        return ServerAsked(self._peer(server), call, told, tensors, memory, seconds)

    def everywhere(self, act: Callable[[int], T]) -> list[T]:
        """Do something for every server at once."""
        if self._threads is None:
            return [act(0)]
        return fan_out(act, range(self.server_count), self._threads.submit)

    def on_participants(self, act: Callable[[int], Response]) -> list[Response | None]:
        """The same, for those servers only that have something to do with every push."""
        if self._threads is None:
            return [act(0)]
        return self.everywhere(lambda server: act(server) if server in self.participants else None)

    def _peer(self, server: int) -> Peer:
        return self.server.peers[self._plan.options.servers[server]]

    def say_waiting(self, what: str, seconds: float) -> None:
        """Say what this worker waits for (`for …`), if it has for long, and not too often."""
        if self._waiting_log.is_due(seconds):
            _log.warning("%s waits %s (%.0f s so far)", self.server.task, what, seconds)

    def close(self) -> None:
        """End its threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class _Unrecoverable(Exception):
    """Values are gone for good."""
