"""Before a run: is the server there, does it let us in, does it serve the model, and which is that."""

import time
from dataclasses import dataclass

import msgspec

from loadgen import json_text
from loadgen.endpoint import Endpoint
from loadgen.errors import NOT_JSON, ServerError, ServerUnreachable, WrongModel
from loadgen.server.connection import QueryConnection, refuse

MODELS = "/v1/models"
_RETRY_S = 0.5
"""Between polls of a server that is starting; a start takes a minute, so half a second is no delay."""
_NAMES_SHOWN = 8


class ListedModel(msgspec.Struct, frozen=True):
    """One entry of /v1/models, as far as it matters here. `root` and `parent` are vLLM's."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelListing(msgspec.Struct, frozen=True):
    """The response of /v1/models."""

    data: list[ListedModel]


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """Facts about the server, from its responses.

    Attributes:
        model: the name to send: the requested one, or the only one served.
        models: every name served; empty if the server has no list.
        max_model_len: longest prompt plus output [tokens]; None if not reported.
        root: origin of the model, which often names its tokenizer; empty if not reported.
        warnings: checks that were impossible, one line each.
        waited_s: time that the server took to start.
    """

    model: str
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    root: str = ""
    warnings: tuple[str, ...] = ()
    waited_s: float = 0.0


def check(endpoint: Endpoint, *, ready_timeout_s: float = 0.0, timeout_s: float = 10.0) -> ProbedServer:
    """Request the list of models, and select the one to use.

    Args:
        endpoint: an empty `model` takes the only one that is served.
        ready_timeout_s: how long to wait for a server that is starting (refuses connections, responds with 5xx, or has
            no model yet); 0 = it must be up. At least one poll is made.
        timeout_s: limit of one poll.
    Raises: ServerUnreachable, WrongModel (with the names that are served), AuthRefused; ServerError for a server that
    is
        not OpenAI-compatible. One line each.
    """
    started = time.monotonic()
    connection = QueryConnection(endpoint.base_url, endpoint.headers, verify_tls=endpoint.verify_tls)
    try:
        while True:
            left_s = started + ready_timeout_s - time.monotonic()
            try:
                cards = _cards(connection, min(timeout_s, left_s) if left_s > _RETRY_S else timeout_s)
                break
            except ServerUnreachable:
                left_s = started + ready_timeout_s - time.monotonic()
                if left_s <= 0:
                    raise
                time.sleep(min(_RETRY_S, left_s))
    finally:
        connection.close()
    return _settle(endpoint, cards, time.monotonic() - started)


def _cards(connection: QueryConnection, timeout_s: float) -> list[ListedModel] | None:
    """Models that are served; None if the server has no such list.

    Raises: ServerUnreachable if it is not there or has no model yet; AuthRefused, ServerError.
    """
    reply = connection.get(MODELS, timeout_s)
    if reply.status in (404, 405, 501):
        return None
    if not 200 <= reply.status < 300:
        refuse(connection, MODELS, reply)
    try:
        cards = json_text.decode(reply.body, ModelListing).data
    except NOT_JSON:
        raise ServerError(
            f"{connection.base_url}{MODELS} answers, but with no list of models: is it an OpenAI-compatible server?"
        ) from None
    if not cards:
        raise ServerUnreachable(f"{connection.base_url} serves no model yet; --ready-check-timeout-sec waits for one")
    return cards


def _settle(endpoint: Endpoint, cards: list[ListedModel] | None, waited_s: float) -> ProbedServer:
    """The model to use.

    Raises: WrongModel.
    """
    if cards is None:
        if not endpoint.model:
            raise WrongModel(f"{endpoint.base_url} has no {MODELS} to pick a model from: give --model")
        warning = f"the server has no {MODELS}: whether it serves {endpoint.model} was not checked"
        return ProbedServer(endpoint.model, warnings=(warning,), waited_s=waited_s)
    names = tuple(card.id for card in cards)
    by_name = {card.id: card for card in reversed(cards)}
    if endpoint.model and endpoint.model not in by_name:
        raise WrongModel(f"{endpoint.base_url} does not serve {endpoint.model}, but {_listed(names)}")
    if not endpoint.model and not _one_model(cards):
        raise WrongModel(f"{endpoint.base_url} serves {_listed(names)}: choose one with --model")
    card = by_name[endpoint.model or names[0]]
    return ProbedServer(card.id, names, card.max_model_len, card.root or "", waited_s=waited_s)


def _one_model(cards: list[ListedModel]) -> bool:
    """Whether all names mean the same model: one entry, or several names of one root, as vLLM lists aliases."""
    first = cards[0]
    return len({card.id for card in cards}) == 1 or (
        first.root is not None and all(card.root == first.root and card.parent is None for card in cards)
    )


def _listed(names: tuple[str, ...]) -> str:
    """Names, not more than a line can hold."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
