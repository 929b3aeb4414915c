"""Parts of a response object that repeat the request."""

from typing import Any

from serving.gateway.api.responses_schema import ResponsesRequest


def repeated_fields(body: ResponsesRequest, *, stored: bool) -> dict[str, Any]:
    """Fields of a response that its request determines, with OpenAI's defaults for those that it omits. Fields that
    OpenAI's schema requires to be texts are omitted if the request has none.

    Args:
        stored: whether the response can be requested later.
    """
    text, reasoning = body.text, body.reasoning
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "store": stored,
        "text": {"format": (None if text is None else text.format) or {"type": "text"}},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        **{name: text for name in ("prompt_cache_key", "user") if (text := getattr(body, name)) is not None},
    }
