"""From flags to the `Endpoint`: address, headers, the fields that every body has."""

import argparse
from urllib.parse import urlsplit

from loadgen.endpoint import DEFAULT_PATHS, Backend, Endpoint
from loadgen.errors import ServerError, UsageError
from loadgen.server_address import DEFAULT_URL, key_or_environment, own_urls, server_address, temporary_folder

DEFAULT_PORT = 8000
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
    """Address of the server: that of `--url`, or of `--host` and `--port`, or as for commands of `cloudmatrix`.

    Raises: UsageError; ServerError if several systems of this user run on this machine.
    """
    if flags.url is not None:
        url: str = flags.url
        return url
    if flags.host is None and flags.port is None:
        own = own_urls(temporary_folder())
        if len(own) > 1:
            raise ServerError(f"several systems of yours run on this machine: choose one by --url: {', '.join(own)}")
        return own[0] if own else DEFAULT_URL
    host = flags.host or "127.0.0.1"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host  # IPv6
    try:
        return server_address(f"http://{host}:{flags.port or DEFAULT_PORT}")
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--host {flags.host}: {error}") from None


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
    key = key_or_environment(flags.api_key)
    if key and not any(name.lower() == "authorization" for name, _ in headers):
        headers.append(("Authorization", f"Bearer {key}"))
    for name, value in headers:
        if not name.isascii() or any(char in name + value for char in "\r\n\0") or not _latin1(value):
            raise UsageError(f"--header {name}: name and value must be plain text on one line")
    return headers


def _latin1(text: str) -> bool:
    return all(ord(char) < 256 for char in text)
