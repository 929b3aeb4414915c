"""The wire models of Anthropic's Messages requests.

`messages_translate` converts the contents and reports the block that this server does not support.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from serving.gateway.api.foreign_fields import REFUSED, Foreign
from serving.gateway.api.schema import (
    CacheSalt,
    ChatCompletionRequest,
    Priority,
    Probability,
    Seed,
    Texts,
    WireModel,
)

_OURS = {
    **{name: Foreign() for name in ChatCompletionRequest.model_fields if name not in ("user", "reasoning_effort")},
    "reasoning_effort": Foreign("output_config.effort"),
    "stop": Foreign("stop_sequences"),
    "max_completion_tokens": Foreign("max_tokens"),
}


def _only_clears_thinking(value: object) -> bool:
    """Whether a `context_management` removes only earlier thinking, which templates omit anyway."""
    if not isinstance(value, dict) or set(value) - {"edits"}:
        return False
    edits = value.get("edits") or []
    return isinstance(edits, list) and all(
        isinstance(one, dict) and str(one.get("type", "")).startswith("clear_thinking_") for one in edits
    )


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

    FOREIGN: ClassVar[Mapping[str, Foreign]] = {
        **_OURS,
        **REFUSED,
        "context_management": Foreign(neutral_if=_only_clears_thinking),
    }


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    stop_sequences: Texts | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: dict[str, Any] | None = None
    seed: Seed | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
