"""Tokens in, tokens out: the routes, and what a request means."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from serving.gateway.api.choice import LogprobEntry, Visible
from serving.gateway.api.forms.chunk_stream import DONE, KEEPALIVE
from serving.gateway.api.forms.form import MANY_LOGPROBS, Answering, Collected, WireForm, event
from serving.gateway.api.grammar import wants_grammar
from serving.gateway.api.http.errors import ErrorReply, FieldWords, from_validation
from serving.gateway.api.http.tenant import Tenant, tenant_of
from serving.gateway.api.logprob_wire import chat_logprobs, prompt_logprobs
from serving.gateway.api.openapi import BODY_ERRORS, answers, event_stream
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.schema import CompletionRequest, GenerationRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.tokens.schema import (
    GeneratedTokens,
    GeneratedTokensChunk,
    GenerateTokensRequest,
    RenderedPrompts,
    RenderedRequest,
    TokenSamplingParams,
)
from serving.gateway.api.translate import GenerationOrder, completion_order
from serving.gateway.api.usage import usage
from serving.values.sequence import Grammar, GrammarKind, SamplingParams

# Wire form of /inference/v1/generate: tokens of each choice, without any text.

_encode = msgspec.json.Encoder().encode


class TokenEvents:
    """Events of tokens; an `EventEncoder`."""

    comments = True

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty when there are no new tokens."""
        shown = [(index, out) for index, out in outputs if out.tokens or out.finish is not None]
        return b"".join(event(_encode({**self._head(), "choices": [self._choice(index, out)]})) for index, out in shown)

    def silence(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def closing(self, extra: Mapping[str, Any]) -> bytes:
        """Usage, if requested, and the end mark."""
        order = self._answering.order
        if not order.include_usage:
            return DONE
        whole = {**self._head(), "choices": [], "usage": usage(order, self._answering.choices), **extra}
        return event(_encode(whole)) + DONE

    def failure(self, reply: ErrorReply) -> bytes:
        """The error object and the end mark."""
        return event(reply.body()) + DONE

    def _head(self) -> dict[str, Any]:
        return {"request_id": self._answering.order.response_id}

    def _choice(self, index: int, out: Visible) -> dict[str, Any]:
        return token_choice(self._answering, index, out.tokens, out.logprobs, out)


class TokenWhole:
    """All tokens; a `WholeEncoder`."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._collected = [Collected() for _ in answering.choices]

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        self._collected[index].add(out)

    @property
    def short(self) -> bool:
        """Whether encoding the body takes negligible time."""
        many = sum(len(one.logprobs) for one in self._collected) >= MANY_LOGPROBS
        return self._answering.order.options.prompt_logprobs is None and not many

    def body(self, extra: Mapping[str, Any]) -> bytes:
        """The response body."""
        answering = self._answering
        order, choices = answering.order, answering.choices
        shown = [
            token_choice(answering, index, one.tokens, one.logprobs, one.end)
            for index, one in enumerate(self._collected)
        ]
        top = order.options.prompt_logprobs
        facts = None
        if top is not None:
            facts = prompt_logprobs(order.prompts[0], choices[0].prompt_logprobs, top, answering.tokenizer)
        whole = {"request_id": order.response_id, "choices": shown, "prompt_logprobs": facts}
        return _encode({**whole, "usage": usage(order, choices), **extra})


def token_choice(
    answering: Answering, index: int, tokens: Sequence[int], entries: Sequence[LogprobEntry], end: Visible
) -> dict[str, Any]:
    """One choice, or an increment of it."""
    options = answering.order.options
    extra = None
    if options.logprobs is not None:
        extra = chat_logprobs(entries, options.logprobs, answering.tokenizer, as_ids=True)
    return {
        "index": index,
        "token_ids": list(tokens),
        "logprobs": extra,
        "finish_reason": end.finish,
        "stop_reason": end.stop_reason,
    }


TOKENS = WireForm(TokenEvents, TokenWhole)


# Routes with tokens as input and output, for requests from a renderer, and the renderer itself.

_ERRORS = (404, 429, 503, *BODY_ERRORS)
_RENDER_ERRORS = (404, 429, *BODY_ERRORS)
TOKENS_EXCHANGES = tuple(
    ("POST", "/inference/v1/generate", status) for status in sorted({200, 401, 499, 500, *_ERRORS})
)
"""Method, route and status of exchanges whose counters are exported from the start, even at 0."""


def tokens_router(endpoint: RouteServices) -> APIRouter:
    """Routes of generation in tokens, and of rendering."""
    router = APIRouter(tags=["tokens"])
    model, settings = endpoint.model, endpoint.settings

    @router.post(
        "/inference/v1/generate",
        openapi_extra=request_body("GenerateTokensRequest"),
        responses=answers(GeneratedTokens, *_ERRORS, content=event_stream(GeneratedTokensChunk)),
    )
    async def generate(request: Request) -> Response:
        """Continue a prompt of tokens with tokens."""
        arrived, tenant = endpoint.metrics.clock(), endpoint.weights.apply(tenant_of(request))
        body = await endpoint.read(request, GenerateTokensRequest)
        completion = as_completion(body)
        order = await endpoint.translated(
            request,
            lambda: tokens_order(body, completion, model, settings, tenant),
            long=wants_grammar(completion),
        )
        return endpoint.answer(order, TOKENS, arrived)

    @router.post(
        "/v1/chat/completions/render",
        openapi_extra=request_body("ChatCompletionRequest"),
        responses=answers(RenderedRequest, *_RENDER_ERRORS),
    )
    async def render_chat(request: Request) -> Response:
        """Render a chat as the equivalent request for /inference/v1/generate, without generating output."""
        body, order = await endpoint.chat_order(request)
        return json_response(rendered_requests(order, body, model)[0])

    @router.post(
        "/v1/completions/render",
        openapi_extra=request_body("CompletionRequest"),
        responses=answers(RenderedPrompts, *_RENDER_ERRORS),
    )
    async def render_completion(request: Request) -> Response:
        """Render a completion as requests for /inference/v1/generate, one per prompt, without generating output."""
        body, order = await endpoint.completion_order(request)
        return json_response(rendered_requests(order, body, model))

    @router.get("/tokenizer_info", responses=answers(None))
    async def tokenizer_info() -> Response:
        """The tokenizer's own configuration, with the chat template."""
        return json_response(endpoint.model.tokenizer_info)

    return router


# Requests in tokens: from a request to a rendered one, and from that to an order.

_WORDS = FieldWords(
    {"prompt": "token_ids", **{name: f"sampling_params.{name}" for name in TokenSamplingParams.model_fields}}
)
_KINDS = {GrammarKind.REGEX: "regex", GrammarKind.LARK: "grammar", GrammarKind.JSON_SCHEMA: "json"}


def as_completion(body: GenerateTokensRequest) -> CompletionRequest:
    """The equivalent completion request.

    Raises: InvalidRequestError naming the field as the client wrote it.
    """
    fields: dict[str, Any] = {name: getattr(body.sampling_params, name) for name in TokenSamplingParams.model_fields}
    fields |= {name: getattr(body, name) for name in ("model", "stream", "stream_options", "cache_salt", "priority")}
    with _WORDS.spoken():
        try:
            return CompletionRequest.model_validate({**fields, "prompt": body.token_ids})
        except ValidationError as error:
            raise from_validation(error) from error


def tokens_order(
    body: GenerateTokensRequest,
    completion: CompletionRequest,
    model: ServedModel,
    settings: ApiSettings,
    tenant: Tenant,
) -> GenerationOrder:
    """Translate a request.

    Args:
        completion: result of `as_completion`.
    Raises: InvalidRequestError, ContextLengthError.
    """
    with _WORDS.spoken():
        order = completion_order(completion, model, settings, tenant)
    return replace(order, response_id=body.request_id or order.response_id)


def rendered_requests(order: GenerationOrder, body: GenerationRequest, model: ServedModel) -> list[dict[str, Any]]:
    """Bodies for `/inference/v1/generate`, one per prompt, that compute the same as the request."""
    several = len(order.prompts) > 1
    return [
        {
            "request_id": f"{order.response_id}-{place}" if several else order.response_id,
            "token_ids": prompt,
            "sampling_params": _sampling(order, order.job.sequences[place * order.n].sampling, body, model),
            "model": order.model,
            "features": None,
            "stream": order.stream,
            "stream_options": None if body.stream_options is None else body.stream_options.model_dump(),
            "cache_salt": body.cache_salt,
            "priority": body.priority or 0,
        }
        for place, prompt in enumerate(order.prompts)
    ]


def _sampling(
    order: GenerationOrder, sampling: SamplingParams, body: GenerationRequest, model: ServedModel
) -> dict[str, Any]:
    """Sampling parameters of a prompt's first choice; the others' seeds are derived from its seed."""
    options = order.options
    ends = {token for token in model.eos_ids if token < model.token_limit}
    stops = set(sampling.stop_token_ids)
    ignored = not ends <= stops
    return {
        "n": order.n,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "seed": sampling.seed,
        "stop": list(options.stops.stops),
        "stop_token_ids": sorted(stops if ignored else stops - ends),
        "include_stop_str_in_output": options.include_stop,
        "ignore_eos": ignored,
        "skip_special_tokens": options.skip_special_tokens,
        "logprobs": 0 if sampling.logprob_ids else options.logprobs,
        "logprob_token_ids": list(sampling.logprob_ids) or None,
        "prompt_logprobs": options.prompt_logprobs,
        "allowed_token_ids": list(sampling.allowed_token_ids) or None,
        "bad_words": body.bad_words or [],
        "structured_outputs": None if sampling.grammar is None else _structured(sampling.grammar),
    }


def _structured(grammar: Grammar) -> dict[str, Any]:
    """A grammar as `structured_outputs`."""
    shown: dict[str, Any] = {_KINDS[grammar.kind]: grammar.text}
    if grammar.free_whitespace:
        shown["disable_any_whitespace"] = False
    if grammar.whitespace_pattern:
        shown["whitespace_pattern"] = grammar.whitespace_pattern
    return shown
