"""Addresses of servers as `--url` takes them, the default, and the error when nothing listens there.

Commands of `cloudmatrix` and `loadgen` share them. Without `--url` a command uses the one system that its user runs on
this machine, or else `DEFAULT_URL`.
"""

import argparse
import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""The key's environment variable, as in every OpenAI client."""
DEFAULT_URL: Final = "http://127.0.0.1:8000"
URL_HELP: Final = f"server's address, with or without http:// (default: of your system here, else {DEFAULT_URL})"


def server_address(text: str) -> str:
    """An address as a URL: `127.0.0.1:8000` -> `http://127.0.0.1:8000`. A `type` for argparse.

    A final `/v1`, as OpenAI clients need it, is removed.

    Raises: argparse.ArgumentTypeError if it is not an address of a server, or includes a password, which would appear
        in results and logs.
    """
    url = (text if "://" in text else f"http://{text}").rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine or parts.query or parts.fragment or any(character.isspace() for character in url):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write e.g. 127.0.0.1:8000 or http://127.0.0.1:8000")
    if "@" in parts.netloc:
        raise argparse.ArgumentTypeError("no user name or password in an address: a key is given with --api-key")
    return url


def key_or_environment(key: str | None) -> str | None:
    """The given key, else that of the environment, else None."""
    return key or os.environ.get(KEY_VARIABLE)


def nothing_listens(url: str) -> str:
    """The error for a refused connection."""
    return f"nothing listens at {url}: start a server there (`cloudmatrix serve`), or give the address of one, --url"


# Systems of this user on this machine. Each has a folder with its addresses and a file that its launcher keeps locked.

POOL: Final = "kvcache"
ALIVE: Final = "alive"
ADDRESSES: Final = "addresses"
LONGEST_PARENT: Final = 13
"""Ray's longest socket path below a session is 94 bytes; the kernel's limit is 107."""


def temporary_folder() -> Path:
    """The user's temporary folder, or /tmp if sockets below it would have too long a path."""
    own = tempfile.gettempdir()
    return Path(own if len(own) <= LONGEST_PARENT else "/tmp")


def own_folders(parent: Path) -> Iterator[Path]:
    """Folders of this user's starts. Other users can create entries in a shared folder, including links to these."""
    for folder in parent.glob("cloudmatrix-*"):
        with contextlib.suppress(OSError):  # removed in the meantime
            facts = folder.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid():
                yield folder


def is_held(mark: Path) -> bool:
    """Whether a launcher holds the lock of its file. Raises: OSError if there is no file."""
    with mark.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: readers must not mistake each other for an owner
        except BlockingIOError:
            return True
    return False


def own_urls(parent: Path) -> list[str]:
    """Addresses of the gateways of this user's running systems.

    Args:
        parent: their folder, `temporary_folder()`.
    """
    found = []
    for folder in sorted(own_folders(parent)):
        with contextlib.suppress(OSError, IndexError):  # already stopped, or not up yet
            if is_held(folder / POOL / ALIVE):
                found.append((folder / ADDRESSES).read_text().splitlines()[1])
    return found
