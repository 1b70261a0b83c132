"""Runs Python programs in processes that were forked, where `exec` would start Python and import JAX once more.

A program has an environment, descriptors, signals and an end of its own, as after `exec`: only what its parent has
imported it need not import. `stratagem run` in such a process forks the keepers of its tasks, and they fork the tasks.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from drills.processes import fork
from stratagem.launch import keeper

_KEEPER = ["-I", "-S", keeper.__file__]
_PLATFORMS = "JAX_PLATFORMS"
_real_execvp = os.execvp


def _jax_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that JAX reads when it is imported, but for the one that can be set afterwards."""
    return {name: value for name, value in environ.items() if name.startswith("JAX_") and name != _PLATFORMS}


_variables_at_import = _jax_variables(os.environ)
_installed = [
    place for place in sys.path[1:] if place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
]
"""Where every program finds modules, whoever runs it."""


def program_of(argv: Sequence[str]) -> list[str] | None:
    """The script, or `stratagem`, that a command line of this Python runs, and its arguments; `None` if it is neither."""
    words = list(argv[1:])
    if words[:1] == ["-P"]:
        del words[0]
    if argv[0] != sys.executable:
        return None
    if words[:2] == ["-m", "stratagem"]:
        return words[1:]
    return words if words and words[0].endswith(".py") else None


def run_program(argv: Sequence[str]) -> None:
    """Run a script or `stratagem`, in a process that was forked for it and has the environment that it should have."""
    sys.argv = list(argv)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if _PLATFORMS in os.environ:
        import jax

        jax.config.update(_PLATFORMS.lower(), os.environ[_PLATFORMS])
    subprocess.Popen = _Popen  # type: ignore[assignment,misc]
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own = [] if argv[0] == "stratagem" else [str(Path(argv[0]).resolve().parent)]
    sys.path[:] = dict.fromkeys([*own, *given, *_installed])
    if argv[0] == "stratagem":
        from stratagem.launch.cli import main as stratagem

        stratagem()
    else:
        runpy.run_path(argv[0], run_name="__main__")


class _ForkedKeeper:
    """A task's keeper, forked: what the launcher uses of `subprocess.Popen`."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], outputs: tuple[int, int], kept: Collection[int]
    ) -> None:
        self.pid = fork()
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDONLY)
                for number, source in enumerate((nothing, *outputs)):
                    os.dup2(source, number)
                _close(lambda descriptor: descriptor > 2 and descriptor not in kept)
                for descriptor in kept:
                    os.set_inheritable(descriptor, True)
                os.environ.clear()
                os.environ.update(environ)
                os.execvp = _execute  # type: ignore[assignment]
                sys.argv = list(argv)
                keeper.main()
                os._exit(0)
            except BaseException:  # noqa: BLE001  whatever it is, the child must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(1)

    def wait(self) -> None:
        """Wait for its end: it ends by itself when its task has, or when it is killed."""
        with contextlib.suppress(ChildProcessError):  # collected among orphans
            os.waitpid(self.pid, 0)

    def kill(self) -> None:
        """End it now."""
        keeper.send(self.pid, signal.SIGKILL)


class _Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, which forks keepers."""

    def __new__(cls, argv: Sequence[str], **options: Any) -> Any:
        if list(argv[1:4]) != _KEEPER:
            return super().__new__(cls)
        outputs = (_descriptor(options["stdout"]), _descriptor(options["stderr"]))
        return _ForkedKeeper(argv[3:], options["env"], outputs, options["pass_fds"])


def _descriptor(output: Any) -> int:
    return output if isinstance(output, int) else int(output.fileno())


def _execute(file: str, argv: Sequence[str]) -> None:
    """`os.execvp`, which goes on in this process with what it has imported."""
    program = program_of(argv)
    if program is None or _jax_variables(os.environ) != _variables_at_import:
        _real_execvp(file, list(argv))
    _close(lambda descriptor: not os.get_inheritable(descriptor))
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # directories of the parent's, that are to stay
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python has them
    # Not by a return or an exception, by which the callers would clean up after themselves: the program is run, and the
    # interpreter ends, as one does that has just been started.
    source = f"from drills.forked_programs import run_program; run_program({program!r})"
    failed = ctypes.pythonapi.PyRun_SimpleString(source.encode())
    ctypes.pythonapi.Py_Exit(1 if failed else 0)


def _close(is_closed: Callable[[int], bool]) -> None:
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # that of the list itself
            if is_closed(descriptor):
                os.close(descriptor)
