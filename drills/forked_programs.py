"""Runs Python programs in forked processes, where `exec` would start Python and import JAX again.

A program has its own environment, descriptors, signals and end, as after `exec`; only the imports are its parent's. From
outside, its command line and its environment look like its parent's; the process of a task has the task's name, such as
`worker:1`. `stratagem run` in such a process forks the keepers of its tasks, and they fork the tasks; a server forks the
program inspector.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from drills.processes import fork
from stratagem.tools.launch import keeper

_KEEPER = ["-I", "-S", keeper.__file__]
_INSPECTION = "from stratagem.runtime.programs.inspector import "
_SET_AFTERWARDS: dict[str, Callable[[str], Any]] = {"JAX_PLATFORMS": str, "JAX_NUM_CPU_DEVICES": int}
"""Variables that JAX reads when it is imported, and that count if they are set before it looks for devices."""
_NAME = Path("/proc/self/comm")
"""What this process is called, in as many as 15 characters."""
_real_execvp = os.execvp


def _jax_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that JAX reads when it is imported, except those that can be set afterwards."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith("JAX_") and name not in _SET_AFTERWARDS
    }


_variables_at_import = _jax_variables(os.environ)
_installed = [
    place for place in sys.path[1:] if place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
]
"""Where every program finds modules, whoever runs it."""


def program_of(argv: Sequence[str]) -> list[str] | None:
    """Return the script, or `stratagem`, that a command line of this Python runs, and its arguments; `None` if it is neither."""
    words = list(argv[1:])
    if words[:1] == ["-P"]:
        del words[0]
    if argv[0] != sys.executable:
        return None
    if words[:2] == ["-m", "stratagem"]:
        return words[1:]
    return words if words and words[0].endswith(".py") else None


def run_program(argv: Sequence[str]) -> None:
    """Run a script or `stratagem`, in a process that was forked for it and has its environment already."""
    with contextlib.suppress(ValueError, LookupError, TypeError):  # it is no task, or is told nonsense
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        _NAME.write_text(f"{task['type']}:{task['index']}")
    sys.argv = list(argv)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name, convert in _SET_AFTERWARDS.items():
        if name in os.environ:
            import jax

            jax.config.update(name.lower(), convert(os.environ[name]))
    subprocess.Popen = _Popen  # type: ignore[assignment,misc]
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own = [] if argv[0] == "stratagem" else [str(Path(argv[0]).resolve().parent)]
    sys.path[:] = dict.fromkeys([*own, *given, *_installed])
    if argv[0] == "stratagem":
        from stratagem.tools.launch.cli import main as stratagem

        stratagem()
    else:
        runpy.run_path(argv[0], run_name="__main__")


def leave_modules() -> None:
    """Keep Python from taking imported modules apart at a program's end.

    It would do so object by object, and the process would copy nearly all of its parent's memory: that takes longer than many a
    program here. The program has done its own cleaning up before.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dict(sys.modules)))
    sys.modules.clear()


class _Forked:
    """A forked process, with the part of the interface of `subprocess.Popen` that its users need.

    Args:
        become: The function that the process runs, and then ends.
        environ: Its environment.
        standard: Its standard input, output and errors.
        kept: Its other descriptors.
    """

    def __init__(
        self,
        become: Callable[[], None],
        environ: Mapping[str, str],
        standard: Sequence[int],
        kept: Collection[int] = (),
    ) -> None:
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self._code: int | None = None
        self.pid = fork()
        if self.pid == 0:
            try:
                _NAME.write_text("forked")  # what it serves may have the name of a task
                signal.set_wakeup_fd(-1)
                for handled in signal.valid_signals():
                    if callable(signal.getsignal(handled)):
                        signal.signal(handled, signal.SIG_DFL)
                for number, source in enumerate(standard):
                    os.dup2(source, number)
                _close(lambda descriptor: descriptor > 2 and descriptor not in kept)
                for descriptor in kept:
                    os.set_inheritable(descriptor, True)
                os.environ.clear()
                os.environ.update(environ)
                become()
                os._exit(0)
            except BaseException:  # noqa: BLE001  whatever it is, the child must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        """Return the exit code, `None` while it runs."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end: a keeper ends by itself with its task, an inspector when nobody can call it."""
        return self._collect(0)

    def kill(self) -> None:
        """Kill it."""
        if self.poll() is None:
            keeper.send(self.pid, signal.SIGKILL)

    def _collect(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # collected among orphans
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _forked_keeper(argv: Sequence[str], options: Mapping[str, Any]) -> _Forked:
    def become() -> None:
        os.setsid()
        os.execvp = _execute  # type: ignore[assignment]
        sys.argv = list(argv)
        keeper.main()

    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        standard = (nothing, _descriptor(options["stdout"]), _descriptor(options["stderr"]))
        return _Forked(become, options["env"], standard, options["pass_fds"])
    finally:
        os.close(nothing)


def _forked_inspection(code: str, options: Mapping[str, Any]) -> _Forked:
    def become() -> None:
        exec(code, {})

    (theirs, ours), (here, there) = os.pipe(), os.pipe()
    try:
        forked = _Forked(become, options["env"], (theirs, there, 2))
    finally:
        os.close(theirs)
        os.close(there)
    forked.stdin, forked.stdout = os.fdopen(ours, "wb"), os.fdopen(here, "rb")
    return forked


class _Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, which forks keepers and program inspectors."""

    def __new__(cls, argv: Sequence[str], **options: Any) -> Any:
        words = list(argv[1:4])
        if words == _KEEPER:
            return _forked_keeper(argv[3:], options)
        if words[:2] == ["-P", "-c"] and words[2].startswith(_INSPECTION):
            return _forked_inspection(words[2], options)
        return super().__new__(cls)


def _descriptor(output: Any) -> int:
    return output if isinstance(output, int) else int(output.fileno())


def _execute(file: str, argv: Sequence[str]) -> None:
    """Replace `os.execvp`: continue in this process, with its imports."""
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
