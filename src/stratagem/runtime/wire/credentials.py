"""What proves that two tasks belong to one cluster: the secret, and TLS files between hosts.

A TLS certificate must be signed by the cluster's CA. Host names are not checked, since clusters go by addresses that come
and go. Instead the proof of the secret is bound to the server's certificate, so that nobody in the middle can use another
one. Use a CA of the cluster's own: without a secret, everybody whose certificate it has signed belongs.
"""

import hashlib
import logging
import os
import pwd
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stratagem.environment import SECRET_FILE, TLS_CA, TLS_CERT, TLS_KEY, secret, secret_file, tls_files
from stratagem.errors import AuthenticationError
from stratagem.runtime.wire.error_translation import reason

_log = logging.getLogger("stratagem")
_BY_GROUP, _BY_OTHERS = 0o070, 0o007
HOW_TO_SHARE = (
    "set STRATAGEM_SECRET to the same value on both (or STRATAGEM_SECRET_FILE to a file with it, "
    "or give secret=)"
)


def read_secret_file(path: str | Path, named_by: str) -> bytes:
    """Return the secret in a file, without the white space around it.

    A file that other users can read is refused, as ssh does with keys. On a file system that is mounted read-only it is
    accepted: there the mode is up to whoever mounts it, as Kubernetes and Docker do for one container, whose group may
    read it.

    Args:
        path: The file.
        named_by: The variable or option that names it.

    Raises:
        AuthenticationError: The file cannot be read, or other users can read it.
    """
    try:
        with Path(path).open("rb") as file:
            status, system = os.fstat(file.fileno()), os.fstatvfs(file.fileno())
            secret = file.read().strip()
    except OSError as error:
        raise AuthenticationError(f"cannot read the secret's file ({named_by}): {error}") from error
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or not mode & (_BY_GROUP | _BY_OTHERS):
        return secret
    if not system.f_flag & os.ST_RDONLY:
        raise AuthenticationError(
            f"the secret's file {path} ({named_by}) is open to other users: its mode is {mode:04o}, its owner "
            f"{_owner(status.st_uid)}. Let its owner alone read it: chmod 600 {path}"
        )
    if mode & _BY_OTHERS:
        _log.warning(
            "the secret's file %s (%s) is open to every user here: its mode is %04o. Mount it with mode 0400, or with "
            "0440 and a group of its own (defaultMode and fsGroup in Kubernetes)",
            path,
            named_by,
            mode,
        )
    return secret


def _owner(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


@dataclass(frozen=True)
class TLS:
    """TLS files in PEM form.

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
        """Return a context for the side that connects: it checks the server's certificate and shows its own, if any."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._load(context)

    def server_context(self, has_secret: bool) -> ssl.SSLContext:
        """Return a context for the side that listens: without a secret, clients must show a certificate of the CA."""
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
        """Return the digest of this server's own certificate, as clients will see it."""
        try:
            text = Path(self.cert or self.ca).read_text()
            begin = text.index("-----BEGIN CERTIFICATE-----")
            footer = "-----END CERTIFICATE-----"
            return digest(ssl.PEM_cert_to_DER_cert(text[begin : text.index(footer) + len(footer)]))
        except (OSError, ValueError) as error:
            raise AuthenticationError(f"TLS: cannot read the certificate {self.cert}: {error}") from error


def digest(certificate: bytes | None) -> bytes:
    """Return what stands for a certificate (DER) in the transcript of a handshake."""
    return hashlib.sha256(certificate).digest() if certificate else b""


@dataclass(frozen=True)
class Credentials:
    """The cluster's secret and its TLS files; both may be missing.

    The secret should be random, since an eavesdropper could try out guesses at a short one: `secrets.token_hex(32)`.

    Example:
        >>> Credentials(secret="pepper")
        Credentials(tls=None)
    """

    secret: bytes | str | None = field(default=None, repr=False)
    tls: TLS | None = None

    def __post_init__(self) -> None:
        if self.secret is not None and not self.secret:
            raise AuthenticationError(f"the secret is empty: {HOW_TO_SHARE}")

    @property
    def has_secret(self) -> bool:
        """True if there is a secret."""
        return self.secret is not None

    @property
    def key(self) -> bytes:
        """The key of the proofs; empty without a secret."""
        if self.secret is None:
            return b""
        return self.secret.encode() if isinstance(self.secret, str) else self.secret

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Credentials":
        """Return the credentials in STRATAGEM_SECRET (or _SECRET_FILE) and STRATAGEM_TLS_CA, _CERT and _KEY."""
        own_secret: bytes | str | None = secret(environ)
        path = secret_file(environ)
        if own_secret is None and path is not None:
            own_secret = read_secret_file(path, SECRET_FILE)
        ca, cert, key = tls_files(environ)
        if ca is None and (cert or key):
            raise AuthenticationError(f"{TLS_CERT} or {TLS_KEY} is set without {TLS_CA}")
        return cls(own_secret, TLS(ca, cert, key) if ca else None)

    @classmethod
    def from_arguments(cls, secret: bytes | str | None, tls: TLS | None) -> "Credentials":
        """Return a user's credentials, completed from the environment."""
        default = cls.from_environment()
        return cls(default.secret if secret is None else secret, default.tls if tls is None else tls)
