"""The connections on which the workers of a group swap messages: two between any two of them.

Whatever thread runs the operations reads and writes them itself; no other thread has to be woken. Swaps take turns
on the two: a worker that sends its next message has read the one before, so what came by shared memory stays as it
is until this worker has sent its next message.
"""

from functools import partial
from typing import Final

from stratagem.collectives.bonds import Bonds
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.meeting import Introduction
from stratagem.collectives.members import Members, Registrar
from stratagem.errors import ProtocolError, TaskUnreachable
from stratagem.runtime.wire import Reply, Request
from stratagem.runtime.wire.channels import Channel

TURNS: Final = 2


class Lines:
    """This worker's ends of all its connections.

    Args:
        members: The workers.
        registrar: What answers the others' calls.
        ledger: Who they are.
        bonds: The ties between them.
    """

    def __init__(self, members: Members, registrar: Registrar, ledger: Ledger, bonds: Bonds) -> None:
        self._members = members
        self._ledger = ledger
        self._bonds = bonds
        self._channels: dict[tuple[int, int], Channel] = {}
        registrar.register(members.name_of("line"), self._handle_line)

    def connect(self) -> None:
        """Connect to all workers, who have been met: the later ones dial, the earlier ones answer."""
        members = self._members
        seconds = members.options.forming
        for worker in range(members.index):
            for turn in range(TURNS):
                words = {**Introduction.fields(members, self._ledger), "turn": turn}
                peer = members.peers[members.tasks[worker]]
                self._keep((worker, turn), peer.open(members.name_of("line"), words, timeout=seconds))
        wanted = TURNS * len(members.others)
        with self._bonds.changed:
            self._bonds.changed.wait_for(
                lambda: len(self._channels) == wanted or self._bonds.has_ended(), seconds
            )
            missing = [worker for worker in members.others if (worker, TURNS - 1) not in self._channels]
        if missing and not self._bonds.has_ended():
            raise TaskUnreachable(
                f"{members.tasks[missing[0]]} was met, but did not connect within {seconds:g} s"
            )

    def to(self, worker: int, turn: int) -> Channel:
        """The connection to a worker for this turn."""
        return self._channels[worker, turn % TURNS]

    def _handle_line(self, request: Request) -> Reply:
        worker, turn = request.fields.get("worker"), request.fields.get("turn")
        generation, token = request.fields.get("generation"), request.fields.get("token")
        if not (isinstance(worker, int) and isinstance(turn, int) and isinstance(token, str)):
            raise ProtocolError(f"a connection of nobody: {request.fields!r:.200}")
        if not isinstance(generation, int) or not self._ledger.meet(worker, generation, token):
            raise ProtocolError(
                f"worker {worker} of generation {generation} is not the one that {self._members.tasks[self._members.index]} "
                "has met. All workers must be started again together"
            )
        return Reply(take_over=partial(self._keep, (worker, turn)))

    def _keep(self, place: tuple[int, int], channel: Channel) -> None:
        with self._bonds.changed:
            is_too_late = self._bonds.has_ended()
            if not is_too_late:
                self._channels[place] = channel
            self._bonds.changed.notify_all()
        if is_too_late:
            channel.close()

    def close(self) -> None:
        """Close all connections. To be called when the group has come to an end, by the thread that used them."""
        with self._bonds.changed:
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()
