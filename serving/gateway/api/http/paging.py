"""Pages of lists, by OpenAI's query parameters `limit`, `order` and `after`."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from serving.errors import InvalidRequestError

Json = dict[str, Any]


def page_parameters(usual: int, most: int) -> Json:
    """The parameters, for OpenAPI.

    Args:
        usual, most: number of entries in a page.
    """
    return {
        "parameters": [
            query_parameter("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": usual}),
            query_parameter("order", {"enum": ["asc", "desc"], "default": "desc"}),
            query_parameter("after", {"type": "string"}),
        ]
    }


def query_parameter(name: str, schema: Json) -> Json:
    """An optional query parameter, for OpenAPI."""
    return {"name": name, "in": "query", "required": False, "schema": schema}


def page_of(request: Request, entries: Sequence[Json], usual: int, most: int) -> Json:
    """The list that a client requested.

    Args:
        entries: all, the oldest first.
    Raises: InvalidRequestError, which names the parameter.
    """
    limit, order, after = _limit(request, usual, most), request.query_params.get("order", "desc"), None
    if order not in ("asc", "desc"):
        raise wrong_parameter("order", "must be asc or desc")
    entries = entries[::-1] if order == "desc" else entries
    if (after := request.query_params.get("after")) is not None:
        place = next((i for i, entry in enumerate(entries) if entry["id"] == after), None)
        if place is None:
            raise wrong_parameter("after", "is not an entry of this list")
        entries = entries[place + 1 :]
    page = entries[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(entries) > limit}


def wrong_parameter(name: str, words: str) -> InvalidRequestError:
    """The refusal of a parameter."""
    return InvalidRequestError(f"'{name}' {words}", param=name, code="invalid_value")


def _limit(request: Request, usual: int, most: int) -> int:
    text = request.query_params.get("limit", str(usual))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= most):
        raise wrong_parameter("limit", f"must be a number from 1 to {most}")
    return int(text)
