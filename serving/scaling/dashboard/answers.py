"""HTTP responses: JSON, the page's files, errors; each with headers that isolate the page from other origins."""

import mimetypes
from functools import cache
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
from aiohttp import web

from loadgen.report.palette import with_colors
from serving.errors import ScaleError
from serving.values.scaling_operations import Answer, PoolOperation

_PAGE = Path(__file__).resolve().parent / "page"
_STATUS = {
    "unknown_pool": 404,
    "unknown_group": 404,
    "invalid": 400,
    "no_room": 409,
    "not_now": 409,
    "unavailable": 503,
    "no_system": 503,
}

_PRIVATE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


def json_answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Response with a JSON body."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={**_PRIVATE, **(headers or {})},
    )


def error_answer(kind: str, message: str, status: int, fits: int | None = None) -> web.Response:
    """Response `{"error": {"kind", "message"}}`, with `fits` if a smaller number is possible."""
    error: JsonObject = {"kind": kind, "message": message}
    if fits is not None:
        error["fits"] = fits
    return json_answer({"error": error}, status, {"Retry-After": "1"} if status == 503 else None)


def refusal(error: ScaleError) -> web.Response:
    """Response if the system refused an operation or did not respond: 400, 404, 409 or 503."""
    return error_answer(error.kind, str(error), _STATUS.get(error.kind, 400), error.fits)


def ray_refusal(error: ScaleError) -> web.Response:
    """Variant of `refusal` for a route of Ray's, whose `error` is a string; `kind` and `fits` are next to it."""
    status = _STATUS.get(error.kind, 400)
    answer: JsonObject = {"error": str(error), "kind": error.kind}
    if error.fits is not None:
        answer["fits"] = error.fits
    return json_answer(answer, status, {"Retry-After": "1"} if status == 503 else None)


def file_answer(name: str) -> web.Response:
    """Response with one of the page's files.

    Raises: web.HTTPNotFound for any other name, including paths out of the folder.
    """
    body = page_files().get(name)
    if body is None:
        raise web.HTTPNotFound
    kind = mimetypes.guess_type(name)[0]
    return web.Response(body=body, content_type=kind or "text/plain", charset="utf-8", headers=_PRIVATE)


@cache
def page_files() -> dict[str, bytes]:
    """The page's files by name, read once, so that a process serves one version of the page."""
    files = {path.name: path.read_bytes() for path in _PAGE.iterdir() if path.is_file()}
    return files | {"page.css": with_colors(files["page.css"].decode()).encode()}


# The page's port to the running system.

JsonObject: TypeAlias = dict[str, object]


class PoolsPort(Protocol):
    """Operations on the running system."""

    async def ask(self, operation: PoolOperation[Answer]) -> Answer:
        """Run an operation, within a deadline of the port.

        Raises: ScaleError with the reason of a refusal; `unavailable` if the system does not respond in time.
        """
        ...
