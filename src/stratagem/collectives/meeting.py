"""How the workers of a group find each other: whoever is up waits for those who are not, and says for whom."""

import logging
from collections.abc import Callable

from stratagem.collectives.ledger import Ledger
from stratagem.collectives.members import Members
from stratagem.errors import (
    ClusterError,
    DeadlineExceeded,
    RemoteError,
    StratagemError,
    TaskLost,
    TaskUnreachable,
    UnknownCall,
)
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.waiting import Deadline, WaitingLog, back_off

_log = logging.getLogger("stratagem")
_MORE_TO_SAY = 0.01


class Introduction:
    """What a worker tells of itself when it meets another."""

    @staticmethod
    def fields(members: Members, ledger: Ledger) -> Fields:
        """This worker's own words."""
        return {
            "worker": members.index,
            "count": members.count,
            "generation": ledger.generation,
            "token": ledger.token,
        }


def meet(
    members: Members, ledger: Ledger, worker: int, wait: Callable[[int, float], bool]
) -> StratagemError | None:
    """Call a worker until it has introduced itself; what went wrong if it does not.

    Args:
        members: The group.
        ledger: What this worker tells of itself.
        worker: Whom to meet.
        wait: Waits so many seconds; whether there is nothing more to wait for meanwhile.
    """
    task = members.tasks[worker]
    deadline, log, problem = Deadline(members.options.forming), WaitingLog(), ""
    for pause in back_off():
        try:
            # The wire says in the log for whom it waits.
            response = members.peers[task].call(
                members.name_of("meet"),
                Introduction.fields(members, ledger),
                timeout=max(_MORE_TO_SAY, deadline.left()),
            )
        except TaskLost as error:
            problem = str(error)
        except UnknownCall:  # it is a server so far, and no worker of the group
            problem = "it is up, but has not made the group yet"
        except DeadlineExceeded as error:  # with the last of the time; what was wrong before says more
            problem = problem or str(error)
        except RemoteError as error:
            return error
        else:
            verdict = _judge(members, ledger, worker, response.fields)
            if verdict is None:
                return None
            if isinstance(verdict, StratagemError):
                return verdict
            problem = verdict
        if not deadline.left():
            unmet = TaskUnreachable(
                f"{task} did not join the group {members.name!r} within {members.options.forming:g} s: {problem.rstrip('.?')}. "
                "Does it run the same program as this worker?"
            )
            unmet.task = task
            return unmet
        if log.is_due(deadline.elapsed()):
            _log.warning("waiting for %s: %s (%.0f s so far)", task, problem, deadline.elapsed())
        if wait(worker, min(pause, deadline.left())):
            break
    return None


def _judge(members: Members, ledger: Ledger, worker: int, told: Fields) -> StratagemError | str | None:
    """What to make of a worker's introduction: an error, a reason to ask again, or nothing wrong."""
    task, here = members.tasks[worker], members.tasks[members.index]
    if (told.get("worker"), told.get("count")) != (worker, members.count):
        return ClusterError(
            f"{task} says that it is worker {told.get('worker')} of {told.get('count')}, but {here} has it as worker "
            f"{worker} of {members.count}: give all tasks the same cluster (TF_CONFIG)"
        )
    generation, token = told.get("generation"), told.get("token")
    if not isinstance(generation, int) or not isinstance(token, str):
        return "its answer makes no sense"
    if generation > ledger.generation:
        return RemoteError(
            f"{task} belongs to generation {generation} of the job, {here} to generation {ledger.generation}, which is "
            "over: this process should have ended"
        )
    if generation < ledger.generation:
        return f"it is still there from generation {generation} of the job"
    if not ledger.meet(worker, generation, token):
        return "it has been started again meanwhile"
    return None
