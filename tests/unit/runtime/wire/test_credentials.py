"""Secrets and TLS files: where they come from, and which are refused."""

import os
import pwd
from pathlib import Path

import pytest

from stratagem.errors import AuthenticationError
from stratagem.runtime.wire import TLS, Credentials
from stratagem.runtime.wire.credentials import read_secret_file


def test_credentials_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("  from a file\n")
    file.chmod(0o600)
    assert Credentials.from_environment({}) == Credentials()
    assert Credentials.from_environment({"STRATAGEM_SECRET": "s"}).key == b"s"
    assert Credentials.from_environment({"STRATAGEM_SECRET_FILE": str(file)}).key == b"from a file"
    both = {"STRATAGEM_SECRET": "s", "STRATAGEM_SECRET_FILE": str(file)}
    assert Credentials.from_environment(both).key == b"s"
    for environ in (
        {"STRATAGEM_SECRET": ""},
        {"STRATAGEM_SECRET_FILE": str(tmp_path / "missing")},
        {"STRATAGEM_TLS_CERT": str(file)},
        {"STRATAGEM_TLS_CA": str(tmp_path / "missing")},
    ):
        with pytest.raises(AuthenticationError):
            Credentials.from_environment(environ)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("pepper\n")
    file.chmod(mode)
    owner = pwd.getpwuid(os.getuid()).pw_name
    wanted = rf"{file} \(STRATAGEM_SECRET_FILE\).*mode is {mode:04o}, its owner {owner}.*chmod 600 {file}"
    with pytest.raises(AuthenticationError, match=wanted) as refused:
        Credentials.from_environment({"STRATAGEM_SECRET_FILE": str(file)})
    assert "pepper" not in str(refused.value)
    file.chmod(0o400)
    assert Credentials.from_environment({"STRATAGEM_SECRET_FILE": str(file)}).key == b"pepper"


def test_a_secret_may_come_through_a_pipe() -> None:
    reading, writing = os.pipe()
    os.fchmod(reading, 0o644)
    os.write(writing, b"pepper\n")
    os.close(writing)
    assert read_secret_file(f"/dev/fd/{reading}", "--secret-file") == b"pepper"
    os.close(reading)


def test_a_secret_is_never_shown() -> None:
    assert "pepper" not in repr(Credentials("pepper"))


def test_tls_files_must_fit(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(AuthenticationError, match="without a certificate"):
        TLS(str(file), key=str(file))
    with pytest.raises(AuthenticationError, match="cannot load"):
        TLS(str(file)).client_context()
    with pytest.raises(AuthenticationError, match="needs a certificate"):
        TLS(str(file)).server_context(True)
