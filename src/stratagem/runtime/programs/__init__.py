"""Programs: functions exported to StableHLO, shipped as bytes, walked before they are compiled.

A client makes a `Program` with `export_program`. A server loads its artifact through a `ProgramCache`, which refuses
what is not allowed.

A map:

    export                make a program from a function
    cache, compiled       load programs once; call them
    verification          decide whether a server runs a program
    inspector             the process that reads foreign programs
    walk, allowed         check every operation of a module; which operations and custom calls are allowed
    canonical             strip a module of what does not matter to its computation
    summary               facts about a program, and the limits on them

Names are loaded on first use: the inspector imports this package and must not pay for JAX.
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.runtime.programs.cache import CacheStatistics as CacheStatistics
    from stratagem.runtime.programs.cache import ProgramCache as ProgramCache
    from stratagem.runtime.programs.compiled import CompiledProgram as CompiledProgram
    from stratagem.runtime.programs.export import Program as Program
    from stratagem.runtime.programs.export import export_program as export_program
    from stratagem.runtime.programs.inspector import Inspector as Inspector
    from stratagem.runtime.programs.summary import ProgramLimits as ProgramLimits
    from stratagem.runtime.programs.summary import ProgramSummary as ProgramSummary
    from stratagem.runtime.programs.summary import TensorSpec as TensorSpec
    from stratagem.runtime.programs.verification import VerifiedProgram as VerifiedProgram
    from stratagem.runtime.programs.verification import verify as verify

# The same list for the interpreter; a test compares the two.
_HOMES = {
    "CacheStatistics": "stratagem.runtime.programs.cache",
    "CompiledProgram": "stratagem.runtime.programs.compiled",
    "Inspector": "stratagem.runtime.programs.inspector",
    "Program": "stratagem.runtime.programs.export",
    "ProgramCache": "stratagem.runtime.programs.cache",
    "ProgramLimits": "stratagem.runtime.programs.summary",
    "ProgramSummary": "stratagem.runtime.programs.summary",
    "TensorSpec": "stratagem.runtime.programs.summary",
    "VerifiedProgram": "stratagem.runtime.programs.verification",
    "export_program": "stratagem.runtime.programs.export",
    "verify": "stratagem.runtime.programs.verification",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
