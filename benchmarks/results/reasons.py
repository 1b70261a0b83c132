"""Why targets were missed, as written by hand: see `reasons.toml`."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True)
class Reason:
    """A reason for a miss.

    Attributes:
        program: The benchmark.
        case: The race or case, as in the report's headings or first column.
        ratio: The ratio that was missed, as in the report; empty for every ratio of the case.
        why: The reason.
    """

    program: str
    case: str
    why: str
    ratio: str = ""


class Reasons:
    """All written reasons.

    Args:
        path: The file.
    """

    def __init__(self, path: Path = FILE) -> None:
        found = tomllib.loads(path.read_text()).get("reason", [])
        self._reasons = [Reason(**each) for each in found]

    def why(self, program: str, case: str, ratio: str) -> str:
        """Return the reason, or that there is none yet."""
        for reason in self._reasons:
            if (reason.program, reason.case) == (program, case) and reason.ratio in ("", ratio):
                return " ".join(reason.why.split())
        return f"No reason is written down yet: `{FILE.name}` is the place for it."
