"""What a kill -9 in the middle of a transfer leaves behind: nothing, and a survivor who knows."""

from drills.wire import NOTICED_WITHIN, kill_clients, kill_servers

ROUNDS = 10


def test_clients_killed_in_the_middle_of_a_transfer() -> None:
    assert max(kill_clients(ROUNDS)) < NOTICED_WITHIN


def test_servers_killed_in_the_middle_of_a_call() -> None:
    assert max(kill_servers(ROUNDS)) < NOTICED_WITHIN
