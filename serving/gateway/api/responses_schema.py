"""The wire model of requests to OpenAI's Responses API.

`responses_items` converts items of the input, `responses_tools` converts tools; both report what this server does not
support.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from serving.gateway.api.foreign_fields import REFUSED, Foreign
from serving.gateway.api.schema import CacheSalt, ChatCompletionRequest, Priority, SamplingFields, Texts, WireModel

_HINTS = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "prompt, or messages": "input",
    "prompt with token ids": "/v1/completions",
    "a message of role system": "instructions",
    "reasoning_effort": "reasoning.effort",
}
"""Other routes' names of a field, with its name in this one."""
_CHAT_ALONE = {name: Foreign() for name in ChatCompletionRequest.model_fields}
_OTHERS = {name: replace(one, ours=_HINTS.get(one.ours, one.ours)) for name, one in REFUSED.items()}
_LOGPROBS = 'include: ["message.output_text.logprobs"] with top_logprobs'


class ResponseTextConfig(WireModel):
    """Form of the text."""

    format: Annotated[Any, WithJsonSchema({"type": ["object", "null"], "default": None})] = None


class ResponseReasoningConfig(WireModel):
    """Settings of the model's reasoning."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields):
    """POST /v1/responses."""

    model: str | None = None
    input: str | Annotated[list[Any], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    text: ResponseTextConfig | None = None
    reasoning: ResponseReasoningConfig | None = None
    include: Texts | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: list[Any] | None = None
    tool_choice: Annotated[Any, WithJsonSchema({"type": ["string", "object", "null"], "default": None})] = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None

    FOREIGN: ClassVar[Mapping[str, Foreign]] = {
        **_CHAT_ALONE,
        **_OTHERS,
        "messages": Foreign("input"),
        "prompt": Foreign("input"),
        "max_tokens": Foreign("max_output_tokens"),
        "max_completion_tokens": Foreign("max_output_tokens"),
        "response_format": Foreign("text.format"),
        "reasoning_effort": Foreign("reasoning.effort"),
        "logprobs": Foreign(_LOGPROBS, (False,)),
        "n": Foreign(neutral=(1,)),
        "conversation": Foreign("previous_response_id"),
    }
