"""A task's network address: the one place that splits and joins `host:port`."""

import ipaddress
import re
from dataclasses import dataclass

from stratagem.errors import ClusterError

_LARGEST_PORT = 65535
_HOST = re.compile(r"\w[\w.-]*")
_FORM = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[^:]*))?")
_RIGHT = "write host:port, as in 'node1:2222' or '[::1]:2222'"


@dataclass(frozen=True)
class Address:
    """Host and port of a task. Port 0 stands for any free port.

    Example:
        >>> Address.parse("[::1]:2222")
        Address(host='::1', port=2222)
        >>> str(Address("node1", 2222))
        'node1:2222'
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if isinstance(self.port, bool) or not isinstance(self.port, int):
            raise ClusterError(f"port {self.port!r} is not an integer; ports are 0 to {_LARGEST_PORT}")
        if not 0 <= self.port <= _LARGEST_PORT:
            raise ClusterError(f"{str(self)!r} has port {self.port}; ports are 0 to {_LARGEST_PORT}")
        if ":" in self.host:
            try:
                ipaddress.IPv6Address(self.host)
            except ValueError as problem:
                raise ClusterError(f"{self.host!r} is not an IPv6 address ({problem}); {_RIGHT}") from None
        elif not _HOST.fullmatch(self.host):
            raise ClusterError(f"{self.host!r} is not a host name or IP address; {_RIGHT}")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, with an IPv6 address in brackets.

        Args:
            text: For example `"node1:2222"`, `"10.0.0.1:2222"` or `"[::1]:2222"`.

        Raises:
            ClusterError: It is anything else; the message says what is wrong with it.
        """
        if not isinstance(text, str):
            raise ClusterError(f"{text!r} is not text; {_RIGHT}")
        if not text:
            raise ClusterError(f"the address is empty; {_RIGHT}")
        if any(character.isspace() for character in text):
            raise ClusterError(f"{text!r} has a blank in it; {_RIGHT}")
        if "://" in text:
            scheme, _, rest = text.partition("://")
            raise ClusterError(f"{text!r} has a scheme, {scheme + '://'!r}; write {rest!r} alone")
        if "," in text:
            raise ClusterError(f"{text!r} has a comma in it; write each address as an entry of its own")
        form = _FORM.fullmatch(text)
        if form is None and text.count(":") > 1:
            raise ClusterError(f"{text!r} has several colons: an IPv6 address stands in brackets; {_RIGHT}")
        if form is None:
            raise ClusterError(f"{text!r} has brackets in the wrong place; {_RIGHT}")
        host = form["name"] if form["six"] is None else form["six"]
        if not host:
            raise ClusterError(f"{text!r} has no host; {_RIGHT}")
        if not form["port"]:
            raise ClusterError(f"{text!r} has no port; write host:port, as in {text.rstrip(':') + ':2222'!r}")
        if not re.fullmatch(r"[0-9]{1,9}", form["port"]):
            raise ClusterError(f"{text!r} has port {form['port']!r}; ports are numbers, 0 to {_LARGEST_PORT}")
        if form["six"] is not None and ":" not in host:
            raise ClusterError(f"{text!r} has brackets, which are for IPv6 addresses; {_RIGHT}")
        return cls(host, int(form["port"]))
