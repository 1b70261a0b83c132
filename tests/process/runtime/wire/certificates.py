"""Certificates for a test: an authority, and what it has signed."""

import shutil
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A CA in a directory."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("certificates are made with openssl, which is not here")
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self.ca = str(directory / "ca.pem")
        self._key = str(directory / "ca.key")
        _openssl(
            "req",
            "-x509",
            *_NEW_KEY,
            "-keyout",
            self._key,
            "-out",
            self.ca,
            "-subj",
            "/CN=authority",
            "-days",
            "2",
        )

    def issue(self, name: str) -> tuple[str, str, str]:
        """The files of the authority, of a new certificate and of its key."""
        cert, key, request = (str(self._directory / f"{name}.{kind}") for kind in ("pem", "key", "csr"))
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signed_by, "-out", cert, "-days", "2")
        return self.ca, cert, key


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
