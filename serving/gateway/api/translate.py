"""A validated request body to a `GenerationOrder`: the job for the backend and the presentation of its output."""

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.detokenizer import StopSet
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.output_plan import OutputReading, output_plan
from serving.gateway.api.prompts import Rendered, encode_prompt, plain_message, prepare_chat, split_prompts
from serving.gateway.api.sampling import (
    AskedLogprobs,
    Fields,
    asked_logprobs,
    output_limit,
    sampling_params,
    stop_strings,
)
from serving.gateway.api.schema import ChatCompletionRequest, CompletionRequest, GenerationRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.templates.chat_template import Rendering
from serving.gateway.core.kv_hints import OrderHints
from serving.ids import RequestId, SequenceId
from serving.values.jobs import GenerationJob
from serving.values.pool_view import request_salt
from serving.values.sequence import BACKGROUND_PRIORITY, Grammar, SamplingParams, SequenceSpec

_NO_STOPS = StopSet(())
_COMPLETION = Fields("prompt", "max_tokens", "logprobs")
_USUAL_COMPLETION = 16
"""Tokens of a completion without a limit, as in OpenAI's API; fewer if fewer fit."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Conversion of tokens to visible output. The same for all choices of a request.

    Args:
        min_tokens: a stop string counts only if it ends after this many tokens.
        opening: text shown before the output.
        eos_ids: stop tokens that are not reported as `stop_reason`.
        echo: whether the output starts with the client's prompt.
        unsent: tokens that the tokenizer added around the prompt, which the client did not send.
        discard: `max_tokens = 0`: one token is computed and not shown.
        goes_on: whether the output continues the prompt's text instead of starting a new message.
        reading: how reasoning and calls are separated from text; None = all output is text.
    """

    stops: StopSet = _NO_STOPS
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    unsent: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    opening: str = ""
    token_ids: bool = False
    tokens_as_ids: bool = False
    eos_ids: tuple[int, ...] = ()
    discard: bool = False
    goes_on: bool = False
    reading: OutputReading | None = None


@dataclass(frozen=True, slots=True)
class GenerationOrder:
    """One request, ready to run. Choice `i` belongs to prompt `i // n`."""

    response_id: str
    created: int
    model: str
    prompts: tuple[tuple[int, ...], ...]
    n: int
    job: GenerationJob
    options: OutputOptions
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    """The requested limit, for metrics."""
    fingerprint: str = ""
    """The system's fingerprint; empty = not reported."""
    tells_replicas: bool = False
    """Whether to report replicas with the usage: requested, and the client may see the system."""
    context_tokens: int = 0
    """The model's context: prompt and output together."""
    hints: OrderHints | None = None
    """What the request says about its cache."""

    def head(self, kind: str) -> dict[str, Any]:
        """First fields of a response, and of each chunk."""
        head = {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": self.fingerprint} if self.fingerprint else head

    @property
    def namespace(self) -> str:
        """Namespace of the request's tenant."""
        return self.job.sequences[0].namespace


def prepare_chat_order(body: ChatCompletionRequest, model: ServedModel, settings: ApiSettings) -> Rendering:
    """The conversation to render before a chat request can be translated.

    Raises: InvalidRequestError.
    """
    check_choices(1, body.n or 1, settings)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError("'top_logprobs' needs 'logprobs': true", param="top_logprobs", code="invalid_value")
    effort: dict[str, Any] = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return prepare_chat(model, body.messages, body, effort)


def chat_order(
    body: ChatCompletionRequest, model: ServedModel, settings: ApiSettings, tenant: Tenant, text: Rendered
) -> GenerationOrder:
    """Translate a chat request.

    Args:
        text: the template's text for the result of `prepare_chat_order`.
    Raises: InvalidRequestError, ContextLengthError.
    """
    must_fit = body.truncate_prompt_tokens is None
    special = bool(body.add_special_tokens)
    ids = encode_prompt(model, text, add_special_tokens=special, param="messages", must_fit=must_fit)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if asked == 0:
        raise InvalidRequestError(f"'{limit}' must be at least 1", param=limit, code="invalid_value")
    fields = Fields("messages", limit, "top_logprobs")
    order = build_order("chatcmpl-", body, model, settings, tenant, [ids], asked, logprobs, fields, echo=False)
    last = body.messages[-1]
    if not body.echo or last.role != "assistant" or last.content is None:
        return order
    opening = plain_message(last, len(body.messages) - 1)["content"]
    return replace(order, options=replace(order.options, opening=opening))


def completion_order(
    body: CompletionRequest, model: ServedModel, settings: ApiSettings, tenant: Tenant
) -> GenerationOrder:
    """Translate a completion request.

    Raises: InvalidRequestError, ContextLengthError.
    """
    body.refuse_unsupported()
    echo = bool(body.echo)
    by_default = body.max_tokens is None
    asked = _USUAL_COMPLETION if body.max_tokens is None else body.max_tokens
    if asked == 0 and not echo:
        raise InvalidRequestError("'max_tokens' must be at least 1 without 'echo'", param="max_tokens")
    special = body.add_special_tokens is not False
    prompts = split_prompts(body.prompt)
    check_choices(len(prompts), body.n or 1, settings)
    must_fit = body.truncate_prompt_tokens is None
    ids = [encode_prompt(model, p, add_special_tokens=special, param="prompt", must_fit=must_fit) for p in prompts]
    found, fields = body.logprobs, _COMPLETION
    order = build_order(
        "cmpl-", body, model, settings, tenant, ids, asked, found, fields, echo=echo, by_default=by_default
    )
    if not echo or not special or body.skip_special_tokens is False or not isinstance(prompts[0], str):
        return order
    return replace(order, options=replace(order.options, unsent=model.tokenizer.added_ends))


def build_order(
    prefix: str,
    body: GenerationRequest,
    model: ServedModel,
    settings: ApiSettings,
    tenant: Tenant,
    prompts: list[list[int]],
    asked: int | None,
    logprobs: int | None,
    fields: Fields,
    *,
    echo: bool,
    by_default: bool = False,
) -> GenerationOrder:
    """The order for tokenized prompts; the common part of all translations.

    Args:
        prefix: prefix of the response's id.
        by_default: `asked` is a default, so fewer tokens suffice.
    Raises: InvalidRequestError, ContextLengthError.
    """
    n = body.n or 1
    wanted = asked_logprobs(body, logprobs, fields, model, settings)
    prompts = [_truncate(ids, body, model, asked) for ids in prompts]
    job_id = f"{prefix}{uuid.uuid4().hex}"  # unique, unlike a client's own id
    discard = asked == 0
    found = wanted  # computed by the engine; an echoed prompt has its own log-probabilities
    if echo and wanted.likeliest is not None:
        found = replace(wanted, prompt=max(wanted.likeliest, wanted.prompt or 0))
    grammar, reading = output_plan(body, model, prompts[0])
    limits = [output_limit(model, len(ids), asked, fields, by_default=by_default) for ids in prompts]
    sequences = _sequences(job_id, prompts, limits, body, model, settings, tenant, found, grammar, discard=discard)
    check_logprobs(
        sum(len(one.prompt) for one in sequences),
        sum(min(one.sampling.max_tokens, asked or USUAL_OUTPUT) for one in sequences),
        prompt_logprobs=found.prompt,
        logprobs=None if body.stream or discard else wanted.shown,
        field=fields.logprobs,
        settings=settings,
    )
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    running_usage = bool(body.stream_options and body.stream_options.continuous_usage_stats)
    return GenerationOrder(
        response_id=f"{prefix}{body.request_id}" if body.request_id else job_id,
        created=int(time.time()),
        model=body.model or model.names[0],
        prompts=tuple(tuple(ids) for ids in prompts),
        n=n,
        job=GenerationJob(RequestId(job_id), tuple(sequences), tenant.key, tenant.weight),
        options=_output_options(
            body, model.eos_ids, settings, fields.stop, wanted, reading, echo=echo, discard=discard
        ),
        stream=bool(body.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and running_usage,
        max_tokens=asked,
        fingerprint=model.fingerprint,
        tells_replicas=bool(body.return_replicas) and tenant.may_see_system,
        context_tokens=model.max_model_len,
    )


def _sequences(
    job_id: str,
    prompts: list[list[int]],
    limits: list[int],
    body: GenerationRequest,
    model: ServedModel,
    settings: ApiSettings,
    tenant: Tenant,
    wanted: AskedLogprobs,
    grammar: Grammar | None,
    *,
    discard: bool,
) -> list[SequenceSpec]:
    """`n` sequences for each prompt."""
    sequences: list[SequenceSpec] = []
    for ids, limit in zip(prompts, limits, strict=True):
        # Scoring a prompt samples one token that is not used, unless the prompt fills the context.
        drawn = max(limit, min(1, model.max_model_len - len(ids)))
        # Equal prompts in one request are a common way to request several choices, so each has a seed of its own.
        seed = secrets.randbits(63) if body.seed is None else body.seed
        for i in range(body.n or 1):
            sampling = sampling_params(
                body,
                model,
                max_tokens=drawn,
                seed=seed + i,
                logprobs=None if discard else wanted.likeliest,
                logprob_ids=wanted.ids,
                prompt_logprobs=wanted.prompt,
                grammar=grammar,
            )
            sequences.append(_sequence(job_id, len(sequences), ids, sampling, body, settings, tenant))
    return sequences


def _output_options(
    body: GenerationRequest,
    eos_ids: tuple[int, ...],
    settings: ApiSettings,
    stop_field: str,
    wanted: AskedLogprobs,
    reading: OutputReading | None,
    *,
    echo: bool,
    discard: bool,
) -> OutputOptions:
    own_message = isinstance(body, ChatCompletionRequest) and not body.continue_final_message
    return OutputOptions(
        stops=StopSet(stop_strings(body.stop, settings, stop_field)),
        include_stop=bool(body.include_stop_str_in_output),
        min_tokens=body.min_tokens or 0,
        skip_special_tokens=body.skip_special_tokens is not False,
        logprobs=wanted.shown,
        prompt_logprobs=wanted.prompt,
        echo=echo,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        eos_ids=eos_ids,
        discard=discard,
        goes_on=not own_message,
        reading=reading,
    )


def _sequence(
    job_id: str,
    index: int,
    ids: Sequence[int],
    sampling: SamplingParams,
    body: GenerationRequest,
    settings: ApiSettings,
    tenant: Tenant,
) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=SequenceId(f"{job_id}/{index}"),
        prompt=tuple(ids),
        sampling=sampling,
        time_left_s=settings.request_timeout_s,
        priority=BACKGROUND_PRIORITY if tenant.background else body.priority or 0,
        salt=request_salt(tenant.salt, body.cache_salt),
        namespace=tenant.namespace,
        salted=body.cache_salt is not None,
    )


def _truncate(ids: list[int], body: GenerationRequest, model: ServedModel, asked: int | None) -> list[int]:
    """The last tokens of a prompt, or with `truncation_side` right the first; -1 reserves space for the output."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == -1:
        keep = max(1, model.max_model_len - max(1, asked or 1))
    if keep == 0:
        raise InvalidRequestError(
            "'truncate_prompt_tokens' must be -1 or at least 1", param="truncate_prompt_tokens", code="invalid_value"
        )
    return ids[:keep] if body.truncation_side == "right" else ids[-keep:]


# Limits of one request: choices, and log-probabilities, which are all held until a whole response is sent.

USUAL_OUTPUT = 4096
"""Output tokens assumed for a request without `max_tokens`."""


def check_choices(prompts: int, n: int, settings: ApiSettings) -> None:
    """Check the number of choices, before any work on the prompts.

    Raises: InvalidRequestError, which names the excessive value.
    """
    if n > settings.max_n:
        raise InvalidRequestError(
            f"'n' requests {n} choices for a prompt; at most {settings.max_n} are allowed ([gateway] max_n)",
            param="n",
            code="invalid_value",
        )
    if prompts * n <= settings.max_sequences:
        return
    limit = f"at most {settings.max_sequences} are allowed in a request ([gateway] max_request_sequences)"
    if prompts > settings.max_sequences:
        message = f"'prompt' holds {prompts} prompts; {limit}; send them in several requests"
        raise InvalidRequestError(message, param="prompt", code="invalid_value")
    message = f"{prompts} prompts times 'n' = {n} are {prompts * n} answers; {limit}"
    raise InvalidRequestError(message, param="n", code="invalid_value")


def check_logprobs(
    prompt_tokens: int,
    output_tokens: int,
    *,
    prompt_logprobs: int | None,
    logprobs: int | None,
    field: str,
    settings: ApiSettings,
) -> None:
    """Check the number of log-probabilities in the response, of tokens and alternatives.

    Args:
        prompt_tokens, output_tokens: of all choices together.
        logprobs: None if each is sent as soon as it is known.
        field: the request's name for `logprobs`.
    Raises: InvalidRequestError.
    """
    of_prompt = 0 if prompt_logprobs is None else prompt_tokens * (prompt_logprobs + 1)
    of_output = 0 if logprobs is None else output_tokens * (logprobs + 1)
    if of_prompt + of_output <= settings.max_logprob_entries:
        return
    name = "prompt_logprobs" if of_prompt >= of_output else field
    way = "fewer answers, alternatives or prompt tokens" if of_prompt >= of_output else "a smaller limit, or a stream"
    raise InvalidRequestError(
        f"the response could hold {of_prompt + of_output} log-probabilities; at most "
        f"{settings.max_logprob_entries} are allowed ([gateway] max_logprob_entries); request {way}",
        param=name,
        code="invalid_value",
    )
