"""The wire models of Anthropic's Messages API: requests, and for `/openapi.json` answers."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from serving.gateway.api.answers import MASKED_TOKENS, Answer, Count
from serving.gateway.api.foreign_fields import REFUSED, Foreign
from serving.gateway.api.hints.fields import HintFields, PromptCacheFields
from serving.gateway.api.messages.context_edits import ContextManagement
from serving.gateway.api.schema import CacheSalt, ChatCompletionRequest, Priority, Probability, Seed, Texts, WireModel

# The wire models of Anthropic's Messages requests.
#
# `routes` converts the contents and reports the block that this server does not support.

_NOT_REFUSED = ("user", "reasoning_effort", *PromptCacheFields.model_fields)
_OURS = {
    **{name: Foreign() for name in ChatCompletionRequest.model_fields if name not in _NOT_REFUSED},
    "reasoning_effort": Foreign("output_config.effort"),
    "stop": Foreign("stop_sequences"),
    "max_completion_tokens": Foreign("max_tokens"),
}


class MessageTurn(BaseModel):
    """One turn."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    role: Literal["user", "assistant", "system"]
    content: str | list[Any]


class ThinkingConfig(WireModel):
    """Whether the model thinks before its response."""

    type: Literal["disabled", "adaptive", "enabled"]
    budget_tokens: Annotated[int, Field(ge=0, lt=2**20)] | None = None
    display: str | None = None


class OutputConfig(WireModel):
    """Options of the response."""

    effort: str | None = None
    format: Annotated[Any, WithJsonSchema({"type": ["object", "null"], "default": None})] = None


class CountTokensRequest(WireModel):
    """POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[MessageTurn], Field(min_length=1, fail_fast=True)]
    system: str | list[Any] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    tools: list[Any] | None = None
    tool_choice: Annotated[Any, WithJsonSchema({"type": ["object", "null"], "default": None})] = None

    context_management: ContextManagement | None = None

    FOREIGN: ClassVar[Mapping[str, Foreign]] = {**_OURS, **REFUSED}


class MessagesRequest(HintFields, CountTokensRequest):
    """POST /v1/messages."""

    SOUGHT: ClassVar[bytes] = b"cache_control"

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    stop_sequences: Texts | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    evict_on_complete: bool | None = None
    seed: Seed | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None


# Wire models of Anthropic's Messages responses, used only for `/openapi.json`, as in `answers`.


class MessagesErrorDetail(Answer):
    """Error: its kind, and a message."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    ]
    message: str


class MessagesErrorAnswer(Answer):
    """Every response below /v1/messages that is not a success; within a stream, its last event."""

    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: str | None


class TextBlock(Answer):
    """Text of the response."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Answer):
    """Reasoning before the response. This server does not sign it."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(Answer):
    """One call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class CacheCreation(Answer):
    """Tokens that breakpoints added to the cache, by time to live."""

    ephemeral_5m_input_tokens: Count
    ephemeral_1h_input_tokens: Count


class MessagesUsage(Answer):
    """Tokens of a request. The prompt is the sum of `input_tokens`, `cache_creation_input_tokens` and
    `cache_read_input_tokens`. `cache_creation` is sent if the request has breakpoints.
    """

    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_creation: CacheCreation | None = None
    cache_read_input_tokens: Count
    output_tokens: Count
    masked_tokens: Count = Field(default=0, description=MASKED_TOKENS)


class MessageStop(Answer):
    """Why the model stopped."""

    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"] | None
    stop_sequence: str | None


class AppliedEdit(Answer):
    """Edit of the conversation before the model read it."""

    type: Literal["clear_tool_uses_20250919"]
    cleared_tool_uses: Count
    cleared_input_tokens: Count


class AppliedEdits(Answer):
    """Edits that were triggered."""

    applied_edits: list[AppliedEdit]


class MessageAnswer(MessageStop):
    """POST /v1/messages without `stream`. `context_management` is sent if the request has it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    usage: MessagesUsage
    context_management: AppliedEdits | None = None


class MessageStart(Answer):
    """First event of a stream."""

    type: Literal["message_start"]
    message: MessageAnswer


class BlockStart(Answer):
    """Start of a block."""

    type: Literal["content_block_start"]
    index: Count
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class MessagePing(Answer):
    """Keep-alive."""

    type: Literal["ping"]


class TextDelta(Answer):
    """Increment of text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Answer):
    """Increment of reasoning."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Answer):
    """The signature after reasoning: empty."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(Answer):
    """Increment of a call's arguments, as JSON text."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Answer):
    """Increment of a block."""

    type: Literal["content_block_delta"]
    index: Count
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Answer):
    """End of a block."""

    type: Literal["content_block_stop"]
    index: Count


class MessageDelta(Answer):
    """Stop reason and usage of the message."""

    type: Literal["message_delta"]
    delta: MessageStop
    usage: MessagesUsage
    context_management: AppliedEdits | None = None


class MessageEnd(Answer):
    """Last event of a stream."""

    type: Literal["message_stop"]


class TokensBeforeEdits(Answer):
    """Tokens of the conversation as it was sent."""

    original_input_tokens: Count


class CountedTokens(Answer):
    """POST /v1/messages/count_tokens. `context_management` is sent if the request has it."""

    input_tokens: Count
    context_management: TokensBeforeEdits | None = None


MESSAGE_EVENTS = (
    MessageStart,
    BlockStart,
    MessagePing,
    BlockDelta,
    BlockStop,
    MessageDelta,
    MessageEnd,
    MessagesErrorAnswer,
)
"""Events of a stream."""
