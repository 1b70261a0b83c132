"""Authentication: both sides prove that they know the secret, before anything else is said.

    client                                  server
    hello: version, nonce           →
                                    ←       hello: version, nonce
    proof: caller, HMAC             →
                                    ←       welcome: info, limits, HMAC     (or: refused)

Each HMAC covers both hellos as they were sent, the TLS certificate if there is one, the role, and the message's own body:
no part of it is of use on another connection or in the other direction.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stratagem.errors import AuthenticationError, LimitExceeded, ProtocolError, RemoteError
from stratagem.runtime.wire.channels import Channel, Message
from stratagem.runtime.wire.credentials import HOW_TO_SHARE, Credentials
from stratagem.runtime.wire.frames import Fields, pack, unpack
from stratagem.runtime.wire.limits import WELCOME, Limits
from stratagem.runtime.wire.waiting import Deadline

PROTOCOL = 2
"""Version of the wire protocol; two sides with different versions refuse each other."""
_NONCE_BYTES = 32
_WELCOME_LIMITS = ("header_bytes", "frame_bytes", "tensors")

REFUSED_SECRET, REFUSED_TLS, REFUSED_USER, REFUSED_FULL = "secret", "tls", "user", "full"


@dataclass(frozen=True)
class Welcome:
    """What an authenticated server tells a client.

    Attributes:
        info: The server's description of itself: its task, platform, incarnation and so on.
        host_socket: Name of its abstract Unix socket, if it offers shared memory.
    """

    info: Fields
    host_socket: str | None


def handshake_as_client(
    channel: Channel,
    credentials: Credentials,
    caller: str,
    binding: bytes,
    limits: Limits,
    deadline: Deadline,
) -> Welcome:
    """Perform the client's side of the handshake; afterwards the channel accepts what `limits` allows."""
    has_secret = credentials.has_secret
    own, _ = channel.send("hello", _hello("client", has_secret), (), deadline)
    try:
        hello = _expect(channel, "hello", deadline)
    except ProtocolError as error:
        raise ProtocolError(f"no server of Stratagem answers there: {error}. Check the address") from error
    _check_hello(hello, "server")
    if hello.fields.get("secret") is not has_secret:
        raise AuthenticationError(
            f"this side has a secret and the far side has none: {HOW_TO_SHARE}"
            if has_secret
            else f"the far side asks for the cluster's secret and this side has none: {HOW_TO_SHARE}"
        )
    transcript = _transcript(binding, own, hello.header)
    body = pack({"caller": caller})
    proof = _sign(credentials.key, b"client", transcript, body)
    channel.send("proof", {"body": body, "mac": proof}, (), deadline)
    channel.limits = WELCOME
    welcome = _open(_expect(channel, "welcome", deadline), credentials.key, b"server", transcript + proof)
    if welcome is None:
        raise AuthenticationError(f"the far side does not know this cluster's secret: {HOW_TO_SHARE}")
    channel.limits = limits
    channel.far_limits = _read_limits(welcome.get("limits"))
    return Welcome(dict(welcome["info"]), welcome.get("host_socket"))


def handshake_as_server(
    channel: Channel,
    credentials: Credentials,
    binding: bytes,
    limits: Limits,
    deadline: Deadline,
    admit: Callable[[], Mapping[str, Any]],
    punish: Callable[[], object],
) -> str:
    """Perform the server's side of the handshake; return the authenticated caller's name.

    Args:
        channel: A new connection's channel.
        credentials: The secret to prove and to have proved.
        binding: Digest of the certificate that this server showed; empty without TLS.
        limits: What is accepted afterwards.
        deadline: When the whole handshake must be over.
        admit: Called when a caller is authenticated; returns what to tell it (`info`, `host_socket`), or raises
            `LimitExceeded`.
        punish: Called before a wrong secret is answered; takes a little time.
    """
    has_secret = credentials.has_secret
    hello = _expect(channel, "hello", deadline)
    own, _ = channel.send("hello", _hello("server", has_secret), (), deadline)
    _check_hello(hello, "client")
    if hello.fields.get("secret") is not has_secret:
        raise AuthenticationError(
            f"it has no secret and this server has one: {HOW_TO_SHARE}"
            if has_secret
            else f"it has a secret and this server has none: {HOW_TO_SHARE}"
        )
    if channel.stream.is_unix and not has_secret and not channel.stream.same_user():
        channel.send("refused", {"kind": REFUSED_USER}, (), deadline)
        raise AuthenticationError(f"it is another user's process on this host: {HOW_TO_SHARE}")
    transcript = _transcript(binding, hello.header, own)
    message = _expect(channel, "proof", deadline)
    proof = _open(message, credentials.key, b"client", transcript)
    if proof is None:
        punish()
        channel.send("refused", {"kind": REFUSED_SECRET}, (), deadline)
        raise AuthenticationError(f"it does not know the secret: {HOW_TO_SHARE}")
    try:
        welcome = dict(admit())
    except LimitExceeded:
        channel.send("refused", {"kind": REFUSED_FULL}, (), deadline)
        raise
    welcome["limits"] = {name: getattr(limits, name) for name in _WELCOME_LIMITS}
    body = pack(welcome)
    mac = _sign(credentials.key, b"server", transcript + message.fields["mac"], body)
    # Raised before the welcome: the client's first call may come right behind it.
    channel.limits = limits
    channel.send("welcome", {"body": body, "mac": mac}, (), deadline)
    return str(proof.get("caller", ""))


def _hello(role: str, has_secret: bool) -> Fields:
    return {
        "protocol": PROTOCOL,
        "role": role,
        "nonce": secrets.token_bytes(_NONCE_BYTES),
        "secret": has_secret,
    }


def _check_hello(hello: Message, role: str) -> None:
    """Raise unless a hello is of this version of the protocol and of this role."""
    version, nonce = hello.fields.get("protocol"), hello.fields.get("nonce")
    if version != PROTOCOL:
        raise ProtocolError(
            f"the far side speaks protocol version {version!r:.20}, this side {PROTOCOL!r}: install the same version of "
            "stratagem on both"
        )
    if hello.fields.get("role") != role or not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
        raise ProtocolError(f"a hello that is not a {role}'s")


def _expect(channel: Channel, subject: str, deadline: Deadline) -> Message:
    message = channel.receive(deadline, deadline)
    if message.subject == "refused":
        raise _refusal(message.fields.get("kind"))
    if message.subject != subject:
        raise ProtocolError(f"{message.subject!r:.40} where a {subject} belongs")
    return message


def _refusal(kind: object) -> RemoteError:
    if kind == REFUSED_SECRET:
        return AuthenticationError(f"the far side has another secret: {HOW_TO_SHARE}")
    if kind == REFUSED_TLS:
        return AuthenticationError(
            "the far side speaks TLS only: set STRATAGEM_TLS_CA to the file of the cluster's CA (or give tls=)"
        )
    if kind == REFUSED_USER:
        return AuthenticationError(f"the far side belongs to another user of this host: {HOW_TO_SHARE}")
    if kind == REFUSED_FULL:
        return LimitExceeded(
            "the far side has as many connections as it allows: close some, or raise Limits(connections=)"
        )
    return ProtocolError(f"the far side refused: {kind!r:.80}")


def _transcript(binding: bytes, client_hello: bytes, server_hello: bytes) -> bytes:
    digest = hashlib.sha256(b"stratagem wire")
    for part in (binding, client_hello, server_hello):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _sign(key: bytes, role: bytes, transcript: bytes, body: bytes) -> bytes:
    return hmac.digest(key, role + len(transcript).to_bytes(8, "big") + transcript + body, "sha256")


def _open(message: Message, key: bytes, role: bytes, transcript: bytes) -> Fields | None:
    """Return the body of a signed message; `None` if the signature is wrong."""
    body, mac = message.fields.get("body"), message.fields.get("mac")
    if not isinstance(body, bytes) or not isinstance(mac, bytes):
        raise ProtocolError(f"a {message.subject} without a body and its signature")
    if not hmac.compare_digest(mac, _sign(key, role, transcript, body)):
        return None
    value = unpack(body)
    if not isinstance(value, dict):
        raise ProtocolError(f"a {message.subject} whose body is not a dictionary")
    return value


def _read_limits(limits: Any) -> Limits:
    if not isinstance(limits, dict) or set(limits) != set(_WELCOME_LIMITS):
        raise ProtocolError("a welcome without limits")
    return Limits(**limits)
