"""Several calls at once: all are over before the first error is raised, so that no thread uses their arrays any more."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
ResultOut = TypeVar("ResultOut", covariant=True)


class RunningCall(Protocol[ResultOut]):
    """A call in another thread, such as a `Future`."""

    def result(self) -> ResultOut:
        """Wait until the call is over; return its result, or raise its error."""
        ...


def fan_out(
    act: Callable[[Item], Result],
    items: Sequence[Item],
    start: Callable[[Callable[[Item], Result], Item], RunningCall[Result]] | None = None,
    *,
    most: int | None = None,
) -> list[Result]:
    """Call a function for all items at once: for the first in this thread, for the others in threads of their own.

    Args:
        act: The function.
        items: Its arguments.
        start: Starts a call in another thread, as `Executor.submit` does. By default the threads are new, and end here.
        most: How many threads to start by default; one for each item unless given.

    Raises:
        Exception: The first error, in the order of the items, once all calls are over.
    """
    if len(items) < 2:
        return [act(item) for item in items]
    if start is None:
        with ThreadPoolExecutor(most or len(items)) as threads:
            return fan_out(act, items, threads.submit)
    others = [start(act, item).result for item in items[1:]]
    return results_of([partial(act, items[0]), *others])


def results_of(waits: Iterable[Callable[[], Result]]) -> list[Result]:
    """Return the results of several waits, one after the other; raise the first error once all are over."""
    results, errors = [], []
    for wait in waits:
        try:
            results.append(wait())
        except Exception as error:  # noqa: BLE001  raised below
            errors.append(error)
    if errors:
        raise errors[0]
    return results
