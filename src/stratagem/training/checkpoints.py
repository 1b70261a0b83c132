"""`Checkpointer`: saves the states of a training, and restores them under any strategy."""

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
from stratagem.training.checkpoint_files import Checkpoint, CheckpointFiles, Shards
from stratagem.training.checkpoint_restore import restore_state
from stratagem.training.preemption import Preempted, preemption
from stratagem.training.state_arrays import (
    form_of,
    form_of_tables,
    host_copies,
    named_arrays,
    serving_names,
)
from stratagem.waist import TrainState
from stratagem.waist.home import PreemptionNotice
from stratagem.waist.state import at_next_step
from stratagem.waist.user_functions import describe

_log = logging.getLogger("stratagem")


class Checkpointer:
    """Saves the states of a training and restores the last one, under the same strategy or another.

    The same script may run on every worker: the state says who is chief, and only the chief writes. A checkpoint
    holds the parameters, the optimizer's state, the moving averages, untrained state, the step and the seed, by name:
    it fits every strategy, and any number of devices, workers and servers. Parameter servers that can reach the
    directory write their own parts; otherwise, the chief writes everything.

    A thread writes: a step waits only until the state has been copied, and until the checkpoint before it is
    written. The next call raises errors of the thread. A process that ends finishes the checkpoint that it has begun;
    one that is killed leaves an unfinished checkpoint, which is never read.

    Args:
        directory: The directory of the checkpoints; each training has its own.
        keep: The number of newest checkpoints to keep.
        keep_every: Checkpoints at multiples of this step are kept for good.

    Attributes:
        data: The `data` that the restored checkpoint was saved with.

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
        self._forget_exit: Callable[[], None] = lambda: None
        self._decides = True
        self._notice: PreemptionNotice | None = None
        self.data: Any = None
        self._is_in_use = False
        at_next_step(self._warn_of_checkpoints)

    # Checkpoints that exist.

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in order, after waiting for one that is being written.

        Raises:
            KeepError: The last one could not be written.
        """
        self._is_in_use = True
        self.wait()
        return self._files.snapshots.steps()

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint; `None` if there is none."""
        return max(self.steps(), default=None)

    def _warn_of_checkpoints(self, state: TrainState) -> None:
        """Warn at the first step, not at the first `save`, that a training does not go on from the checkpoints here."""
        if self._is_in_use or not is_chief(state):
            return
        latest, step = self._files.snapshots.latest(), int(state.step)
        if latest is not None and step < latest:
            _log.warning(
                "%s holds a checkpoint of step %d, and a training that has not restored it goes on from step %d: none can "
                "be saved there until it is past that. Begin with restore(like=state), to go on from it; or give this "
                "training a directory of its own; or remove that one",
                self._files.snapshots.root,
                latest,
                step,
            )

    # Saving.

    def save(self, state: TrainState, data: Any = None) -> None:
        """Save a state. Do nothing if there is a checkpoint of its step already, or if this is not the chief.

        Args:
            state: The state. It may go into the next step as soon as this returns. To train without a strategy, make
                one with `TrainState.of`.
            data: The position in the data, if it does not follow from the step: plain values (numbers, text, lists and
                dictionaries of them) or bytes. Of several workers, the chief's is saved.

        Raises:
            StrategyError: This is not a state.
            KeepError: The last checkpoint could not be written, or this one cannot: for example, because the directory
                has checkpoints of another training or model.
        """
        self.wait()
        _check_state("save was given", state)
        self._note_training(state)
        if state.recipe.home.workers is not None:
            state = state.recipe.home.workers.ready(state)  # each worker may hold a part of it
        if not is_chief(state):
            return
        if state.recipe.home.servers is None:
            step = int(state.step)
            if self._files.is_wanted(step, form_of(state)):
                tables = state.recipe.tables
                arrays = host_copies(named_arrays(state)) | (tables.copies() if tables else {})
                checkpoint = Checkpoint(step, state.recipe.seed, arrays, data, form_of_tables(state))
                self._start(partial(self._files.write, checkpoint))
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

        step, others = served.save(str(self._files.snapshots.root), make)
        if not is_wanted:
            return
        served.before_closing(self._settle)
        if others is not None:
            own = {
                f"state/{number}": each
                for number, (kind, each) in enumerate(zip(state.kinds, state.flat_state, strict=True))
                if kind != "mean"
            }
            checkpoint = Checkpoint(step, state.recipe.seed, host_copies(own), data, form_of_tables(state))
            self._start(partial(self._write_served, checkpoint, others))
            return
        if state.recipe.tables is not None:
            raise KeepError(
                f"the parameter servers cannot reach {self._files.snapshots.root}, and the chief cannot write the rows of tables for "
                "them: give checkpoints a directory that the hosts of all servers share"
            )
        fetched = served.fetch(state)
        step = int(fetched.step)
        if self._files.is_wanted(step, form):
            checkpoint = Checkpoint(step, state.recipe.seed, host_copies(named_arrays(fetched)), data)
            self._start(partial(self._files.write, checkpoint))

    def _write_served(self, checkpoint: Checkpoint, others: Callable[[], Shards]) -> None:
        try:
            self._files.write(checkpoint, others)
        except RemoteError as error:
            # The servers come back by themselves, at an earlier step, so training need not end.
            _log.warning(
                "there is no checkpoint of step %d, because a server was lost meanwhile: %s",
                checkpoint.step,
                error,
            )

    def _start(self, write: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="stratagem-checkpoint")
            self._forget_exit = at_normal_exit(self.close)
        self._pending = self._thread.submit(write)

    def _settle(self) -> None:
        """Wait, and leave an error for the next call to raise."""
        if self._pending is not None:
            self._pending.exception()

    def wait(self) -> None:
        """Wait until the last saved state is written.

        Raises:
            KeepError: It could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    # Restoring.

    def restore(self, like: TrainState, step: int | None = None) -> TrainState | None:
        """Return the newest checkpoint that can be read, laid out as `like` is; `None` if there is none at all.

        All workers have to call this; the chief reads, and sends the state to the others. State that belongs to one
        worker (seeds, counters) is restored on the chief, and stays as it is in `like` on the others. On parameter
        servers, the values are set for all workers. The servers of a chief that was started again went on training
        without it: if they are ahead of the checkpoint, they keep their values.

        Args:
            like: A state of the same model and optimizer, from this strategy. It must not be used afterwards.
            step: The checkpoint. By default, the newest. Training then goes on from there: newer checkpoints are
                removed at the next save.

        Raises:
            StrategyError: `like` is not a state.
            KeepError: Every checkpoint is damaged, or there is none of that step, or they are of another model, whose
                differences the message shows.

        Example:
            >>> state = checkpoints.restore(like=state) or state
        """
        self.wait()
        _check_state("restore was given like=", like)
        self._note_training(like)
        result = restore_state(like, partial(self._read, form_of(like), step), step is not None)
        if result is None:
            return None
        state, self.data = result
        return state

    def _read(self, form: Any, step: int | None) -> Checkpoint | None:
        checkpoint = self._files.read(form, step)
        if checkpoint is not None:
            self._files.skip_newer(
                "it cannot be read" if step is None else f"training has gone back to step {step}"
            )
        return checkpoint

    # Export.

    def export(self, state: TrainState, path: str | PathLike[str], *, ema: bool = False) -> None:
        """Write only the parameters to one safetensors file, to serve the model elsewhere. Only the chief writes.

        Args:
            state: The state.
            path: The file, which is replaced if it exists.
            ema: Whether to write the moving averages instead of the parameters.

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

    # Preemption and closing.

    def preemption(self) -> AbstractContextManager[Preempted]:
        """Return a block in which SIGTERM, by which a machine is taken away, leaves time to save.

        The block gets a value that is true once the signal has come. The process ends when it then leaves the block
        and everything is written, with exit code 143. `stratagem run` gives its tasks `--grace` seconds for it. Of
        workers in step, the value is true on the chief alone, whichever of them got the signal: the others train on
        until the chief has saved and ended, and then end too.

        Example:
            >>> with checkpoints.preemption() as preempted:
            ...     for batch in strategy.distribute(batches):
            ...         state, metrics = step(state, batch)
            ...         if preempted:
            ...             checkpoints.save(state)
            ...             break
        """
        return preemption(lambda: self._decides, self.close, lambda: self._notice)

    def _note_training(self, state: TrainState) -> None:
        """Note which processes train a state, for `preemption`."""
        self._is_in_use = True
        self._decides, self._notice = may_stop(state), state.recipe.home.preemption_notice()

    def close(self) -> None:
        """Finish writing. Called by itself when the process ends normally.

        Raises:
            KeepError: The last checkpoint could not be written.
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
        else:  # the block's error is the one to raise
            self._settle()


def _check_state(got: str, state: object) -> None:
    if not isinstance(state, TrainState):
        raise StrategyError(
            f"{got} {describe(state)}; give the state that strategy.init and the steps return, or in a training without a "
            "strategy sg.TrainState.of(params, optimizer, opt_state, step)"
        )


def is_chief(state: TrainState) -> bool:
    """Return whether this process is the one that writes checkpoints of a state."""
    return state.recipe.home.is_chief


def may_stop(state: TrainState) -> bool:
    """Return whether this process may stop training by itself, with no process that has to save waiting for it."""
    return is_chief(state) or not state.recipe.home.in_step
