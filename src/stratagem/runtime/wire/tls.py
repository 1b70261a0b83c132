"""TLS between hosts: which files, and what they are checked for.

A certificate must be signed by the cluster's CA. Host names are not checked, since clusters go by addresses
that come and go; instead the proof of the secret is bound to the server's certificate, so that nobody in the
middle can use another one. Use a CA of the cluster's own: with no secret, whoever it has signed belongs.
"""

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from stratagem.errors import AuthenticationError
from stratagem.runtime.wire.foreign import reason


@dataclass(frozen=True)
class TLS:
    """Files in PEM form.

    Attributes:
        ca: The authority that signed the certificates of this cluster.
        cert: This task's certificate (with its chain, if any); a server must have one, a client may.
        key: The certificate's key; may be left out if `cert` holds it.
    """

    ca: str
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if not self.ca:
            raise AuthenticationError("TLS needs the CA's file: give ca=, or set STRATAGEM_TLS_CA")
        if self.key is not None and self.cert is None:
            raise AuthenticationError(
                f"TLS has the key {self.key!r} without a certificate: give cert=, or set STRATAGEM_TLS_CERT"
            )
        for name in (self.ca, self.cert, self.key):
            if name is not None and not Path(name).is_file():
                raise AuthenticationError(f"TLS: no such file: {name}")

    def client_context(self) -> ssl.SSLContext:
        """For the side that connects: checks the server's certificate, shows its own if it has one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._load(context)

    def server_context(self, has_secret: bool) -> ssl.SSLContext:
        """For the side that listens: without a secret, clients must show a certificate of the CA."""
        if self.cert is None:
            raise AuthenticationError(
                "a server that speaks TLS needs a certificate: give cert= and key=, or set STRATAGEM_TLS_CERT "
                "and STRATAGEM_TLS_KEY"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL if has_secret else ssl.CERT_REQUIRED
        # Tickets for resumption would wait unread in idle connections, where nothing may wait.
        context.num_tickets = 0
        return self._load(context)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise AuthenticationError(f"TLS: cannot load {self}: {reason(error)}") from error
        return context

    def binding(self) -> bytes:
        """Digest of this server's own certificate, as clients will see it."""
        try:
            text = Path(self.cert or self.ca).read_text()
            begin = text.index("-----BEGIN CERTIFICATE-----")
            footer = "-----END CERTIFICATE-----"
            return digest(ssl.PEM_cert_to_DER_cert(text[begin : text.index(footer) + len(footer)]))
        except (OSError, ValueError) as error:
            raise AuthenticationError(f"TLS: cannot read the certificate {self.cert}: {error}") from error


def digest(certificate: bytes | None) -> bytes:
    """What stands for a certificate (DER) in the transcript of a handshake."""
    return hashlib.sha256(certificate).digest() if certificate else b""
