"""Addresses of servers in the form that people type."""

import argparse
from urllib.parse import urlsplit


def server_address(text: str) -> str:
    """An address as a URL: `127.0.0.1:8000` -> `http://127.0.0.1:8000`. A `type` for argparse.

    Raises: argparse.ArgumentTypeError if it is not an address of a server.
    """
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine or parts.query or parts.fragment or any(character.isspace() for character in url):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write e.g. 127.0.0.1:8000 or http://127.0.0.1:8000")
    return url
