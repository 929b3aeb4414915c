"""The encoder of responses, fed with parts of every kind; OpenAI's own types and stream helper check it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from serving.gateway.api.choice import Visible
from serving.gateway.api.forms.form import Answering
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.http.tenant import KeyRing
from serving.gateway.api.responses.form import ResponseFrame, responses_form
from serving.gateway.api.responses.routes import repeated_fields
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.schema import CompletionRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.tools.reader import CallPart, Part, ReasoningPart
from serving.gateway.api.translate import completion_order
from tests.gateway.api.support import named_events

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT = st.text(min_size=1, max_size=5)


@pytest.fixture(scope="module")
def answering(served: ServedModel) -> Answering:
    tenant = KeyRing(ApiSettings()).identify(None)
    order = completion_order(CompletionRequest(prompt="a dog", max_tokens=50), served, ApiSettings(), tenant)
    return Answering(order, [], served.tokenizer)


def frame(kept: list[Any], *, sealed: bool = False) -> ResponseFrame:
    return ResponseFrame(repeated_fields(ResponsesRequest(input="a dog"), stored=True), sealed, kept.append)


@st.composite
def outputs(draw: st.DrawFn) -> list[list[Part]]:
    """Pieces of a model's output in order: reasoning, text and calls, possibly repeated, cut at any point."""
    parts: list[Part] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["think", "say", "call"]), max_size=5)):
        pieces = draw(st.lists(TEXT, min_size=1, max_size=3))
        if kind == "say":
            parts += pieces
        elif kind == "think":
            parts += [ReasoningPart(piece) for piece in pieces]
        else:
            parts.append(CallPart(calls, id=f"call_{calls}", name="look_up"))
            parts += [CallPart(calls, piece) for piece in pieces]
            calls += 1
    batches: list[list[Part]] = [[]]
    for part in parts:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(part)
    return batches


def streamed(answering: Answering, batches: list[list[Part]], finish: str, kept: list[Any]) -> list[Any]:
    encoder = responses_form(frame(kept)).events(answering)
    body = b"".join(encoder.batch([(0, Visible(list(parts)))]) for parts in batches)
    body += encoder.batch([(0, Visible(finish=finish))]) + encoder.closing({})
    return named_events(body.decode())


@settings(max_examples=60, deadline=None)
@given(outputs(), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_stream_adds_up_to_the_whole(answering: Answering, batches: list[list[Part]], finish: str) -> None:
    kept: list[Any] = []
    shown = streamed(answering, batches, finish, kept)
    assert [one["sequence_number"] for one in shown] == list(range(len(shown)))
    assert [one["type"] for one in shown[:2]] == ["response.created", "response.in_progress"]
    end = "response.incomplete" if finish == "length" else "response.completed"
    assert shown[-1]["type"] == end
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for one in shown:
        state.handle_event(EVENT.validate_python(one))
    whole = responses_form(frame(kept)).whole(answering)
    for parts in batches:
        whole.add(0, Visible(list(parts)))
    whole.add(0, Visible(finish=finish))
    whole.body({})
    assert kept[0] == kept[1] == shown[-1]["response"]
    Response.model_validate(kept[0])
    done = [one["item"] for one in shown if one["type"] == "response.output_item.done"]
    assert done == kept[0]["output"]
    for one in kept[0]["output"]:
        pieces = [e["delta"] for e in shown if e["type"].endswith(".delta") and e["item_id"] == one["id"]]
        text = one["arguments"] if one["type"] == "function_call" else one["content"][0]["text"]
        assert "".join(pieces) == text


def test_a_call_has_its_own_events_and_a_cut_one_is_incomplete(answering: Answering) -> None:
    kept: list[Any] = []
    parts: list[Part] = [ReasoningPart("Hm."), CallPart(0, id="c1", name="f"), CallPart(0, '{"a')]
    shown = streamed(answering, [parts], "length", kept)
    names = [one["type"].removeprefix("response.") for one in shown]
    assert names == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "incomplete",
    ]  # fmt: skip
    call = kept[0]["output"][1]
    assert (call["call_id"], call["name"], call["arguments"], call["status"]) == ("c1", "f", '{"a', "incomplete")
    assert kept[0]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_sealed_reasoning_says_the_same_again(answering: Answering) -> None:
    kept: list[Any] = []
    whole = responses_form(frame(kept, sealed=True)).whole(answering)
    whole.add(0, Visible([ReasoningPart("Hm."), "Yes."], finish="stop"))
    whole.body({})
    assert kept[0]["output"][0]["encrypted_content"] == "cloudmatrix:Hm."


def test_a_failure_ends_the_response(answering: Answering) -> None:
    encoder = responses_form(frame([])).events(answering)
    body = encoder.batch([(0, Visible(["Once"]))]) + encoder.failure(ErrorReply(500, "broken", "server_error"))
    last = named_events(body.decode())[-1]
    EVENT.validate_python(last)
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "broken"}
    assert last["response"]["output"][0]["status"] == "incomplete"
