"""Where tables are printed: as wide as a terminal is, and wide enough where there is none."""

from rich.console import Console

_COLUMNS = 160


def wide_console() -> Console:
    """Standard output; in a file or a pipe nobody says how wide it may be, and 80 columns are too few for a table."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _COLUMNS)
    return console
