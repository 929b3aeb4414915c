"""From flags to the `Endpoint`: address, headers, the fields that every body has."""

import argparse
import os
from urllib.parse import urlsplit

from loadgen.endpoint import DEFAULT_PATHS, Backend, Endpoint
from loadgen.errors import UsageError

_CHAT = ("openai-chat", "chat")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def build_endpoint(flags: argparse.Namespace, *, ignore_eos: bool) -> Endpoint:
    """The endpoint that the flags describe; `model` stays empty if it is to be queried from the server.

    Raises: UsageError if the address is none.
    """
    backend = Backend.CHAT if flags.backend in _CHAT else Backend.COMPLETIONS
    path = flags.endpoint or DEFAULT_PATHS[backend]
    if not path.startswith("/"):
        raise UsageError(f"--endpoint {path}: a path begins with /, e.g. {DEFAULT_PATHS[backend]}")
    sampling = {name: getattr(flags, name) for name in _SAMPLING if getattr(flags, name) is not None}
    return Endpoint(
        base_url=base_url(flags),
        path=path,
        model=flags.model or "",
        backend=backend,
        headers=_headers(flags),
        stream=flags.stream,
        ignore_eos=ignore_eos,
        extra={**sampling, **flags.extra_body},
        verify_tls=not flags.insecure,
    )


def base_url(flags: argparse.Namespace) -> str:
    """Scheme, host and port, without a trailing /v1, which people paste along.

    Raises: UsageError.
    """
    given = f"--url {flags.url}" if flags.url else f"--host {flags.host}"
    host = f"[{flags.host}]" if ":" in flags.host and not flags.host.startswith("[") else flags.host  # IPv6
    url = (flags.url or f"http://{host}:{flags.port}").rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    url = url.removesuffix("/v1")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine:
        raise UsageError(f"{given}: not an address; write e.g. http://127.0.0.1:8000")
    refuse_user("--url", url)
    if parts.query or parts.fragment:
        raise UsageError(f"{given}: an address without ? and #; a query belongs to --endpoint '/v1/completions?...'")
    return url


def refuse_user(flag: str, url: str) -> None:
    """Reject passwords in addresses, since addresses appear in every result.

    Raises: UsageError.
    """
    if "@" in urlsplit(url).netloc:
        raise UsageError(f"{flag}: no user name or password in an address; give --header 'Authorization=Basic ...'")


def _headers(flags: argparse.Namespace) -> list[tuple[str, str]]:
    """Header lines given, with the key as a bearer token unless one of them is an Authorization.

    Raises: UsageError for what no header line can hold.
    """
    headers = list(flags.header)
    key = flags.api_key or os.environ.get("OPENAI_API_KEY")  # as every OpenAI client does
    if key and not any(name.lower() == "authorization" for name, _ in headers):
        headers.append(("Authorization", f"Bearer {key}"))
    for name, value in headers:
        if not name.isascii() or any(char in name + value for char in "\r\n\0") or not _latin1(value):
            raise UsageError(f"--header {name}: name and value must be plain text on one line")
    return headers


def _latin1(text: str) -> bool:
    return all(ord(char) < 256 for char in text)
