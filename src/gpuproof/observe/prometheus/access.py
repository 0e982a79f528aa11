"""Who may scrape? Only this machine, unless an address is given; TLS and a password are optional.

In: a certificate and its key, and a file with one line `USER:PASSWORD`. Out: the server's settings, and an
application that returns 401 for requests without the password.
"""

from __future__ import annotations

import base64
import hmac
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuproof.base.errors import UsageError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

OTHERS_MAY_READ = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How an exporter can be reached."""

    certificate: str | None = None
    """Path of the certificate and its chain (PEM); None serves plain HTTP."""
    key: str | None = None
    """Path of the certificate's private key (PEM)."""
    password: str | None = None
    """`USER:PASSWORD` that each scrape has to send; if None, no password is required."""
    hosts: tuple[str, ...] = ()
    """Host names that scrape requests may use for this machine, in addition to its own."""

    @property
    def scheme(self) -> str:
        """Return `https` if there is a certificate, else `http`."""
        return "http" if self.certificate is None else "https"


OPEN = Access()


def read_access(
    *, certificate: Path | None, key: Path | None, password_file: Path | None, hosts: Sequence[str] = ()
) -> Access:
    """Build the access settings from the options.

    Raises:
        UsageError: certificate and key do not match, one is missing, or the password file is unusable.
    """
    if (certificate is None) != (key is None):
        raise UsageError(
            "a certificate and its key must be given together",
            place="--tls-cert",
            next_step="Give --tls-key too",
        )
    if certificate is not None and key is not None:
        _check_pair(certificate, key)
    return Access(
        certificate=None if certificate is None else str(certificate),
        key=None if key is None else str(key),
        password=None if password_file is None else _password(password_file),
        hosts=tuple(hosts),
    )


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # including ssl.SSLError
        raise UsageError(
            f"cannot be used ({error.strerror or error})",
            place=f"--tls-cert {certificate} --tls-key {key}",
            next_step="Specify a certificate in PEM and its private key",
        ) from error


def _password(path: Path) -> str:
    place = f"--password-file {path}"
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(str(error), place=place) from error
    if mode & OTHERS_MAY_READ:
        raise UsageError("other users can read it", place=place, next_step=f"Run: chmod 600 {path}")
    user, colon, password = text.partition(":")
    if not user or not colon or not password or "\n" in text:
        raise UsageError("does not contain a single line USER:PASSWORD", place=place)
    return text


def guarded(application: WSGIApplication, password: str) -> WSGIApplication:
    """Return the application wrapped in HTTP basic authentication."""
    expected = b"Basic " + base64.b64encode(password.encode())

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        header = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
        if hmac.compare_digest(header, expected):
            return application(environ, start_response)
        headers = [("WWW-Authenticate", 'Basic realm="gpuproof"'), ("Content-Type", "text/plain")]
        start_response("401 Unauthorized", headers)
        return [b"a user and a password are needed\n"]

    return answer
