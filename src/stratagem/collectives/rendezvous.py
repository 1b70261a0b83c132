"""The rendezvous of a group's workers: each waits for those that are not up yet, and logs for whom."""

import logging
from collections.abc import Callable

from stratagem.collectives.group_state import GroupState
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
_SHORTEST_CALL = 0.01


def introduction(members: Members, state: GroupState) -> Fields:
    """Return what this worker tells of itself when it meets another."""
    return {
        "worker": members.index,
        "count": members.count,
        "generation": state.generation,
        "token": state.token,
    }


def meet(
    members: Members, state: GroupState, worker: int, wait: Callable[[int, float], bool]
) -> StratagemError | None:
    """Call a worker until it has introduced itself. Return what went wrong if it does not.

    Args:
        members: The group.
        state: This worker's knowledge of the group.
        worker: The worker to meet.
        wait: Waits for a worker for some seconds. Returns True if there is no need to call it any more.
    """
    task = members.tasks[worker]
    deadline, log, problem = Deadline(members.options.forming), WaitingLog(), ""
    for pause in back_off():
        try:
            # While it is not reachable, the wire logs that this task waits for it.
            response = members.peers[task].call(
                members.name_of("meet"),
                introduction(members, state),
                timeout=max(_SHORTEST_CALL, deadline.left()),
            )
        except TaskLost as error:
            problem = str(error)
        except UnknownCall:  # its server is up, and does not know the group yet
            problem = "it is up, but has not made the group yet"
        except DeadlineExceeded as error:  # with the last of the time; an earlier problem says more
            problem = problem or str(error)
        except RemoteError as error:
            return error
        else:
            verdict = _judge(members, state, worker, response.fields)
            if not isinstance(verdict, str):
                return verdict
            problem = verdict
        if not deadline.left():
            unmet = TaskUnreachable(
                f"{task} did not join the group {members.name!r} within {members.options.forming:g} s: "
                f"{problem.rstrip('.?')}. Does it run the same program as this worker?"
            )
            unmet.task = task
            return unmet
        if log.is_due(deadline.elapsed()):
            _log.warning("waiting for %s: %s (%.0f s so far)", task, problem, deadline.elapsed())
        if wait(worker, min(pause, deadline.left())):
            break
    return None


def _judge(members: Members, state: GroupState, worker: int, fields: Fields) -> StratagemError | str | None:
    """Judge a worker's introduction: return an error, a reason to ask again, or None if nothing is wrong."""
    task, here = members.tasks[worker], members.tasks[members.index]
    if (fields.get("worker"), fields.get("count")) != (worker, members.count):
        return ClusterError(
            f"{task} says that it is worker {fields.get('worker')} of {fields.get('count')}, but {here} has it as "
            f"worker {worker} of {members.count}: give all tasks the same cluster (TF_CONFIG)"
        )
    generation, token = fields.get("generation"), fields.get("token")
    if not isinstance(generation, int) or not isinstance(token, str):
        return "its answer makes no sense"
    if generation > state.generation:
        return RemoteError(
            f"{task} belongs to generation {generation} of the job, {here} to generation {state.generation}, which is "
            "over: this process should have ended"
        )
    if generation < state.generation:
        return f"it is still there from generation {generation} of the job"
    if not state.identify(worker, generation, token):
        return "it has been started again meanwhile"
    return None
