"""Edits of a conversation by `context_management`: results of old tool calls are cleared once the prompt is long.

Anthropic's `clear_tool_uses_20250919`, with its defaults. The calls stay, so that the model knows what it has done, and
the last few results, which it still needs. The prompt before the first cleared result stays cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from serving.gateway.api.schema import ChatMessage, WireModel

CLEARED = "[the result of this tool call was removed to save context]"
_COUNT = Annotated[int, Field(ge=0, lt=2**31)]


class InputTokens(WireModel):
    """A number of prompt tokens."""

    type: Literal["input_tokens"]
    value: _COUNT


class ToolUses(WireModel):
    """A number of tool calls."""

    type: Literal["tool_uses"]
    value: _COUNT


class ThinkingTurns(WireModel):
    """A number of turns with thinking."""

    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1, lt=2**31)]


class ClearThinking(WireModel):
    """Earlier thinking is removed, which templates omit anyway."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | ThinkingTurns | None = None


class ClearToolUses(WireModel):
    """Results of old tool calls are cleared when the prompt is longer than `trigger`."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, Discriminator("type")] = InputTokens(type="input_tokens", value=100_000)
    keep: ToolUses = ToolUses(type="tool_uses", value=3)
    clear_at_least: InputTokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | None = None


class ContextManagement(WireModel):
    """Edits of the conversation before the model reads it."""

    edits: list[Annotated[ClearThinking | ClearToolUses, Discriminator("type")]] = Field(default=[], max_length=16)

    @property
    def clears_results(self) -> ClearToolUses | None:
        """The edit of tool results, if there is one."""
        return next((edit for edit in self.edits if isinstance(edit, ClearToolUses)), None)


@dataclass(frozen=True, slots=True)
class ClearedMessages:
    """A conversation without old results.

    Args:
        uses: number of calls whose result was cleared.
    """

    messages: list[ChatMessage]
    uses: int


def cleared(messages: Sequence[ChatMessage], edit: ClearToolUses, tokens: int) -> ClearedMessages | None:
    """The conversation after an edit.

    Args:
        tokens: of the prompt before it.
    Returns: None if the edit is not triggered, or finds nothing to clear.
    """
    names = {call["id"]: call["function"]["name"] for one in messages for call in _calls(one)}
    measured = tokens if isinstance(edit.trigger, InputTokens) else len(names)
    if measured <= edit.trigger.value:
        return None
    results = [at for at, one in enumerate(messages) if one.role == "tool"]
    old = results[: max(0, len(results) - edit.keep.value)]
    excluded = frozenset(edit.exclude_tools or ())
    chosen = {_call_id(messages[at]): at for at in old if names.get(_call_id(messages[at])) not in excluded}
    chosen = {call: at for call, at in chosen.items() if messages[at].content != CLEARED}
    if not chosen:
        return None
    edited = list(messages)
    for at in chosen.values():
        edited[at] = messages[at].model_copy(update={"content": CLEARED})
    if edit.clear_tool_inputs:
        edited = [_without_inputs(one, chosen) for one in edited]
    return ClearedMessages(edited, len(chosen))


def _call_id(result: ChatMessage) -> str:
    return str((result.model_extra or {}).get("tool_call_id"))


def _calls(message: ChatMessage) -> list[dict[str, Any]]:
    return (message.model_extra or {}).get("tool_calls") or []


def _without_inputs(message: ChatMessage, chosen: dict[str, int]) -> ChatMessage:
    calls = _calls(message)
    if not any(call["id"] in chosen for call in calls):
        return message
    emptied = [
        {**call, "function": {**call["function"], "arguments": "{}"}} if call["id"] in chosen else call
        for call in calls
    ]
    return message.model_copy(update={"tool_calls": emptied})
