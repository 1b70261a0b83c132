"""What proves that two tasks belong to one cluster: the secret, and the TLS files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratagem.environment import SECRET_FILE, TLS_CA, TLS_CERT, TLS_KEY, secret, secret_file, tls_files
from stratagem.errors import AuthenticationError
from stratagem.runtime.wire.secret_file import read_secret
from stratagem.runtime.wire.tls import TLS

HOW_TO_SHARE = (
    "set STRATAGEM_SECRET to the same value on both (or STRATAGEM_SECRET_FILE to a file with it, "
    "or give secret=)"
)


@dataclass(frozen=True)
class Credentials:
    """The cluster's secret and its TLS files; both may be missing.

    The secret should be random, since one who listens in could try out guesses at a short one:
    `secrets.token_hex(32)`.

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
        """Whether there is a secret."""
        return self.secret is not None

    @property
    def key(self) -> bytes:
        """The key of the proofs; empty without a secret."""
        if self.secret is None:
            return b""
        return self.secret.encode() if isinstance(self.secret, str) else self.secret

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Credentials":
        """What STRATAGEM_SECRET (or _SECRET_FILE) and STRATAGEM_TLS_CA, _CERT and _KEY say."""
        found: bytes | str | None = secret(environ)
        path = secret_file(environ)
        if found is None and path is not None:
            found = read_secret(path, SECRET_FILE)
        ca, cert, key = tls_files(environ)
        if ca is None and (cert or key):
            raise AuthenticationError(f"{TLS_CERT} or {TLS_KEY} is set without {TLS_CA}")
        return cls(found, TLS(ca, cert, key) if ca else None)

    @classmethod
    def from_arguments(cls, secret: bytes | str | None, tls: TLS | None) -> "Credentials":
        """What a user gave, and from the environment what was not given."""
        found = cls.from_environment()
        return cls(found.secret if secret is None else secret, found.tls if tls is None else tls)
