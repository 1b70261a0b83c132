"""Why targets were missed, as somebody wrote it down by hand: see `reasons.toml`."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True)
class Reason:
    """A reason for what was missed.

    Attributes:
        program: In which benchmark.
        case: In which race or case of it, as the report's headings or first column say it.
        ratio: The ratio that was missed, as the report says it; empty for every ratio of the case.
        why: The reason.
    """

    program: str
    case: str
    why: str
    ratio: str = ""


class Reasons:
    """All reasons that were written down.

    Args:
        path: The file.
    """

    def __init__(self, path: Path = FILE) -> None:
        found = tomllib.loads(path.read_text()).get("reason", [])
        self._reasons = [Reason(**each) for each in found]

    def why(self, program: str, case: str, ratio: str) -> str:
        """The reason, or that there is none yet."""
        for reason in self._reasons:
            if (reason.program, reason.case) == (program, case) and reason.ratio in ("", ratio):
                return " ".join(reason.why.split())
        return f"No reason is written down yet: `{FILE.name}` is the place for it."
