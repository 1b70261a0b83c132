"""Numbers with units: what people write, and what they get when it cannot be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import LaunchError
from stratagem.tools.planning.units import rate, seconds, show_bytes, show_count, show_seconds, size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5ms", 5e-3),
        ("50us", 50e-6),
        ("50 µs", 50e-6),
        ("0.3ns", 0.3e-9),
        ("1.5s", 1.5),
        ("10min", 600),
        ("24h", 86400),
    ],
)
def test_times(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100MB", 1e8),
        ("64MiB", 64 * 2**20),
        ("12b", 12),
        ("25Mparams", 1e8),
        ("1.5G parameters", 6e9),
        ("100params", 400),
        ("2kB", 2000),
    ],
)
def test_sizes(text: str, value: float) -> None:
    assert size(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("10Gbit", 1.25e9), ("100Mbit/s", 12.5e6), ("25Gbps", 3.125e9), ("1.2GB/s", 1.2e9), ("1GiB", 2**30)],
)
def test_bandwidths(text: str, value: float) -> None:
    assert rate(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "5", "ms", "-5ms", "5 parsecs", "1.2.3s", "nan s", "5MB"])
def test_what_is_no_time_is_said_to_be_none(text: str) -> None:
    with pytest.raises(LaunchError, match=r"is not a time.*50us"):
        seconds(text)


@pytest.mark.parametrize("text", ["100", "100M", "MB", "100MBit", "5ms", "100XB"])
def test_what_is_no_size_is_said_to_be_none(text: str) -> None:
    with pytest.raises(LaunchError, match=r"is not a size.*25Mparams"):
        size(text)


@pytest.mark.parametrize("text", ["10", "10G", "10Gb", "fast", "10Gbyte"])
def test_what_is_no_bandwidth_is_said_to_be_none(text: str) -> None:
    with pytest.raises(LaunchError, match=r"is not a bandwidth.*10Gbit"):
        rate(text)


@given(st.floats(1e-9, 1e9))
def test_times_are_shown_as_they_are_read(value: float) -> None:
    assert seconds(show_seconds(value)) == pytest.approx(value, rel=6e-3)


@given(st.floats(1, 1e15))
def test_sizes_are_shown_as_they_are_read(value: float) -> None:
    assert size(show_bytes(value)) == pytest.approx(value, rel=6e-3, abs=0.51)


def test_counts_are_short() -> None:
    assert [show_count(value) for value in (0.1234, 12.34, 1234.5)] == ["0.123", "12.3", "1,234"]
