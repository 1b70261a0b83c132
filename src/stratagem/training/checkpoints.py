"""`Checkpointer`: the states of a training, on disk, to go on from under any strategy."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from os import PathLike
from typing import Any, Self

from stratagem.errors import KeepError, RemoteError, StrategyError
from stratagem.keep import write_file
from stratagem.runtime.exits import at_normal_exit
from stratagem.training.checkpoint_files import CheckpointFiles, Saved, Shards
from stratagem.training.checkpoint_form import form_of, form_of_tables, host_copies, named, serving_names
from stratagem.training.preemption import Preempted, preemption
from stratagem.training.restoring import restored
from stratagem.waist import TrainState
from stratagem.waist.home import PreemptionNotice
from stratagem.waist.state import at_next_step
from stratagem.waist.user_functions import describe

_log = logging.getLogger("stratagem")


class Checkpointer:
    """Saves the states of a training and brings the last one back, under the same strategy or another.

    The same script may run on every worker: the state tells who is chief, and only the chief writes. A checkpoint
    holds the parameters, the optimizer's state, the moving averages, what is not trained, the step and the seed,
    by name: it fits every strategy, and any number of devices, workers and servers. Under parameter servers, each
    writes what it holds by itself where it can reach the directory; else it comes by way of the chief.

    Writing goes on in a thread: a step waits only until the state has been copied, and until the checkpoint before
    it is written. What goes wrong there is raised by the next call. A process that ends finishes what it has begun;
    one that is killed leaves an unfinished checkpoint, which is never read.

    Args:
        directory: Where they are; each training has its own.
        keep: How many of the newest stay.
        keep_every: Those at multiples of this step stay for good.

    Attributes:
        data: What the restored checkpoint was given as `data`.

    Example:
        >>> checkpoints = Checkpointer("checkpoints")
        >>> state = checkpoints.restore(like=state) or state
        >>> for batch in strategy.distribute(batches[int(state.step):]):
        ...     state, metrics = step(state, batch)
        ...     if int(state.step) % 100 == 0:
        ...         checkpoints.save(state)
        >>> checkpoints.close()
    """

    def __init__(
        self, directory: str | PathLike[str], keep: int = 5, *, keep_every: int | None = None
    ) -> None:
        self._files = CheckpointFiles(directory, keep, keep_every)
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._forget_exit: Callable[[], None] = _nothing
        self._may_stop = True
        self._notice: PreemptionNotice | None = None
        self.data: Any = None
        self._is_in_use = False
        at_next_step(self._see_training)

    # What there is.

    def steps(self) -> list[int]:
        """The steps of all checkpoints, in order; one that is being written is waited for.

        Raises:
            KeepError: The last one could not be written.
        """
        self._is_in_use = True
        self.wait()
        return self._files.cuts.steps()

    def latest(self) -> int | None:
        """The step of the newest of them; `None` if there is none."""
        return max(self.steps(), default=None)

    def _see_training(self, state: TrainState) -> None:
        """Say at the first step, not at the first `save`, that a training does not go on from what is here."""
        if self._is_in_use or not is_chief(state):
            return
        latest, step = self._files.cuts.latest(), int(state.step)
        if latest is not None and step < latest:
            _log.warning(
                "%s holds a checkpoint of step %d, and a training that has not restored it goes on from step %d: none can "
                "be saved there until it is past that. Begin with restore(like=state), to go on from it; or give this "
                "training a directory of its own; or remove that one",
                self._files.cuts.root,
                latest,
                step,
            )

    # Saving.

    def save(self, state: TrainState, data: Any = None) -> None:
        """Save a state; nothing is done where there is a checkpoint of its step already, or this is not the chief.

        Args:
            state: The state. It may go into the next step as soon as this returns. Who trains without a strategy makes
                one with `TrainState.of`.
            data: Where the data stand, if the step does not tell: plain values (numbers, text, lists and
                dictionaries of them) or bytes. Of several workers, what the chief gives is kept.

        Raises:
            StrategyError: It is no state.
            KeepError: The last checkpoint could not be written, or this one cannot: the directory has checkpoints of
                another training or model in it, for example.
        """
        self.wait()
        _check_state("save was given", state)
        self._meet(state)
        if state.recipe.home.workers is not None:
            state = state.recipe.home.workers.ready(state)  # of which each worker may have a part
        if not is_chief(state):
            return
        if state.recipe.home.servers is None:
            step = int(state.step)
            if self._files.is_wanted(step, form_of(state)):
                tables = state.recipe.tables
                arrays = host_copies(named(state)) | (tables.copies() if tables else {})
                saved = Saved(step, state.recipe.seed, arrays, data, form_of_tables(state))
                self._start(partial(self._files.write, saved))
        else:
            self._save_served(state, data)

    def _save_served(self, state: TrainState, data: Any) -> None:
        served, form = state.recipe.home.servers, form_of(state)
        if served is None:
            return
        is_wanted = False

        def make(step: int) -> bool:
            nonlocal is_wanted
            is_wanted = self._files.is_wanted(step, form)
            if is_wanted:
                self._files.make(step)
            return is_wanted

        step, others = served.save(str(self._files.cuts.root), make)
        if not is_wanted:
            return
        served.before_closing(self._settle)
        if others is not None:
            own = {
                f"state/{number}": each
                for number, (kind, each) in enumerate(zip(state.kinds, state.flat_state, strict=True))
                if kind != "mean"
            }
            saved = Saved(step, state.recipe.seed, host_copies(own), data, form_of_tables(state))
            self._start(partial(self._write_served, saved, others))
            return
        if state.recipe.tables is not None:
            raise KeepError(
                f"the parameter servers cannot reach {self._files.cuts.root}, and rows of tables do not come by way of the "
                "chief: give checkpoints a directory that the hosts of all servers share"
            )
        fetched = served.fetch(state)
        step = int(fetched.step)
        if self._files.is_wanted(step, form):
            saved = Saved(step, state.recipe.seed, host_copies(named(fetched)), data)
            self._start(partial(self._files.write, saved))

    def _write_served(self, saved: Saved, others: Callable[[], Shards]) -> None:
        try:
            self._files.write(saved, others)
        except RemoteError as error:
            # The servers come back by themselves, at an earlier step: nothing that has to end the training.
            _log.warning(
                "there is no checkpoint of step %d, a server was lost meanwhile: %s", saved.step, error
            )

    def _start(self, write: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="stratagem-checkpoint")
            self._forget_exit = at_normal_exit(self.close)
        self._pending = self._thread.submit(write)

    def _settle(self) -> None:
        """Wait, and leave what went wrong to the next call."""
        if self._pending is not None:
            self._pending.exception()

    def wait(self) -> None:
        """Wait until all that was saved is written.

        Raises:
            KeepError: It could not be.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    # Restoring.

    def restore(self, like: TrainState, step: int | None = None) -> TrainState | None:
        """The newest checkpoint that can be read, laid out as `like` is; `None` if there is none at all.

        Of several workers every one has to call this; the chief reads, and the others get it from there. State that
        is a worker's own (seeds, counters) comes back to the chief, and stays as it is in `like` on the others. On
        parameter servers, the values are set for all workers. A chief that was started again finds servers that go on
        training without it: if they are ahead of the checkpoint, what they have stays.

        Args:
            like: A state of the same model and optimizer, from this strategy. It is not to be used any more.
            step: Which checkpoint, if not the newest. Training then goes on from there: newer checkpoints are removed
                when it is saved the next time.

        Raises:
            StrategyError: `like` is no state.
            KeepError: Every checkpoint is damaged, or there is none of that step; or they are of another model: the
                message shows in what it differs.

        Example:
            >>> state = checkpoints.restore(like=state) or state
        """
        self.wait()
        _check_state("restore was given like=", like)
        self._meet(like)
        found = restored(like, partial(self._read, form_of(like), step), step is not None)
        if found is None:
            return None
        state, self.data = found
        return state

    def _read(self, form: Any, step: int | None) -> Saved | None:
        saved = self._files.read(form, step)
        if saved is not None:
            self._files.pass_over(
                "it cannot be read" if step is None else f"training has gone back to step {step}"
            )
        return saved

    # For others.

    def export(self, state: TrainState, path: str | PathLike[str], *, ema: bool = False) -> None:
        """Write the parameters alone to one safetensors file, to serve the model elsewhere. Only the chief does.

        Args:
            state: The state.
            path: The file; one that is there already is replaced.
            ema: The moving averages instead of the parameters.

        Raises:
            KeepError: It cannot be written, or the state has no moving averages.

        Example:
            >>> checkpoints.export(state, "model.safetensors", ema=True)
            >>> safetensors.numpy.load_file("model.safetensors")["dense/kernel"]
        """
        if not is_chief(state):
            return
        if ema and state.recipe.ema is None:
            raise KeepError(
                "this state has no moving averages: export without ema, or init with an ema_decay"
            )
        served = state.recipe.home.servers
        whole = state if served is None else served.fetch(state)
        values = whole.flat_ema if ema and whole.flat_ema is not None else whole.flat_params
        write_file(path, host_copies(dict(zip(serving_names(whole), values, strict=True))))

    # The end.

    def preemption(self) -> AbstractContextManager[Preempted]:
        """A block in which SIGTERM, by which a machine is taken away, leaves time to save.

        The block gives a value that is true once the signal has come; the process ends when it leaves the block
        after that, with exit code 143, when all is written. `stratagem run` gives its tasks `--grace` seconds for it.
        Of workers in step, it is true on the chief alone, whichever of them the signal came to: the others train on
        until the chief has saved and gone, and end then too.

        Example:
            >>> with checkpoints.preemption() as preempted:
            ...     for batch in strategy.distribute(batches):
            ...         state, metrics = step(state, batch)
            ...         if preempted:
            ...             checkpoints.save(state)
            ...             break
        """
        return preemption(lambda: self._may_stop, self.close, lambda: self._notice)

    def _meet(self, state: TrainState) -> None:
        """Take note of who trains a state."""
        self._is_in_use = True
        self._may_stop, self._notice = may_stop(state), state.recipe.home.preemption_notice()

    def close(self) -> None:
        """Finish what is being written. Also done when the process ends.

        Raises:
            KeepError: It could not be written.
        """
        self._forget_exit()
        try:
            self.wait()
        finally:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:  # what the block has raised is what counts
            self._settle()


def _check_state(got: str, state: object) -> None:
    """Refuses what is no state."""
    if not isinstance(state, TrainState):
        raise StrategyError(
            f"{got} {describe(state)}; give the state that strategy.init and the steps return, or of a training by hand "
            "sg.TrainState.of(params, optimizer, opt_state, step)"
        )


def is_chief(state: TrainState) -> bool:
    """Whether this process writes what only one should write of a state."""
    return state.recipe.home.is_chief


def may_stop(state: TrainState) -> bool:
    """Whether a process may stop training by itself: nobody who has to save waits for its next step then."""
    return is_chief(state) or not state.recipe.home.in_step


def _nothing() -> None:
    """Nothing to forget."""
