"""What an emitted file says about itself at its top. YAML and shells write comments alike."""

from collections.abc import Iterable


def comment(*paragraphs: str) -> str:
    """Text as comment lines, with an empty one between paragraphs.

    Example:
        >>> print(comment("Start it:", commands(["make start"])), end="")
        # Start it:
        #
        #   make start
    """
    lines = "\n\n".join(paragraphs).split("\n")
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def commands(lines: Iterable[str]) -> str:
    """Commands, one below the other, set apart from the text around them."""
    return "\n".join(f"  {line}" for line in lines)
