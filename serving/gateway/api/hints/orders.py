"""The claim and the actions of a generating request, added to its translated order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec.structs import replace as changed
from starlette.requests import Request

from serving.errors import InvalidRequestError
from serving.gateway.api.hints.breakpoints import MOST_BREAKPOINTS, Beginning, Run
from serving.gateway.api.hints.desk import HintDesk
from serving.gateway.api.hints.fields import TTL_S, HintFields, PromptCacheFields, asked_actions
from serving.gateway.api.hints.session_names import named_session, session_headers
from serving.gateway.api.prompts import render_chat
from serving.gateway.api.schema import ChatMessage
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.templates.chat_template import Rendering
from serving.gateway.api.translate import GenerationOrder
from serving.gateway.core.kv_hints import (
    ClientHints,
    HintPlan,
    OrderHints,
    PlannedAction,
    SessionName,
    plan_actions,
    sequence_claim,
    unnamed_session,
    whole_blocks,
)
from serving.values.kv_hints import ClaimKind, ClaimSpan, HintAction, HintVerb, SequenceClaim
from serving.values.sequence import SequenceSpec


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of the prompt to be kept: its first `tokens` tokens, None = all of it. `ttl`: as the client wrote it."""

    ttl: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Wishes of a request about its cache, besides an envelope.

    Args:
        session: that it names.
        kept: parts of its prompt.
        evicts: whether the claims of its branch end with the response.
    """

    session: SessionName | None = None
    kept: Sequence[Kept] = ()
    evicts: bool = False


def retention(fields: PromptCacheFields) -> str | None:
    """Time to live of the whole prompt by OpenAI's fields; None if the request makes no such claim.

    Raises: InvalidRequestError for a request with both of them.
    """
    options = fields.prompt_cache_options
    if options is None:
        return fields.prompt_cache_retention
    if fields.prompt_cache_retention is not None:
        message = "'prompt_cache_options' replaces 'prompt_cache_retention'; send one of them"
        raise InvalidRequestError(message, param="prompt_cache_retention", code="invalid_value")
    return None if options.mode == "explicit" else options.ttl


async def hinted_order(
    desk: HintDesk, request: Request, fields: HintFields, asked: Asked, order: GenerationOrder
) -> GenerationOrder:
    """An order with its session, and the claim of its request.

    Raises: InvalidRequestError, before any action is sent.
    Effects: sends the actions of its envelope; waits for their outcomes only if the request wants to read them.
    """
    own = asked.session or unnamed_session(request.state.exchange_id)
    limits, envelope, tokens = desk.limits.of(order.namespace), fields.kv_hints, len(order.prompts[0])
    plan = HintPlan()
    if envelope is not None:
        plan = plan_actions(asked_actions(envelope.actions, "kv_hints.actions"), own, limits, tokens)
    spans = [*plan.spans, *(_span(one, limits.block_tokens) for one in asked.kept)]
    if asked.evicts and asked.session is not None:
        release = HintAction(HintVerb.RELEASE, own.session, own.branch)
        plan.at_end.append(PlannedAction("", release))
    own_hints = ClientHints.ACTIONS if plan.types else ClientHints.CLAIM if spans else ClientHints.NONE
    claim: SequenceClaim | None = None
    ends: tuple[tuple[str, int], ...] = ()
    if desk.servers is not None and spans:  # a claim of nothing would supersede those of the session's other requests
        claim = sequence_claim(own, spans, limits)
        ends = _ends(asked.kept, plan, tokens, limits.block_tokens)
    if spans:
        state = request.state
        ids = (state.exchange_id, getattr(state, "request_id", None), order.response_id)
        desk.recent.note(order.namespace, (name for name in ids if name), own)
    answer: Mapping[str, object] = {}
    if envelope is not None and fields.return_kv_hints:
        outcomes = await desk.done(order.namespace, plan)
        answer = {"kv_hints": {"message_id": envelope.message_id, "outcomes": outcomes}}
    elif plan.types:
        desk.start(order.namespace, plan)
    follows = asked.session if desk.pauses is not None and _offers_tools(order) else None
    if follows is not None and desk.pauses is not None:
        inferred = desk.pauses.arrived(order.namespace, follows, own_hints)
        claim = inferred if claim is None else claim
    hints, job = OrderHints(claim, ends, tuple(plan.at_end), answer, follows, own_hints), order.job
    if asked.session is not None:
        job = changed(job, session=asked.session.session)
    if claim is not None:
        sequences = tuple(_claiming(one, index, order.n, claim) for index, one in enumerate(job.sequences))
        job = changed(job, sequences=sequences)
    return replace(order, hints=hints, job=job)


def _offers_tools(order: GenerationOrder) -> bool:
    reading = order.options.reading
    return reading is not None and bool(reading.tools)


def _span(kept: Kept, block_tokens: int) -> ClaimSpan:
    tokens = 0 if kept.tokens is None else whole_blocks(kept.tokens, block_tokens)
    return ClaimSpan(ClaimKind.RETAIN, TTL_S[kept.ttl], tokens)


def _ends(kept: Sequence[Kept], plan: HintPlan, prompt: int, block_tokens: int) -> tuple[tuple[str, int], ...]:
    """See `OrderHints.ends`."""
    ends = [(TTL_S[one.ttl], one.ttl, prompt if one.tokens is None else one.tokens) for one in kept]
    ends += [(one.ttl_s, "5m", one.tokens or prompt) for one in plan.spans]
    return tuple((ttl, whole_blocks(end, block_tokens)) for _, ttl, end in sorted(ends, key=lambda one: -one[0]))


def _claiming(spec: SequenceSpec, index: int, n: int, claim: SequenceClaim) -> SequenceSpec:
    """One sequence with the claim. Of several choices the first has it; each further prompt is a branch of its own."""
    if index % n:
        return spec
    prompt = index // n
    return changed(spec, claim=claim if not prompt else changed(claim, branch=f"{claim.branch}#{prompt}"))


def answer_keys(order: GenerationOrder) -> Mapping[str, Any]:
    """Further keys of the response."""
    return {} if order.hints is None else order.hints.answer


def concerned(request: Request, fields: PromptCacheFields) -> dict[bytes, str] | None:
    """A request's headers that name a session; None if neither they nor its fields are about its cache.

    Such a request skips all further work.
    """
    headers = session_headers(request)
    if headers or not (
        fields.kv_hints is None
        and fields.prompt_cache_key is None
        and fields.prompt_cache_options is None
        and fields.prompt_cache_retention is None
    ):
        return headers
    return {} if _marked_parts(request) else None


def _marked_parts(request: Request) -> bool:
    """Whether a part of a message has a breakpoint. Chat has listed it among the fields that are ignored elsewhere."""
    return any(name.endswith(_MARK) for name in request.state.ignored_fields)


_MARK = ".prompt_cache_breakpoint"
CUT = {"add_generation_prompt": False, "continue_final_message": None}
"""Fields of a chat that ends at a breakpoint."""


async def chat_hints(
    desk: HintDesk,
    model: ServedModel,
    request: Request,
    body: PromptCacheFields,
    messages: Sequence[ChatMessage],
    conversation: Callable[[Sequence[ChatMessage]], Rendering],
    order: GenerationOrder,
    run: Run,
) -> GenerationOrder:
    """The order of a chat or completion request with its claim.

    Args:
        messages: of the chat; a completion has none.
        conversation: makes messages ready for the template.
        run: see `Run`.
    Raises: InvalidRequestError, OverloadedError, TimeoutError.
    """
    if (headers := concerned(request, body)) is None:
        return order
    session, ttl = named_session(headers, body.prompt_cache_key, messages=messages), retention(body)
    places = marked_places(messages) if _marked_parts(request) or body.prompt_cache_options is not None else []
    kept: list[Kept] = [] if ttl is None else [Kept(ttl)]
    if places:
        state = request.state
        state.ignored_fields = [name for name in state.ignored_fields if not name.endswith(_MARK)]
        shorter = [
            Beginning(partial(conversation, until(messages, place)), part_text(messages[place[0]].content, place))
            for place in places[-MOST_BREAKPOINTS + len(kept) :]
        ]
        text = await render_chat(model, await run(lambda: conversation(messages)))
        lengths = await desk.lengths.measure(run, text, order.prompts[0], shorter)
        kept = [*kept, *(Kept("30m", length) for length in lengths if length)]
    return await hinted_order(desk, request, body, Asked(session, kept), order)


def marked_places(entries: Sequence[Any]) -> list[tuple[int, int]]:
    """Places of OpenAI's breakpoints: entry and part, in order.

    Args:
        entries: messages, or items of an input.
    """
    places: list[tuple[int, int]] = []
    for index, entry in enumerate(entries if not isinstance(entries, str) else ()):
        content = entry.get("content") if isinstance(entry, dict) else getattr(entry, "content", None)
        for part, one in enumerate(content if isinstance(content, list) else ()):
            if isinstance(one, dict) and one.get(_MARK[1:]) is not None:
                places.append((index, part))
    return places


def part_text(content: object, place: tuple[int, int]) -> str:
    """Text of a part of a message's content."""
    part = content[place[1]] if isinstance(content, list) else None
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def until(messages: Sequence[ChatMessage], place: tuple[int, int]) -> list[ChatMessage]:
    """The messages up to a part of one."""
    last = messages[place[0]]
    assert isinstance(last.content, list), "it has parts"
    return [*messages[: place[0]], last.model_copy(update={"content": last.content[: place[1] + 1]})]
