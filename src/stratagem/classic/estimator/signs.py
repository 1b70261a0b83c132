"""What chief and evaluator tell each other by small files: that the training is over, and that there is an evaluator."""

import json
from pathlib import Path

from stratagem import environment
from stratagem.keep.disk import explain_errors, make_directory, new_file, write_all


class Sign:
    """A file in a model's directory.

    It carries the name of the run that `stratagem run` gives to all its tasks, so that what an earlier run has left is
    not taken for this one's.

    Args:
        model_dir: The directory.
        name: The name of the file.

    Attributes:
        is_named: Whether there is a name of the run to tell it by.
    """

    def __init__(self, model_dir: Path, name: str) -> None:
        self._path = model_dir / name
        self._run = environment.run_id()
        self.is_named = self._run is not None

    def clear(self) -> None:
        """Take away what an earlier run has left."""
        with explain_errors(self._path, "removed"):
            self._path.unlink(missing_ok=True)

    def leave(self, **more: int) -> None:
        """Give the sign, and say more with it."""
        told = json.dumps({"run": self._run, **more}).encode()
        with explain_errors(self._path, "written"):
            make_directory(self._path.parent, durable=False)
            with new_file(self._path, durable=False) as file:
                write_all(file, memoryview(told))

    def is_there(self) -> bool:
        """Whether it was given in this run."""
        with explain_errors(self._path, "read"):
            try:
                told = json.loads(self._path.read_bytes())
            except (FileNotFoundError, ValueError):
                return False
        return isinstance(told, dict) and told.get("run") == self._run


def finish_sign(model_dir: Path) -> Sign:
    """The chief's: the training is over."""
    return Sign(model_dir, "training_finished.json")


def evaluator_sign(model_dir: Path) -> Sign:
    """The evaluator's: there is one."""
    return Sign(model_dir, "evaluator_present.json")
