"""The response object of the Responses API: the request's parameters, and its output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.gateway.api.choice import Visible
from serving.gateway.api.errors import ErrorReply
from serving.gateway.api.forms.form import Answering
from serving.gateway.api.responses_tools import FlatNames
from serving.gateway.api.usage import cache_use

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """Parts of a response that depend only on the request.

    Args:
        fields: of the response object that repeat the request.
        sealed: whether reasoning is repeated as `encrypted_content`.
        whole: called with the finished response object, before it is sent to the client.
        names: names of the request's tools.
    """

    fields: Mapping[str, Any]
    sealed: bool
    whole: Callable[[Json], None]
    names: FlatNames = field(default_factory=FlatNames)


def running_response(answering: Answering, frame: ResponseFrame) -> Json:
    """The object of a response in progress."""
    return _response(answering, frame, "in_progress", [])


def failed_response(answering: Answering, frame: ResponseFrame, output: list[Json], reply: ErrorReply) -> Json:
    """The object of a response that has failed."""
    code = "rate_limit_exceeded" if reply.status == 429 else "server_error"  # OpenAI has no better code
    error = {"code": code, "message": reply.message}
    return {**_response(answering, frame, "failed", output), "error": error}


def ended_response(answering: Answering, frame: ResponseFrame, output: list[Json], end: Visible) -> Json:
    """The object of a finished response, with its usage.

    A response without a limit of its own that reaches the end of the context is reported as failed: agents that set no
    limit then shorten the conversation and continue.
    """
    counted = _usage(answering)
    usage = {"usage": counted}
    if end.finish != "length":
        return {**_response(answering, frame, "completed", output), **usage}
    order = answering.order
    if order.max_tokens is None and counted["total_tokens"] >= order.context_tokens:
        words = f"the output has reached the end of the model's context of {order.context_tokens} tokens"
        error = {"code": "context_length_exceeded", "message": words}
        return {**_response(answering, frame, "failed", output), "error": error, **usage}
    details = {"reason": "max_output_tokens"}
    return {**_response(answering, frame, "incomplete", output), "incomplete_details": details, **usage}


def item_status(end: Visible) -> str:
    """Status of a response's last item."""
    return "incomplete" if end.finish == "length" else "completed"


def _response(answering: Answering, frame: ResponseFrame, status: str, output: list[Json]) -> Json:
    order = answering.order
    sampling = order.job.sequences[0].sampling
    return {
        "id": order.response_id,
        "object": "response",
        "created_at": order.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": order.model,
        "output": output,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **frame.fields,
    }


def _usage(answering: Answering) -> Json:
    """Tokens so far. Tokens written to a cache are not reported."""
    prompt = sum(map(len, answering.order.prompts))
    completion = sum(choice.completion_tokens for choice in answering.choices)
    cached = cache_use(answering.order, answering.choices).cached_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in answering.choices)},
        "total_tokens": prompt + completion,
    }
