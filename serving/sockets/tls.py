"""Mutual TLS for our own sockets, with the files of Ray's own TLS: `RAY_USE_TLS` and related variables.

Certificates are reloaded when their files change, so that renewed ones need no restart. Names in certificates are not
compared, because pods have no fixed names. The proof of the secret covers the server's certificate instead
(`proof.py`).
"""

import hashlib
import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from serving.errors import ConfigError

_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: this host's certificate and key, and the CA that signed those of all hosts."""

    certificate: str
    key: str
    authority: str


@dataclass(frozen=True, slots=True)
class TlsEnds:
    """Contexts of both ends, made from the present files. `binding`: digest of this host's certificate."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    binding: bytes


def tls_files(environment: Mapping[str, str] | None = None) -> TlsFiles | None:
    """The files that Ray's variables name; None = no TLS.

    Args:
        environment: None = this process's.
    Raises: ConfigError if TLS is on and a file is not named.
    """
    found = os.environ if environment is None else environment
    if found.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    missing = [name for name in _FILES if not found.get(name)]
    if missing:
        raise ConfigError(f"RAY_USE_TLS is set, but not {', '.join(missing)}: name the PEM files on every host")
    return TlsFiles(*(found[name] for name in _FILES))


def tls_ends() -> TlsEnds | None:
    """Contexts for new connections; None = plain TCP. They are cached until a file changes.

    Raises: ConfigError if a file cannot be read or used.
    """
    files = tls_files()
    return None if files is None else _kept.ends(files)


def binding_of(certificate: bytes | None) -> bytes:
    """Digest of a peer's certificate (DER), for the proof; empty without one."""
    return hashlib.sha256(certificate).digest() if certificate else b""


class _Kept:
    """Cache of the latest contexts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_of: object = None
        self._ends: TlsEnds | None = None

    def ends(self, files: TlsFiles) -> TlsEnds:
        with self._lock:
            try:
                made_of = (files, *((facts.st_mtime_ns, facts.st_ino) for facts in map(os.stat, _paths(files))))
                if self._ends is None or made_of != self._made_of:
                    self._ends, self._made_of = _make(files), made_of
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise ConfigError(f"cannot use the TLS files {', '.join(_paths(files))}: {error}") from error
            return self._ends


_kept = _Kept()


def _paths(files: TlsFiles) -> tuple[str, str, str]:
    return files.certificate, files.key, files.authority


def _make(files: TlsFiles) -> TlsEnds:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0  # they would arrive as unexpected bytes
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.authority)
    with open(files.certificate, encoding="ascii") as file:
        text = file.read()
    end = "-----END CERTIFICATE-----"
    own = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
    return TlsEnds(server, client, binding_of(ssl.PEM_cert_to_DER_cert(own)))
