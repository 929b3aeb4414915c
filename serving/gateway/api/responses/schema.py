"""The wire models of OpenAI's Responses API: requests, and for `/openapi.json` answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from serving.gateway.api.answers import MASKED_TOKENS, Answer, Count, TokenLogprob
from serving.gateway.api.foreign_fields import REFUSED, Foreign
from serving.gateway.api.hints.fields import PromptCacheFields
from serving.gateway.api.schema import CacheSalt, ChatCompletionRequest, Priority, SamplingFields, Texts, WireModel

# The wire model of requests to OpenAI's Responses API.
#
# `items` converts items of the input, `tools` converts tools; both report what this server does not
# support.

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
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseReasoningConfig(WireModel):
    """Settings of the model's reasoning."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(PromptCacheFields, SamplingFields):
    """POST /v1/responses."""

    model: str | None = None
    input: str | Annotated[list[Any], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
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


# Wire models of the Responses API's responses, used only for `/openapi.json`, as in `answers`.

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer):
    """Text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(Answer):
    """Text of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class MessageItem(Answer):
    """Message of the model."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(Answer):
    """Reasoning of the model. `encrypted_content` repeats it unencrypted, for clients that store nothing else."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: str = ""


class FunctionCallItem(Answer):
    """A function that the model calls."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str = ""
    arguments: str


class CustomToolCallItem(Answer):
    """A custom tool that the model calls with a text."""

    type: Literal["custom_tool_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str = ""
    input: str


class ToolSearchCallItem(Answer):
    """A search for tools, which the client runs."""

    type: Literal["tool_search_call"]
    id: str
    status: ItemStatus
    call_id: str
    execution: Literal["client"]
    arguments: dict[str, Any]


class CompactionItem(Answer):
    """Summary in place of the conversation. `encrypted_content` holds it unencrypted."""

    type: Literal["compaction"]
    id: str
    encrypted_content: str


ResponseItem = MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem | ToolSearchCallItem | CompactionItem


class InputTokensDetails(Answer):
    """Prompt tokens that were not computed; tokens written to a cache are not reported."""

    cached_tokens: Count
    cache_write_tokens: Count


class OutputTokensDetails(Answer):
    """Output tokens that were reasoning."""

    reasoning_tokens: Count


class ResponsesUsage(Answer):
    """Tokens of a response."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count
    masked_tokens: Count = Field(default=0, description=MASKED_TOKENS)


class ResponsesError(Answer):
    """Error that ended a response."""

    code: Literal["server_error", "rate_limit_exceeded", "context_length_exceeded"]
    message: str


class IncompleteDetails(Answer):
    """Reason for an incomplete response."""

    reason: Literal["max_output_tokens"]


class ReasoningSettings(Answer):
    """Reasoning settings of the request."""

    effort: str | None
    summary: str | None


class TextSettings(Answer):
    """Text format of the request."""

    format: dict[str, Any]
    verbosity: Literal["low", "medium", "high"] = "medium"


class ResponseAnswer(Answer):
    """POST /v1/responses without `stream`."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponsesError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseItem]
    temperature: float
    top_p: float
    usage: ResponsesUsage | None = None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str = ""
    reasoning: ReasoningSettings
    store: bool
    text: TextSettings
    tool_choice: Any
    tools: list[Any]
    top_logprobs: Count
    truncation: Literal["auto", "disabled"]
    user: str = ""


class CompactedResponse(Answer):
    """POST /v1/responses/compact. `output` holds the user's messages and one summary."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponsesUsage


class ResponseInputTokens(Answer):
    """POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: Count


class ResponseDeleted(Answer):
    """DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseInputItems(Answer):
    """GET /v1/responses/{response_id}/input_items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
