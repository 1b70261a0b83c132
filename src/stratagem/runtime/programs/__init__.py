"""Programs: functions exported to StableHLO, shipped as bytes, walked before they are compiled.

A client makes a `Program` with `export_program`; a server loads its artifact through a `ProgramCache`,
which refuses what is not allowed. Names are loaded when first used: the process that inspects foreign
bytes imports this package and must not pay for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem.runtime.programs.cache import CacheStatistics as CacheStatistics
    from stratagem.runtime.programs.cache import ProgramCache as ProgramCache
    from stratagem.runtime.programs.compiled import CompiledProgram as CompiledProgram
    from stratagem.runtime.programs.export import Program as Program
    from stratagem.runtime.programs.export import export_program as export_program
    from stratagem.runtime.programs.inspector import Inspector as Inspector
    from stratagem.runtime.programs.limits import ProgramLimits as ProgramLimits
    from stratagem.runtime.programs.summary import ProgramSummary as ProgramSummary
    from stratagem.runtime.programs.summary import TensorSpec as TensorSpec
    from stratagem.runtime.programs.verification import VerifiedProgram as VerifiedProgram
    from stratagem.runtime.programs.verification import verify as verify

# The same list as above, for the interpreter.
_HOME = {
    "CacheStatistics": "cache",
    "CompiledProgram": "compiled",
    "Inspector": "inspector",
    "Program": "export",
    "ProgramCache": "cache",
    "ProgramLimits": "limits",
    "ProgramSummary": "summary",
    "TensorSpec": "summary",
    "VerifiedProgram": "verification",
    "export_program": "export",
    "verify": "verification",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
