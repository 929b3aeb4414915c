"""Stored responses: the object itself, and the items it was made from, so that the conversation can be continued."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from serving.errors import InvalidRequestError, RequestError, UnavailableError
from serving.gateway.core.kept_responses import KeepLimits, KeptResponses

# Stores of responses between requests: a port with two implementations, this process's memory and a Redis.


class ResponseStore(Protocol):
    """Responses by namespace and id, within limits."""

    limits: KeepLimits
    place: str
    """Description for clients that request a response which is not stored."""

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Store a response.

        Returns: whether it was stored.
        Raises: UnavailableError if the store does not respond.
        """
        ...

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A stored response; None if it is not, or no longer, stored.

        Raises: UnavailableError if the store does not respond.
        """
        ...

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Delete a response.

        Returns: whether it was stored.
        Raises: UnavailableError if the store does not respond.
        """
        ...


class MemoryResponseStore:
    """A `ResponseStore` of one gateway; other gateways cannot read it, and a restart empties it."""

    place = "in the memory of the gateway that created them"

    def __init__(self, limits: KeepLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._kept = KeptResponses(limits)
        self._clock = clock

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Store a response. Returns: whether it was stored."""
        return self._kept.put(namespace, response_id, value, self._clock())

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A stored response; None if it is not, or no longer, stored."""
        return self._kept.get(namespace, response_id, self._clock())

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Delete a response. Returns: whether it was stored."""
        return self._kept.delete(namespace, response_id, self._clock())


# Stored responses: the object itself, and the items it was made from, so that the conversation can be continued.

log = logging.getLogger("serving.gateway.api")

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"(?:msg|rs|fc|ctc|tsc|cmp)_([0-9a-f]{32})_([0-9]{1,6})")

Json = dict[str, Any]


class ResponseNotFoundError(RequestError):
    """A response is not stored: it never was, was deleted, expired, or belongs to another tenant."""

    status = 404
    code = "response_not_found"


class MissingReferenceError(ResponseNotFoundError):
    """A field of a request's body refers to a response or item that is not stored: the request is invalid."""

    kind = "invalid_request_error"


class MissingPreviousError(MissingReferenceError):
    """The response to continue is not stored. Clients that know this code send their whole conversation instead."""

    code = "previous_response_not_found"


PATH_PARAM = "response_id"
"""Name in errors of a response id in the path."""
_MISSING: dict[str, type[ResponseNotFoundError]] = {
    PATH_PARAM: ResponseNotFoundError,
    "previous_response_id": MissingPreviousError,
}
"""By the field with the missing reference."""


class KeptResponse(msgspec.Struct, frozen=True):
    """One response.

    Args:
        items: items of the conversation before it, its own input included.
        root: id of the conversation's first response; empty = this one.
    """

    response: Json
    items: list[Json]
    root: str = ""

    @property
    def first(self) -> str:
        """Id of the conversation's first response."""
        return self.root or str(self.response["id"])

    @property
    def conversation(self) -> list[Json]:
        """All items, output included."""
        return [*self.items, *self.response["output"]]


_decoder = msgspec.json.Decoder(KeptResponse)


class ResponseShelf:
    """Responses of all tenants, each within its own namespace."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    @property
    def keeps(self) -> bool:
        """Whether responses are stored."""
        return self._store.limits.responses > 0

    async def find(self, namespace: str, response_id: str, param: str) -> KeptResponse:
        """A stored response.

        Args:
            param: the request's field with the id.
        Raises: ResponseNotFoundError, UnavailableError.
        """
        found = await self._store.get(namespace, response_id) if RESPONSE_ID.fullmatch(response_id) else None
        if found is None:
            raise self.missing(f"response '{response_id[:80]}'", param)
        return _decoder.decode(found)

    async def resolve(self, namespace: str, items: str | Sequence[object]) -> str | list[object]:
        """An input whose references to items of stored responses are replaced by those items.

        Raises: ResponseNotFoundError, UnavailableError; InvalidRequestError if these items are larger together than the
            store, as short references may repeat long items.
        """
        if isinstance(items, str):
            return items
        references = _References(self, namespace, self._store.limits.size_bytes)
        resolved: list[object] = []
        for index, item in enumerate(items):
            if isinstance(item, dict) and item.get("type") == "item_reference":
                item = await references.item(item, f"input[{index}]")
            resolved.append(item)
        return resolved

    async def delete(self, namespace: str, response_id: str) -> None:
        """Delete a response.

        Raises: ResponseNotFoundError, UnavailableError.
        """
        if not (RESPONSE_ID.fullmatch(response_id) and await self._store.delete(namespace, response_id)):
            raise self.missing(f"response '{response_id[:80]}'", PATH_PARAM)

    async def keep(self, namespace: str, kept: KeptResponse) -> None:
        """Store a response. A failure is only logged: the client already has its response."""
        response_id, value = kept.response["id"], msgspec.json.encode(kept)
        try:
            if not await self._store.put(namespace, response_id, value):
                log.warning("a response of %d bytes is not stored: it is larger than the whole store", len(value))
        except UnavailableError as error:
            log.warning("response %s is not stored: %s", response_id, error)

    def missing(self, what: str, param: str) -> ResponseNotFoundError:
        """The error for what is not stored."""
        limits = self._store.limits
        life = (
            f"for {limits.seconds:g} s, {limits.responses} at most, {self._store.place}" if self.keeps else "not at all"
        )
        missing = _MISSING.get(param, MissingReferenceError)
        return missing(
            f"'{param}': there is no {what} here; it never was, was deleted or is forgotten: responses are kept {life}",
            param=param,
        )


class _References:
    """Items of stored responses to which one input refers; each response is read once.

    Args:
        room: bytes that all of them may have together.
    """

    def __init__(self, shelf: ResponseShelf, namespace: str, room: int) -> None:
        self._shelf = shelf
        self._namespace = namespace
        self._room = room
        self._responses: dict[str, KeptResponse] = {}
        self._sizes: dict[str, int] = {}
        """Bytes of items, by id."""

    async def item(self, reference: Mapping[str, Any], path: str) -> Json:
        """The item that a reference names. Raises: ResponseNotFoundError, UnavailableError, InvalidRequestError."""
        name = reference.get("id")
        parts = _ITEM_ID.fullmatch(name) if isinstance(name, str) else None
        output = () if parts is None else await self._output(f"resp_{parts[1]}", path)
        if parts is None or int(parts[2]) >= len(output):
            raise self._shelf.missing(f"item '{str(name)[:80]}'", path)
        item: Json = output[int(parts[2])]
        if parts[0] not in self._sizes:
            self._sizes[parts[0]] = len(msgspec.json.encode(item))
        self._room -= self._sizes[parts[0]]
        if self._room < 0:
            message = f"'{path}': the items that the input refers to are too large together"
            raise InvalidRequestError(message, param=path, code="invalid_value")
        return item

    async def _output(self, response_id: str, path: str) -> Sequence[Json]:
        if response_id not in self._responses:
            self._responses[response_id] = await self._shelf.find(self._namespace, response_id, path)
        output: list[Json] = self._responses[response_id].response["output"]
        return output


@dataclass(slots=True)
class ResponseKeeper:
    """Stores one response after it has finished, before its client receives the end.

    Args:
        items: items of the conversation before it, its own input included.
        root: see `KeptResponse`.
    """

    shelf: ResponseShelf
    namespace: str
    items: list[Json]
    root: str = ""
    response: Json | None = None

    def take(self, response: Json) -> None:
        """Remember the response object."""
        self.response = response

    async def keep(self) -> None:
        """Store the remembered response."""
        if self.response is not None:
            await self.shelf.keep(self.namespace, KeptResponse(self.response, self.items, self.root))
