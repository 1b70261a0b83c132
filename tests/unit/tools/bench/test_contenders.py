"""Who takes part, and how numbers are read."""

import pytest

from stratagem.errors import LaunchError
from stratagem.tools.bench.contenders import CHOICES, WorkerSettings, line_up
from stratagem.tools.launch.bench import layer_sizes, whole_numbers


def test_every_strategy_at_every_number() -> None:
    assert [each.name for each in line_up(CHOICES, [1, 2], [2])] == [
        "one device",
        "mirrored, 2 devices",
        "multi-worker mirrored, 1 worker",
        "multi-worker mirrored, 2 workers",
        "servers, sync, 1 worker",
        "servers, sync, 2 workers",
        "servers, async, 1 worker",
        "servers, async, 2 workers",
        "servers, bounded 4, 1 worker",
        "servers, bounded 4, 2 workers",
    ]


def test_devices_are_in_one_process_and_workers_in_their_own() -> None:
    _, mirrored, servers = line_up(["mirrored", "async"], [3], [2])
    assert (mirrored.workers, mirrored.devices, mirrored.kind.servers) == (1, 2, 0)
    assert (servers.workers, servers.devices, servers.kind.servers) == (3, 1, 1)


def test_unknown_strategy_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LaunchError, match="there is no 'quick'; choose among mirrored, multi-worker, sync"):
        line_up(["quick"], [2], [2])


def test_lists_of_numbers() -> None:
    assert whole_numbers("--workers", "1, 2,4") == (1, 2, 4)
    assert layer_sizes("784,500,10") == (784, 500, 10)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "two", "1,,2"])
def test_what_is_no_number_is_shown(text: str) -> None:
    with pytest.raises(LaunchError, match="is not a whole number of at least 1"):
        whole_numbers("--workers", text)


@pytest.mark.parametrize("text", ["2,1", "2,2"])
def test_numbers_rise(text: str) -> None:
    with pytest.raises(LaunchError, match="in rising order"):
        whole_numbers("--workers", text)


def test_too_many_are_refused_with_the_reason() -> None:
    with pytest.raises(LaunchError, match="8 is too many, since there are 4 cores; give at most 4"):
        whole_numbers("--workers", "1,8", 4, "there are 4 cores")


@pytest.mark.parametrize("text", ["784", "784,1"])
def test_a_model_has_inputs_and_classes(text: str) -> None:
    with pytest.raises(LaunchError, match="at least 2 classes"):
        layer_sizes(text)


def test_settings_survive_the_command_line() -> None:
    settings = WorkerSettings("async", (784, 500, 10), 100, 0.5, 0.001, "/some/where")
    assert WorkerSettings.from_json(settings.to_json()) == settings
