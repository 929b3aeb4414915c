"""Pages for people: `/` and `/docs`. Where API keys are asked for they are there only for requests that bring one."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.pages.api_page import api_page
from serving.gateway.api.pages.document import PageDocument
from serving.gateway.api.pages.start_page import StartFacts, start_page

_KEPT = 8
"""Pages differ by the name under which the server was asked; so many are kept."""


def page_router(told: StartFacts, describe: Callable[[], dict[str, Any]], root_path: str = "") -> APIRouter:
    """The routes.

    Args:
        told: content of the first page.
        describe: gives the OpenAPI document, once all routes are there.
        root_path: under which a proxy shows this server.
    """
    router = APIRouter(include_in_schema=False)
    start = lru_cache(_KEPT)(lambda url: start_page(told, url))
    api = lru_cache(_KEPT)(lambda url: api_page(describe(), url))

    @router.get("/")
    async def first_page(request: Request) -> Response:
        """A chat box, and where everything else is."""
        return _sent(start(_url_of(request, root_path)))

    @router.head("/")
    async def here() -> Response:
        """Nothing: agents ask so whether the server is there, before they have shown a key."""
        return Response()

    @router.get("/docs")
    async def api_documentation(request: Request) -> Response:
        """The API in words."""
        # To describe all of it takes a fifth of a second, in which streams must not stand still.
        return _sent(await asyncio.to_thread(api, _url_of(request, root_path)))

    return router


def _url_of(request: Request, root_path: str) -> str:
    return str(request.base_url).rstrip("/") + root_path


def _sent(page: PageDocument) -> Response:
    headers = {
        "Content-Security-Policy": page.policy,
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    return Response(page.content, media_type="text/html; charset=utf-8", headers=headers)
