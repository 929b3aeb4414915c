"""HTTP handlers for requests of the page and of scripts. They depend on HTTP and `PoolsPort`, not on Ray."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from loadgen.json_text import check_depth
from serving.errors import UNREADABLE, ScaleError
from serving.scaling.dashboard.answers import (
    JsonObject,
    PoolsPort,
    error_answer,
    file_answer,
    json_answer,
    ray_refusal,
    refusal,
)
from serving.scaling.dashboard.guard import NONCE_HEADER, Guard
from serving.scaling.dashboard.login import PageLogin
from serving.values.scaling_operations import PoolOperation, ReadExperts, ReadPools, Replicas, ScaleAnswer, ScalePool

FRESH_S = 0.4
"""Time for which a state is shared [s], so that any number of pages and scripts cause two or three queries a second."""
MOST_BYTES = 4096
"""Limit of a request body; a command is two numbers."""

Refuse = Callable[[ScaleError], web.Response]


class PoolsApi:
    """All handlers over one port.

    Args:
        guard: with the nonce that browsers need, constant for the lifetime of this process.
        login: admits requests with a one-time pass.
        clock: monotonic [s].
    """

    def __init__(
        self, port: PoolsPort, guard: Guard, login: PageLogin, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._port = port
        self._guard = guard
        self._login = login
        self._poll = SharedPoll(lambda: port.ask(ReadPools()), clock)
        self._experts = SharedPoll(lambda: port.ask(ReadExperts()), clock)

    def file(self, name: str) -> web.Response:
        """Response with the page or one of its files.

        Raises: web.HTTPNotFound.
        """
        return file_answer(name)

    def log_in(self, request: web.Request) -> web.Response:
        """Exchange a one-time pass for Ray's cookie; only for requests of the page itself."""
        stranger = self._guard.stranger(request.headers)
        return error_answer(*stranger, 403) if stranger is not None else self._login.answer(request.headers)

    async def state(self, request: web.Request) -> web.Response:
        """State of the pools; the nonce is in a header, which only the page's origin can read."""
        return await self._seen(request, self._poll)

    async def experts(self, request: web.Request) -> web.Response:
        """State of the groups of ranks, with the nonce in a header."""
        return await self._seen(request, self._experts)

    async def _seen(self, request: web.Request, poll: "SharedPoll") -> web.Response:
        stranger = self._guard.stranger(request.headers)
        if stranger is not None:
            return error_answer(*stranger, 403)
        headers = {NONCE_HEADER: self._guard.nonce} if self._guard.controls else {}
        try:
            return json_answer(await poll.value(), headers=headers)
        except ScaleError as error:
            return refusal(error)

    async def read(self, request: web.Request, kind: type[PoolOperation[object]], key: str) -> web.Response:
        """Response `{key: [...]}` of a read operation, whose fields are in the query."""

        stranger = self._guard.stranger(request.headers)
        if stranger is not None:
            return error_answer(*stranger, 403)

        async def ask() -> object:
            return {key: await self._port.ask(from_query(request.query, kind))}

        return await self._answer(ask())

    async def by_script(self, request: web.Request, kind: type[PoolOperation[ScaleAnswer]]) -> web.Response:
        """A change by a script, with its fields in the body, or in the query for DELETE.

        Scripts send the token as a header; Ray refuses these methods from browsers.
        """

        async def ask() -> object:
            if request.method == "DELETE":
                return await self._port.ask(from_query(request.query, kind, pool=_pool(request)))
            return await self._port.ask(from_json(await _body(request), kind, pool=_pool(request)))

        return await self._change(ask())

    async def by_ray(self, request: web.Request) -> web.Response:
        """Ray's own scale route with body `{"target_num_replicas": 3}`, for our application, with a capacity check.

        Scripts for Ray read `error` as a string; our own fields are next to it.
        """

        async def ask() -> object:
            wanted = from_json(await _body(request), RayScale)
            return await self._port.ask(ScalePool(_pool(request), wanted.target_num_replicas))

        return await self._change(ask(), ray_refusal)

    async def by_page(self, request: web.Request, kind: type[PoolOperation[Any]]) -> web.Response:
        """A change by the page: a GET with the nonce, with its fields in the path and the query."""
        objection = self._guard.objection(request.headers)
        if objection is not None:
            return error_answer(*objection, 403)

        async def ask() -> object:
            given = {name: value for name, value in request.query.items() if name != "by"}
            return await self._port.ask(from_query(given, kind, **request.match_info, by=BY_PAGE))

        return await self._change(ask())

    async def _change(self, answer: Awaitable[object], refuse: Refuse = refusal) -> web.Response:
        response = await self._answer(answer, refuse)
        for poll in (self._poll, self._experts):  # the next read must show the change
            poll.forget()
        return response

    @staticmethod
    async def _answer(answer: Awaitable[object], refuse: Refuse = refusal) -> web.Response:
        try:
            return json_answer(await answer)
        except ScaleError as error:
            return refuse(error)


class SharedPoll:
    """Shares one query among all callers within `FRESH_S`."""

    def __init__(self, ask: Callable[[], Awaitable[JsonObject]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._task: asyncio.Task[JsonObject] | None = None
        self._begun = 0.0

    async def value(self) -> JsonObject:
        """Result of a query that started at most `FRESH_S` ago, or is still running.

        Raises: the error of the query, to all callers that wait for it.
        """
        task = self._task
        if task is None or (task.done() and self._clock() - self._begun >= FRESH_S):
            self._begun = self._clock()
            task = self._task = asyncio.create_task(self._find())
        return await asyncio.shield(task)  # a cancelled caller must not cancel it for the others

    def forget(self) -> None:
        """Discard the shared result, so that the next call queries again."""
        self._task = None

    async def _find(self) -> JsonObject:
        return await self._ask()


def _pool(request: web.Request) -> str:
    return request.match_info["pool"]


async def _body(request: web.Request) -> bytes:
    """The body, if it is within `MOST_BYTES`. Ray's dashboard has already read it and provides its length.

    Raises: ScaleError, kind `invalid`.
    """
    if (request.content_length or 0) > MOST_BYTES:
        raise ScaleError("The request is too long.", kind="invalid")
    return await request.read()


# Decodes operations from HTTP: from a JSON body or a query, and from fields of the route.

BY_PAGE = "page"


class RayScale(Struct, frozen=True):
    """`ScalePool` in the format of Ray's own route; other fields are ignored."""

    target_num_replicas: Replicas


Command = TypeVar("Command", bound=Struct)


def from_json(body: bytes, kind: type[Command], **fixed: str) -> Command:
    """Decode an operation from a request's body; an empty body is an empty object.

    Args:
        fixed: fields given by the route, not by the body.
    Raises: ScaleError, kind `invalid`, naming the field.
    """
    try:
        check_depth(body)
        return _command(msgspec.json.decode(body or b"{}", type=dict[str, Any]), kind, fixed, strict=True)
    except UNREADABLE as error:
        raise _refused(error) from error


def from_query(query: Mapping[str, str], kind: type[Command], **fixed: str) -> Command:
    """Decode an operation from a query string. A field with an empty value counts as missing.

    Args:
        fixed: fields given by the route, not by the query.
    Raises: ScaleError, kind `invalid`, naming the field.
    """
    given = {name: value for name, value in query.items() if value != ""}
    try:
        command = _command(given, kind, fixed, strict=False)
    except msgspec.MsgspecError as error:
        raise _refused(error) from error
    for name in kind.__struct_fields__:  # parsers accept "nan" as a float, and no bound excludes it
        value = getattr(command, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise _refused(f"`{name}` is no number")
    return command


def _command(given: Mapping[str, Any], kind: type[Command], fixed: Mapping[str, str], *, strict: bool) -> Command:
    if "pool" in given and "pool" in fixed:
        raise msgspec.ValidationError("Object contains unknown field `pool`")
    if given.get("by") == BY_PAGE:
        raise msgspec.ValidationError(f"Invalid enum value {BY_PAGE!r} - at `$.by`")
    return msgspec.convert({**given, **fixed}, type=kind, strict=strict)


def _refused(reason: object) -> ScaleError:
    return ScaleError(f"The request is not understood: {reason}.", kind="invalid")
