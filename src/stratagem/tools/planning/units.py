"""Numbers with units, as people write them: `100MB`, `10Gbit`, `50us`, `25Mparams`; and back."""

import math
import re

from stratagem.errors import LaunchError

_NUMBER = re.compile(
    r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*([^\d\s.].*?)?\s*", re.IGNORECASE
)
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_PREFIXES = {**_DECIMAL, **_BINARY}
BYTES_PER_PARAMETER = 4
"""Of float32, in which models are trained."""


def seconds(text: str) -> float:
    """Parse a duration.

    Example:
        >>> seconds("1.5ms")
        0.0015
    """
    number, unit = _number_and_unit(text)
    if unit not in _SECONDS:
        raise _unreadable(text, "a time", "50us, 5ms, 30s, 10min, 24h")
    return number * _SECONDS[unit]


def size(text: str) -> float:
    """Parse a number of bytes; `params` counts parameters of four bytes each.

    Example:
        >>> size("25Mparams")
        100000000.0
    """
    number, unit = _number_and_unit(text)
    for name, factor in (("params", BYTES_PER_PARAMETER), ("parameters", BYTES_PER_PARAMETER), ("b", 1)):
        if unit.lower().endswith(name):
            scale = _PREFIXES.get(unit.lower().removesuffix(name).strip())
            if scale is not None:
                return number * scale * factor
    raise _unreadable(text, "a size", "100MB, 64MiB, 25Mparams")


def rate(text: str) -> float:
    """Parse a bandwidth into bytes per second; `bit` and `bps` count bits.

    Example:
        >>> rate("10Gbit")
        1250000000.0
    """
    number, unit = _number_and_unit(text)
    unit = unit.removesuffix("/s").strip()
    for name, factor in (("bit", 0.125), ("bps", 0.125), ("B", 1.0)):
        if unit.endswith(name):
            scale = _PREFIXES.get(unit.removesuffix(name).strip().lower())
            if scale is not None:
                return number * scale * factor
    raise _unreadable(text, "a bandwidth", "10Gbit, 100Mbit/s, 1.2GB/s (a B is a byte)")


def _number_and_unit(text: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return math.nan, ""
    return float(match[1]), match[2] or ""


def _unreadable(text: str, what: str, examples: str) -> LaunchError:
    return LaunchError(f"{text!r} is not {what}: give a number with a unit, such as {examples}")


def show_seconds(value: float) -> str:
    """Format a duration in a suitable unit."""
    scales = {"d": 86400.0, "h": 3600.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
    return _show(value, scales) or f"{value * 1e9:.3g} ns"


def show_bytes(value: float) -> str:
    """Format a number of bytes in a suitable unit."""
    return _show(value, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}) or f"{value:.0f} B"


def _show(value: float, scales: dict[str, float]) -> str:
    """Format a value in the first unit that it reaches; empty if there is none."""
    return next((f"{value / scale:.3g} {unit}" for unit, scale in scales.items() if value >= scale), "")


def show_count(value: float) -> str:
    """Format a rate or a count briefly: `0.42`, `12.3`, `1,234`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
