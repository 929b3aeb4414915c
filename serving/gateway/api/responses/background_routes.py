"""Parts of the responses' routes that background responses need: checks, acceptance, and streams of stored events."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving.errors import UnavailableError
from serving.gateway.api.generation_response import STREAM_HEADERS, until_disconnect
from serving.gateway.api.http.paging import wrong_parameter
from serving.gateway.api.http.request_ids import trace_names
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.responses.background import BackgroundRequest
from serving.gateway.api.responses.background_runs import AcceptedBackground, BackgroundRuns
from serving.gateway.api.responses.form import ResponseFrame
from serving.gateway.api.responses.kept import ResponseShelf
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.settings import ApiSettings
from serving.gateway.api.translate import GenerationOrder

log = logging.getLogger("serving.gateway.api")

_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0")
_DIGITS = 9


def check_background(body: ResponsesRequest, shelf: ResponseShelf, runs: BackgroundRuns) -> None:
    """Refuse a background request whose response would not be stored.

    Raises: InvalidRequestError.
    """
    if body.store is False:
        raise wrong_parameter(
            "background", "needs 'store': a background response is read after its request has been answered"
        )
    if not (shelf.keeps and runs.offered):
        missing = "[gateway] kept_responses, background_responses"
        raise wrong_parameter("background", f"is not offered here: this server stores no responses ({missing})")


def with_seed(body: ResponsesRequest) -> ResponsesRequest:
    """The request with a seed, so that a second run generates the same tokens."""
    return body if body.seed is not None else body.model_copy(update={"seed": secrets.randbits(63)})


def accepted(
    request: Request,
    body: ResponsesRequest,
    conversation: tuple[list[dict[str, object]], str | list[object]],
    order: GenerationOrder,
    frame: ResponseFrame,
    tenant: Tenant,
    settings: ApiSettings,
) -> AcceptedBackground:
    """A translated request, ready to be stored.

    Args:
        conversation: earlier items, and the input without references.
    """
    earlier, given = conversation
    fields = {**body.model_dump(mode="json", exclude_unset=True), "seed": body.seed, "input": given}
    stored = BackgroundRequest(
        fields,
        earlier,
        list(order.prompts[0]),
        order.created,
        time.time() + settings.request_timeout_s,
        tenant.key,
        tenant.weight,
        tenant.may_see_system,
    )
    return AcceptedBackground(
        stored, replace(order, response_id=str(order.job.request_id)), frame, *trace_names(request.scope)
    )


def streams(request: Request) -> bool:
    """The query's `stream`. Raises: InvalidRequestError."""
    given = request.query_params.get("stream", "false")
    if given not in (*_TRUE, *_FALSE):
        raise wrong_parameter("stream", "must be true or false")
    return given in _TRUE


def first_event(request: Request, last: int) -> int:
    """Number of the first event to send: the one after the query's `starting_after`.

    Args:
        last: number of the last event so far.
    Raises: InvalidRequestError.
    """
    given = request.query_params.get("starting_after")
    if given is None:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= _DIGITS and int(given) <= last):
        raise wrong_parameter("starting_after", f"must be a number from 0 to {last}, that of the last event so far")
    return int(given) + 1


class StoredEvents(Response):
    """A stream of stored events, which goes on while the response is generated.

    Args:
        limit_s: longest duration; the client may then continue in another request.
    """

    def __init__(self, events: AsyncIterator[bytes], limit_s: float) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the response ends, or the client leaves."""
        await until_disconnect(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
        try:
            async with asyncio.timeout(self._limit_s):
                async for body in self._events:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except (UnavailableError, TimeoutError) as error:  # clients continue after the last event that they have
            log.warning("a stream of stored events ends early: %s", str(error) or "it has reached its longest time")
        await send({"type": "http.response.body", "body": b""})
