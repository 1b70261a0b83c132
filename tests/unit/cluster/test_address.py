import pytest
from hypothesis import given

from stratagem.cluster import Address
from stratagem.errors import ClusterError
from unit.cluster.generated import ADDRESSES


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1:2222", "node1", 2222),
        ("my-job_ps-0.space.svc:2222", "my-job_ps-0.space.svc", 2222),
        ("10.0.0.1:0", "10.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ],
)
def test_splits_host_and_port(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@given(ADDRESSES)
def test_parsing_loses_nothing(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; write host:port"),
        ("node1", r"'node1' has no port; write host:port, as in 'node1:2222'"),
        ("node1:", r"has no port; .* 'node1:2222'"),
        (":2222", "has no host"),
        ("node1:http", "port 'http'; ports are numbers"),
        ("node1:-1", "port '-1'"),
        ("node1:65536", "port 65536; ports are 0 to 65535"),
        ("node1:99999999999", "port '99999999999'"),
        ("node1:²", "ports are numbers"),
        ("http://node1:2222", r"has a scheme, 'http://'; write 'node1:2222' alone"),
        ("grpc://node1", "has a scheme"),
        (" node1:2222", "has a blank"),
        ("node 1:2222", "has a blank"),
        ("a:1,b:2", "has a comma .* entry of its own"),
        ("::1:2222", "IPv6 address stands in brackets"),
        ("a:b:1", "several colons"),
        ("[a:1", "brackets in the wrong place"),
        ("[::1]", "has no port"),
        ("[::zz]:2222", "not an IPv6 address"),
        ("[node1]:2222", "brackets, which are for IPv6"),
        ("[]:2222", "has no host"),
        ("node1/path:2222", "not a host name"),
        ("-node1:2222", "not a host name"),
    ],
)
def test_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Address.parse(text)


@pytest.mark.parametrize("port", [-1, 65536, True, 1.5, "1"])
def test_validates_on_construction(port: int) -> None:
    with pytest.raises(ClusterError, match="port"):
        Address("node1", port)


def test_only_text_is_parsed() -> None:
    with pytest.raises(ClusterError, match="2222 is not text"):
        Address.parse(2222)  # type: ignore[arg-type]
