"""Wire models of the events of a streamed response, used only for `/openapi.json`."""

from typing import Literal

from serving.gateway.api.answers import Answer, Count, TokenLogprob
from serving.gateway.api.responses.schema import OutputText, ReasoningText, ResponseAnswer, ResponseItem


class _Numbered(Answer):
    """An event, with its number in the stream."""

    sequence_number: Count


class ResponseStateEvent(_Numbered):
    """The response starts, or is finished."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseAnswer


class ResponseItemEvent(_Numbered):
    """An item starts, or is complete."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: Count
    item: ResponseItem


class _OfItem(_Numbered):
    """An event of an item."""

    item_id: str
    output_index: Count


class ResponsePartEvent(_OfItem):
    """A content part starts, or is complete."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: Count
    part: OutputText | ReasoningText


class ResponseTextDelta(_OfItem):
    """Increment of a text."""

    type: Literal["response.output_text.delta"]
    content_index: Count
    logprobs: list[TokenLogprob]
    delta: str


class ResponseTextDone(_OfItem):
    """A complete text."""

    type: Literal["response.output_text.done"]
    content_index: Count
    text: str
    logprobs: list[TokenLogprob]


class ResponseReasoningDelta(_OfItem):
    """Increment of reasoning."""

    type: Literal["response.reasoning_text.delta"]
    content_index: Count
    delta: str


class ResponseReasoningDone(_OfItem):
    """The complete reasoning."""

    type: Literal["response.reasoning_text.done"]
    content_index: Count
    text: str


class ResponseArgumentsDelta(_OfItem):
    """Increment of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ResponseArgumentsDone(_OfItem):
    """A call's complete arguments."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ResponseInputDelta(_OfItem):
    """Increment of a custom tool's input."""

    type: Literal["response.custom_tool_call_input.delta"]
    delta: str


class ResponseInputDone(_OfItem):
    """A custom tool's complete input."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


RESPONSE_EVENTS = (
    ResponseStateEvent,
    ResponseItemEvent,
    ResponsePartEvent,
    ResponseTextDelta,
    ResponseTextDone,
    ResponseReasoningDelta,
    ResponseReasoningDone,
    ResponseArgumentsDelta,
    ResponseArgumentsDone,
    ResponseInputDelta,
    ResponseInputDone,
)
"""Events of a stream."""
