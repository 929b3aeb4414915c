"""Requests in tokens: from a request to a rendered one, and from that to an order."""

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from serving.gateway.api.errors import from_validation
from serving.gateway.api.field_words import FieldWords
from serving.gateway.api.schema import CompletionRequest, GenerationRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.tenant import Tenant
from serving.gateway.api.tokens_schema import GenerateTokensRequest, TokenSamplingParams
from serving.gateway.api.translate import GenerationOrder, completion_order
from serving.values.sequence import Grammar, GrammarKind, SamplingParams

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
