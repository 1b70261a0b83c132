"""One connected socket (TCP, TLS or Unix): bytes out of and into given buffers, within a time limit."""

import array
import math
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from stratagem.errors import ProtocolError, TaskLost
from stratagem.runtime.wire.error_translation import during_transfer
from stratagem.runtime.wire.waiting import TimeLimit

_MAX_BUFFERS = 1024  # IOV_MAX of Linux
_TLS_CHUNK, _TLS_SMALL = 1 << 20, 1 << 16
_TIMEVAL, _CREDENTIALS = struct.Struct("@ll"), struct.Struct("@iii")
_RECEIVING, _SENDING = socket.SO_RCVTIMEO, socket.SO_SNDTIMEO
# Of a time limit set in the kernel: the shortest, and how far off it may be, in seconds and as a fraction.
_SHORTEST, _TOLERANCE, _FRACTION = 0.001, 0.05, 0.02
_CLOSE_ON_EXEC, _TRUNCATED = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
_LINGER_SECONDS, _LINGER_BYTES = 0.5, 1 << 16
_CLOSED = "the far side closed the connection"
# Room for one descriptor exactly: CMSG_SPACE would leave room for a second one in its padding. The kernel closes
# descriptors that do not fit.
_ONE_DESCRIPTOR = socket.CMSG_LEN(array.array("i").itemsize)
_KEEPALIVE_IDLE, _KEEPALIVE_INTERVAL, _KEEPALIVE_COUNT = 5, 2, 3
_USER_TIMEOUT_MILLISECONDS = 10_000


def tune(sock: socket.socket) -> None:
    """Send small frames without delay, and detect a far side that is cut off within about ten seconds."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MILLISECONDS)


def peer_process(sock: socket.socket) -> tuple[int, int]:
    """Return the process and its user at the far end of a Unix socket, as the kernel knows them."""
    pid, user, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, user


class Stream:
    """Owns a connected socket.

    At most one thread receives and one sends at a time; with TLS they must be the same thread. Any thread may `wake`.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        # Per direction: the seconds that the kernel was told, and the constant limit that they come from, if one is.
        self._armed: dict[int, float | None] = {_RECEIVING: None, _SENDING: None}
        self._steady: dict[int, TimeLimit | None] = {_RECEIVING: None, _SENDING: None}
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN | select.POLLRDHUP)
        self._alarmed: dict[int, select.poll] = {}
        self.is_unix = sock.family == socket.AF_UNIX
        self.is_tls = False

    def secure(self, context: ssl.SSLContext, server_side: bool, limit: TimeLimit) -> bytes | None:
        """Speak TLS from here on; return the far side's certificate (DER), if it showed one."""
        try:
            sock = context.wrap_socket(self._sock, server_side=server_side, do_handshake_on_connect=False)
            self._sock, self.is_tls = sock, True
            self._steady = {_RECEIVING: None, _SENDING: None}
            sock.settimeout(limit.remaining())
            sock.do_handshake()
            return sock.getpeercert(binary_form=True)
        except OSError as error:
            raise during_transfer(error) from error

    def _arm(self, option: int, limit: TimeLimit) -> None:
        """Limit the next operation to the remaining time.

        This uses the kernel's own timeouts on a blocking socket: Python's would poll before each operation, which makes
        a short round trip cost three times as much. TLS needs Python's.
        """
        seconds = limit.remaining()
        armed = self._armed[option]
        if self.is_tls:
            self._sock.settimeout(seconds)
            return
        if seconds == armed:
            self._steady[option] = limit if limit.is_constant else None
            return
        self._steady[option] = None
        if seconds is None and option == _RECEIVING and not self.is_unix:
            return  # an earlier timeout remains, and `receive` begins anew when it expires
        # Near enough is good enough: successive calls with the same timeout then set nothing.
        if seconds is None or armed is None or abs(seconds - armed) > min(armed * _FRACTION, _TOLERANCE):
            whole, part = divmod(max(seconds, _SHORTEST) if seconds is not None else 0.0, 1)
            self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole), int(part * 1e6)))
            self._armed[option] = seconds

    def receive(self, view: memoryview, limit: TimeLimit) -> int:
        """Receive at least one byte into the view; return the number of bytes."""
        while True:
            try:
                if limit is not self._steady[_RECEIVING]:
                    self._arm(_RECEIVING, limit)
                count = self._sock.recv_into(view)
                break
            except BlockingIOError as error:
                if limit.remaining() is not None:
                    raise during_transfer(error) from error
            except OSError as error:
                raise during_transfer(error) from error
        if count == 0:
            raise TaskLost(_CLOSED)
        return count

    def receive_with_descriptor(self, view: memoryview, limit: TimeLimit) -> tuple[int, int | None]:
        """Receive as `receive` does; return also the descriptor that came along, if one did."""
        if not self.is_unix:
            return self.receive(view, limit), None
        try:
            if limit is not self._steady[_RECEIVING]:
                self._arm(_RECEIVING, limit)
            count, ancillary, flags, _ = self._sock.recvmsg_into([view], _ONE_DESCRIPTOR, _CLOSE_ON_EXEC)
        except OSError as error:
            raise during_transfer(error) from error
        descriptor = None
        if ancillary or flags & _TRUNCATED:
            descriptor = _only_descriptor(ancillary, bool(flags & _TRUNCATED))
        if count == 0:
            raise TaskLost(_CLOSED)
        return count, descriptor

    def send(self, buffers: Sequence[memoryview], limit: TimeLimit, descriptor: int | None = None) -> None:
        """Send all buffers, one after the other, without joining them; the descriptor goes with the first."""
        try:
            if self.is_tls:
                self._send_tls(buffers, limit)
                return
            if limit is not self._steady[_SENDING]:
                self._arm(_SENDING, limit)
            ancillary = []
            if descriptor is not None:
                ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])))
            sent = self._sock.sendmsg(buffers[:_MAX_BUFFERS], ancillary)
            if len(buffers) > 1 or sent < len(buffers[0]):
                self._send_rest(list(buffers), sent, limit)
        except OSError as error:
            raise during_transfer(error) from error

    def _send_rest(self, left: list[memoryview], sent: int, limit: TimeLimit) -> None:
        """Send the rest of buffers after the first `sent` bytes of them."""
        first = 0
        while True:
            while first < len(left) and sent >= len(left[first]):
                sent -= len(left[first])
                first += 1
            if first == len(left):
                return
            left[first] = left[first][sent:]
            self._arm(_SENDING, limit)
            sent = self._sock.sendmsg(left[first : first + _MAX_BUFFERS])

    def _send_tls(self, buffers: Sequence[memoryview], limit: TimeLimit) -> None:
        # A record per small buffer would cost more than joining them.
        small = bytearray()
        for buffer in buffers:
            if len(small) + len(buffer) <= _TLS_SMALL:
                small += buffer
                continue
            for whole in (memoryview(small), buffer):
                for start in range(0, len(whole), _TLS_CHUNK):
                    self._arm(_SENDING, limit)
                    self._sock.sendall(whole[start : start + _TLS_CHUNK])
            small = bytearray()
        if small:
            self._arm(_SENDING, limit)
            self._sock.sendall(small)

    def peek(self, limit: TimeLimit) -> int:
        """Wait for the first byte and return it, without taking it out of the socket."""
        try:
            self._arm(_RECEIVING, limit)
            data = self._sock.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise during_transfer(error) from error
        if not data:
            raise TaskLost(_CLOSED)
        return data[0]

    def is_quiet(self) -> bool:
        """Return whether the connection is open with nothing to receive, as an idle one should be."""
        return self._sock.fileno() >= 0 and not self._poll.poll(0)

    def spin(self, seconds: float) -> None:
        """Wait a very short time for bytes to arrive, without going to sleep.

        Waking a sleeping processor takes longer than a short call. Other threads that want the processor get it.
        """
        end = time.perf_counter() + seconds
        while not self._poll.poll(0) and time.perf_counter() < end:
            os.sched_yield()

    def wait(self, seconds: float, alarm: int) -> bool:
        """Wait until bytes arrive or the connection ends; return whether either happened in time.

        Args:
            seconds: How long to wait.
            alarm: A descriptor that also ends the wait, as soon as it is readable.
        """
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        if alarm not in self._alarmed:
            self._alarmed[alarm] = select.poll()
            self._alarmed[alarm].register(self._sock, select.POLLIN | select.POLLRDHUP)
            self._alarmed[alarm].register(alarm, select.POLLIN)
        events = self._alarmed[alarm].poll(math.ceil(seconds * 1000))
        return any(descriptor != alarm for descriptor, _ in events)

    def is_open(self) -> bool:
        """Return whether the far side has not closed the connection, as far as can be seen from here.

        This asks the kernel, past the TLS layer and past time limits, and may be called while nothing is received.
        """
        if self._sock.fileno() < 0:
            return False
        events = self._poll.poll(0)
        return not events or not events[0][1] & ~select.POLLIN

    def far_process(self) -> int:
        """Return the process at the far end of a Unix socket."""
        return peer_process(self._sock)[0]

    def same_user(self) -> bool:
        """Return whether the process at the far end of a Unix socket belongs to this process's user."""
        return peer_process(self._sock)[1] == os.geteuid()

    def linger(self) -> None:
        """Send nothing more, and give the far side time to read what was sent.

        TCP discards sent bytes if a socket is closed at once while something is still unread here.
        """
        end = time.monotonic() + _LINGER_SECONDS
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not socket.socket.recv(self._sock, _LINGER_BYTES):
                    return

    def wake(self) -> None:
        """Make every wait on this socket end, from any thread; the owner still has to close it."""
        with suppress(OSError):
            # SSLSocket's own shutdown would take its state away under the thread that uses it.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._sock.close()


def _only_descriptor(ancillary: Sequence[tuple[int, int, bytes]], truncated: bool) -> int | None:
    """Return the one descriptor that came, if one did; if several came, close them and raise `ProtocolError`."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data)
    if len(descriptors) > 1 or truncated:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ProtocolError("more than one descriptor with a frame")
    return descriptors[0] if descriptors else None
