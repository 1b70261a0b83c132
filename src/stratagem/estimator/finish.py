"""The sign that a training is over: a small file that the chief leaves for the evaluator."""

import json
from pathlib import Path

from stratagem import environment
from stratagem.keep.disk import explained, make_directory, new_file, write_all

_NAME = "training_finished.json"


class FinishSign:
    """The file in a model's directory.

    It carries the name of the run that `stratagem run` gives to all its tasks, so that what an earlier run has left is
    not taken for this one's.

    Args:
        model_dir: The directory.

    Attributes:
        is_named: Whether there is a name of the run to tell it by.
    """

    def __init__(self, model_dir: Path) -> None:
        self._path = model_dir / _NAME
        self._run = environment.run_id()
        self.is_named = self._run is not None

    def clear(self) -> None:
        """Training begins: take away what an earlier one has left."""
        with explained(self._path, "removed"):
            self._path.unlink(missing_ok=True)

    def leave(self, step: int) -> None:
        """Training is over."""
        told = json.dumps({"run": self._run, "global_step": step}).encode()
        with explained(self._path, "written"):
            make_directory(self._path.parent, durable=False)
            with new_file(self._path, durable=False) as file:
                write_all(file, memoryview(told))

    def is_there(self) -> bool:
        """Whether the training of this run is over."""
        with explained(self._path, "read"):
            try:
                told = json.loads(self._path.read_bytes())
            except (FileNotFoundError, ValueError):
                return False
        return isinstance(told, dict) and told.get("run") == self._run
