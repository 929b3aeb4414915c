"""Pages for people: `/`, `/requests`, `/sessions`, `/docs`. If API keys are required, only with one of them."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.pages.api_page import api_page
from serving.gateway.api.pages.document import PageDocument, StartFacts, start_page
from serving.gateway.api.pages.requests_page import requests_page
from serving.gateway.api.pages.sessions_page import sessions_page

_KEPT = 8
"""Cached pages; they differ by the host name in the request."""


def page_router(start_facts: StartFacts, describe: Callable[[], dict[str, Any]], root_path: str = "") -> APIRouter:
    """The routes.

    Args:
        start_facts: content of the first page.
        describe: returns the OpenAPI document, after all routes were added.
        root_path: path prefix that a proxy adds.
    """
    router = APIRouter(include_in_schema=False)
    start = lru_cache(_KEPT)(lambda url: start_page(start_facts, url))
    requests = lru_cache(1)(lambda: requests_page(start_facts.pools_page))
    sessions = lru_cache(1)(lambda: sessions_page(start_facts.pools_page))
    api = lru_cache(_KEPT)(lambda url: api_page(describe(), url, start_facts.pools_page))

    @router.get("/")
    async def first_page(request: Request) -> Response:
        """A chat box, and links to the other pages."""
        return _sent(start(_url_of(request, root_path)))

    @router.get("/requests")
    async def past_requests() -> Response:
        """The latest requests, with their time lines."""
        return _sent(requests())

    @router.get("/sessions")
    async def kept_sessions() -> Response:
        """The sessions whose prompts are kept."""
        return _sent(sessions())

    @router.head("/")
    async def here() -> Response:
        """Empty response: agents check so whether the server exists, before they send a key."""
        return Response()

    @router.get("/docs")
    async def api_documentation(request: Request) -> Response:
        # Building the page takes 200 ms, during which streams must not stall.
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
