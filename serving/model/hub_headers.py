"""Validates the file names that a Hub or a mirror sends, so that none can be a path.

`huggingface_hub` builds file names from server data: `ETag` and `X-Linked-ETag` name a blob and its lock,
`X-Repo-Commit` a folder, also in 404 responses, `X-Xet-Hash` a file in a shared store, and the commit in a listing
a folder and the content of a reference. All of these are digests. They are checked in the library's own
transport, before it reads them, so that no second response can differ from the checked one.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory

from serving.errors import ModelError

_DIGEST = re.compile("[0-9a-fA-F]{40,64}")
_NAMES = ("x-linked-etag", "x-repo-commit", "x-xet-hash")
"""Headers used as names. `etag` is one only if `x-linked-etag` is absent, in the response to HEAD."""


def is_digest(text: object) -> bool:
    """Whether a text is 40 to 64 hexadecimal digits, which cannot form a path in any combination."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


@contextmanager
def names_checked() -> Iterator[None]:
    """Within the block, reject response headers that could become a path.

    A request then raises ModelError on such a header.

    Effects: reopens the library's connections on entry and on exit.
    """
    set_client_factory(_checking_client)
    try:
        yield
    finally:
        set_client_factory(default_client_factory)


def _checking_client() -> httpx2.Client:
    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], _check_names]}
    return client


def _check_names(response: httpx2.Response) -> None:
    """Raises: ModelError for a header that would become a name but is not a digest."""
    for name in _NAMES:
        _check_header(response, name)
    if response.request.method != "HEAD" or "x-linked-etag" in response.headers or "etag" not in response.headers:
        return
    if response.is_redirect and not is_digest(_bare(response.headers["etag"])):
        del response.headers["etag"]  # belongs to the redirect itself, e.g. to its empty page, not to a file
        return
    _check_header(response, "etag")


def _check_header(response: httpx2.Response, name: str) -> None:
    value = response.headers.get(name)
    if value is not None and not is_digest(_bare(value) if "etag" in name else value):
        raise ModelError(
            f"{response.request.url.copy_with(query=None)} calls its file {ascii(value)[:80]} ({name}), which is "
            "not a digest (40 to 64 hexadecimal digits) and could be a path: nothing was written; use "
            "the Hub itself, or another mirror (HF_ENDPOINT)"
        )


def _bare(etag: str) -> str:
    """An entity tag without mark and quotes, as the library uses it."""
    return etag.lstrip("W/").strip('"')
