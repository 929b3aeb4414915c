"""Wire model of requests in tokens: vLLM's `GenerateRequest`, as its renderers build it."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

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
