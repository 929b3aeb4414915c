"""The routes of stored responses: read one, list its input items, delete it."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidRequestError
from serving.gateway.api.openapi import answers
from serving.gateway.api.responses_answers import ResponseAnswer, ResponseDeleted, ResponseInputItems
from serving.gateway.api.responses_kept import PATH_PARAM, ResponseShelf
from serving.gateway.api.routes import json_response
from serving.gateway.api.tenant import tenant_of

_FEWEST, _USUAL, _MOST = 1, 20, 100


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


_LISTING = {
    "parameters": [
        _query("limit", {"type": "integer", "minimum": _FEWEST, "maximum": _MOST, "default": _USUAL}),
        _query("order", {"enum": ["asc", "desc"], "default": "desc"}),
        _query("after", {"type": "string"}),
    ]
}


def kept_responses_router(shelf: ResponseShelf) -> APIRouter:
    """Routes of stored responses, each accessible to its own namespace only."""
    router = APIRouter(prefix="/v1/responses", tags=["generation"])

    @router.get("/{response_id}", responses=answers(ResponseAnswer, 404))
    async def read(request: Request, response_id: str) -> Response:
        """A stored response."""
        if request.query_params.get("stream") in ("true", "True", "1"):
            raise _wrong("stream", "is not supported: a stored response is only returned as a whole")
        kept = await shelf.find(tenant_of(request).namespace, response_id, PATH_PARAM)
        return json_response(kept.response)

    @router.delete("/{response_id}", responses=answers(ResponseDeleted, 404))
    async def delete(request: Request, response_id: str) -> Response:
        """Delete a stored response."""
        await shelf.delete(tenant_of(request).namespace, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post("/{response_id}/cancel", responses=answers(None, 400, 404))
    async def cancel(request: Request, response_id: str) -> Response:
        """Always refused: stored responses are complete, and a running one ends when its client disconnects."""
        kept = await shelf.find(tenant_of(request).namespace, response_id, PATH_PARAM)
        status = kept.response["status"]
        raise _wrong(PATH_PARAM, f"names a response that is {status}; only a background response can be cancelled")

    @router.get("/{response_id}/input_items", openapi_extra=_LISTING, responses=answers(ResponseInputItems, 400, 404))
    async def input_items(request: Request, response_id: str) -> Response:
        """Input items of a response, including those of the conversation before it."""
        limit, newest_first = _limit(request), _newest_first(request)
        items = (await shelf.find(tenant_of(request).namespace, response_id, PATH_PARAM)).items
        items = items[::-1] if newest_first else items
        if (after := request.query_params.get("after")) is not None:
            place = next((i for i, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise _wrong("after", "is not an item of this response")
            items = items[place + 1 :]
        page = items[:limit]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        return json_response({"object": "list", "data": page, **ends, "has_more": len(items) > limit})

    return router


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(_USUAL))
    if not (text.isascii() and text.isdigit() and len(text) < 5 and _FEWEST <= int(text) <= _MOST):
        raise _wrong("limit", f"must be a number from {_FEWEST} to {_MOST}")
    return int(text)


def _newest_first(request: Request) -> bool:
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _wrong("order", "must be asc or desc")
    return order == "desc"


def _wrong(param: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{param}' {words}", param=param, code="invalid_value")
