"""Answers each request of the page and of scripts; knows HTTP and the port, not Ray."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from serving.dashboard.answers import error_answer, file_answer, json_answer, ray_refusal, refusal
from serving.dashboard.commands import DecisionsQuery, Hold, RayScale, Release, Scale, from_json, from_query
from serving.dashboard.guard import NONCE_HEADER, Guard
from serving.dashboard.port import JsonObject, PoolsPort
from serving.errors import ScaleError

FRESH_S = 0.4
"""However many pages and scripts look, the system is asked about twice a second."""
MOST_BYTES = 4096
"""A command is two numbers."""
BY_PAGE = "page"

Refuse = Callable[[ScaleError], web.Response]


class PoolsApi:
    """All handlers over one port.

    Args:
        guard: whose nonce browsers need; the same for as long as this process lives.
        clock: monotonic [s].
    """

    def __init__(self, port: PoolsPort, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._guard = guard
        self._look = SharedLook(port.state, clock)

    def file(self, name: str) -> web.Response:
        """The page, or a file of it.

        Raises: web.HTTPNotFound.
        """
        return file_answer(name)

    async def state(self, request: web.Request) -> web.Response:
        """Everything there is to see, and the nonce for whoever can read headers."""
        stranger = self._guard.stranger(request.headers)
        if stranger is not None:
            return error_answer(*stranger, 403)
        headers = {NONCE_HEADER: self._guard.nonce} if self._guard.controls else {}
        try:
            return json_answer(await self._look.value(), headers=headers)
        except ScaleError as error:
            return refusal(error)

    async def decisions(self, request: web.Request) -> web.Response:
        """`{"decisions": [...]}`, newest first; query `pool`, `after`, `limit`."""

        async def ask() -> object:
            query = from_query(request.query, DecisionsQuery)
            return {"decisions": await self._port.decisions(query.pool, query.after, query.limit)}

        stranger = self._guard.stranger(request.headers)
        return await self._answer(ask()) if stranger is None else error_answer(*stranger, 403)

    # ---- scripts: POST and DELETE with the token as a header; Ray lets no browser through --------------------------

    async def post_scale(self, request: web.Request) -> web.Response:
        """Body `{"replicas": 3, "hold_s": 600}`."""

        async def ask() -> object:
            command = from_json(await _body(request), Scale)
            return await self._port.scale(_pool(request), command.replicas, command.hold_s, command.by)

        return await self._change(ask())

    async def ray_scale(self, request: web.Request) -> web.Response:
        """Body `{"target_num_replicas": 3}`: Ray's own route, for our application, with our check for room.

        Scripts for Ray read `error` as a string; our own fields stand beside it.
        """

        async def ask() -> object:
            command = from_json(await _body(request), RayScale)
            return await self._port.scale(_pool(request), command.target_num_replicas, None, "rest")

        return await self._change(ask(), ray_refusal)

    async def post_hold(self, request: web.Request) -> web.Response:
        """Body `{"hold_s": 600}`."""

        async def ask() -> object:
            command = from_json(await _body(request), Hold)
            return await self._port.hold(_pool(request), command.hold_s, command.by)

        return await self._change(ask())

    async def delete_hold(self, request: web.Request) -> web.Response:
        """Gives the pool back to the autoscaler."""

        async def ask() -> object:
            return await self._port.release(_pool(request), from_query(request.query, Release).by)

        return await self._change(ask())

    # ---- the page: GET with the nonce ------------------------------------------------------------------------------

    async def page_scale(self, request: web.Request) -> web.Response:
        """Query `replicas`, `hold_s`."""

        async def ask() -> object:
            command = from_query(request.query, Scale)
            return await self._port.scale(_pool(request), command.replicas, command.hold_s, BY_PAGE)

        return await self._page_change(request, ask)

    async def page_hold(self, request: web.Request) -> web.Response:
        """Query `hold_s`."""

        async def ask() -> object:
            return await self._port.hold(_pool(request), from_query(request.query, Hold).hold_s, BY_PAGE)

        return await self._page_change(request, ask)

    async def page_release(self, request: web.Request) -> web.Response:
        """Gives the pool back to the autoscaler."""
        return await self._page_change(request, lambda: self._port.release(_pool(request), BY_PAGE))

    # ----------------------------------------------------------------------------------------------------------------

    async def _page_change(self, request: web.Request, ask: Callable[[], Awaitable[object]]) -> web.Response:
        objection = self._guard.objection(request.headers)
        if objection is not None:
            return error_answer(*objection, 403)
        return await self._change(ask())

    async def _change(self, answer: Awaitable[object], refuse: Refuse = refusal) -> web.Response:
        response = await self._answer(answer, refuse)
        self._look.forget()  # whoever changed something shall see it
        return response

    @staticmethod
    async def _answer(answer: Awaitable[object], refuse: Refuse = refusal) -> web.Response:
        try:
            return json_answer(await answer)
        except ScaleError as error:
            return refuse(error)


class SharedLook:
    """One question for everybody who asks at about the same time."""

    def __init__(self, ask: Callable[[], Awaitable[JsonObject]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._task: asyncio.Task[JsonObject] | None = None
        self._begun = 0.0

    async def value(self) -> JsonObject:
        """What was found, at most FRESH_S before.

        Raises: whatever the question raised, to all who wait for it.
        """
        task = self._task
        if task is None or (task.done() and self._clock() - self._begun >= FRESH_S):
            self._begun = self._clock()
            task = self._task = asyncio.create_task(self._find())
        return await asyncio.shield(task)  # who goes away does not end it for the others

    def forget(self) -> None:
        """The next one asks anew."""
        self._task = None

    async def _find(self) -> JsonObject:
        return await self._ask()


def _pool(request: web.Request) -> str:
    return request.match_info["pool"]


async def _body(request: web.Request) -> bytes:
    """The body, if it is as short as a command is. Ray's dashboard has read it whole and states its length.

    Raises: ScaleError, kind `invalid`.
    """
    if (request.content_length or 0) > MOST_BYTES:
        raise ScaleError("The request is too long.", kind="invalid")
    return await request.read()
