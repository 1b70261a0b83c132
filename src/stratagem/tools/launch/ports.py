"""Ports for local tasks, without a race and without making the dead look alive.

The launcher binds a socket per task and never listens on it: this keeps the port from everyone else for
the whole run, and a connection to it is refused unless the task itself listens. Each start of the task
gets a second socket on the same port (SO_REUSEPORT), of which the launcher keeps no copy.
"""

import socket


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


class ReservedPort:
    """A port that stays this run's own from first to last, however often its task is restarted."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._reservation = _bound(host, 0)
        self._host, self._port = self._reservation.getsockname()

    @property
    def address(self) -> str:
        """The address as it stands in TF_CONFIG."""
        return f"{self._host}:{self._port}"

    def socket_for_task(self) -> socket.socket:
        """A bound socket to hand over to the task, which alone listens on it; close it after that."""
        return _bound(self._host, self._port)

    def close(self) -> None:
        """Give the port back."""
        self._reservation.close()
