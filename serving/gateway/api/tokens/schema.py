"""The wire models of requests and answers in tokens."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, RootModel, field_validator

from serving.gateway.api.answers import Answer, ChatLogprobs, Count, Finish, Ids, PromptLogprobs, Usage
from serving.gateway.api.foreign_fields import REFUSED, Foreign
from serving.gateway.api.schema import (
    CacheSalt,
    Priority,
    SamplingFields,
    StreamOptions,
    TokenIds,
    WireModel,
    check_request_id,
)

# Wire model of requests in tokens: vLLM's `GenerateRequest`, as its renderers build it.

_HARMLESS_HERE = {
    "output_kind": Foreign(neutral=(0, 1, 2)),
    "detokenize": Foreign(neutral=(True, False)),
}
"""vLLM's internal output options, which have no effect on a server's clients."""


class TokenSamplingParams(SamplingFields):
    """vLLM's sampling parameters."""

    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=-1)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None = None
    logprob_token_ids: TokenIds | None = None

    FOREIGN: ClassVar[Mapping[str, Foreign]] = {**REFUSED, **_HARMLESS_HERE}


class GenerateTokensRequest(WireModel):
    """POST /inference/v1/generate."""

    model: str | None = None
    request_id: str | None = None
    token_ids: Annotated[TokenIds, Field(min_length=1)]
    sampling_params: TokenSamplingParams
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None

    _request_id_is_usable = field_validator("request_id")(check_request_id)

    FOREIGN: ClassVar[Mapping[str, Foreign]] = {
        **{name: Foreign("sampling_params") for name in TokenSamplingParams.model_fields},
        **REFUSED,
        "features": Foreign(),
    }


# Wire models of responses in tokens, used only for `/openapi.json`, as in `answers`.


class TokensChoice(Answer):
    """Tokens of one choice, or an increment of them."""

    index: Count
    token_ids: Ids
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None


class GeneratedTokens(Answer):
    """POST /inference/v1/generate without `stream`."""

    request_id: str
    choices: list[TokensChoice]
    prompt_logprobs: PromptLogprobs | None
    usage: Usage


class GeneratedTokensChunk(Answer):
    """One event of the stream."""

    request_id: str
    choices: list[TokensChoice]
    usage: Usage | None = None


class RenderedRequest(Answer):
    """A body for /inference/v1/generate."""

    request_id: str
    token_ids: Ids
    sampling_params: dict[str, Any]
    model: str
    features: None
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int


class RenderedPrompts(RootModel[list[RenderedRequest]]):
    """POST /v1/completions/render."""
