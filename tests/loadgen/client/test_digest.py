from array import array

import pytest

from loadgen.client.digest import Digest, fill_record, read_ahead, read_some
from loadgen.client.exchange import Failure, Keep
from loadgen.plan import Behaviour, Conduct
from loadgen.record import RequestOutcome, RequestRecord
from tests.loadgen.client.ended import SSE, digest, exchange
from tests.loadgen.client.events import CHAT, DONE, delta, event, text, usage

JSON = "application/json"
MALFORMED = Behaviour(conduct=Conduct.MALFORMED, malformation=0)
REFUSAL = b'{"error": {"message": "full"}}'

OUTCOMES = {
    "ok": (exchange(*CHAT), RequestOutcome.OK, ""),
    "complete as events, broken as HTTP": (exchange(*CHAT, failure=Failure.LOST), RequestOutcome.OK, ""),
    "no end mark": (exchange(*CHAT[:-1]), RequestOutcome.TRUNCATED, "the stream has no end mark ([DONE])"),
    "no finish reason": (exchange(text("a"), DONE), RequestOutcome.TRUNCATED, "the answer has no finish reason"),
    "empty": (exchange(), RequestOutcome.TRUNCATED, "the answer is empty"),
    "broken off": (exchange(*CHAT[:3], failure=Failure.LOST), RequestOutcome.TRUNCATED, "what went wrong"),
    "lost before": (exchange(status=0, failure=Failure.LOST), RequestOutcome.CONNECTION, "what went wrong"),
    "not connected": (exchange(status=0, failure=Failure.CONNECT), RequestOutcome.CONNECTION, "what went wrong"),
    "not HTTP": (exchange(status=0, failure=Failure.NOT_HTTP), RequestOutcome.MALFORMED_REPLY, "what went wrong"),
    "too late": (exchange(*CHAT[:3], failure=Failure.DEADLINE), RequestOutcome.TIMEOUT, "what went wrong"),
    "left": (exchange(*CHAT[:3], failure=Failure.LEFT), RequestOutcome.CANCELLED, "what went wrong"),
    "run ended": (exchange(*CHAT[:3], failure=Failure.CUT), RequestOutcome.UNFINISHED, "what went wrong"),
    "429": (
        exchange(REFUSAL, status=429, content_type=JSON, retry_after="3"),
        RequestOutcome.REJECTED,
        "HTTP 429: full (retry after 3)",
    ),
    "503": (exchange(b"", status=503, content_type=""), RequestOutcome.REJECTED, "HTTP 503"),
    "500": (exchange(b"oops", status=500, content_type="text/plain"), RequestOutcome.HTTP_ERROR, "HTTP 500: oops"),
    "404": (exchange(REFUSAL, status=404, content_type=SSE), RequestOutcome.HTTP_ERROR, "HTTP 404: full"),
    "error in the stream": (
        exchange(text("a"), event({"error": {"message": "engine died"}}), DONE),
        RequestOutcome.STREAM_ERROR,
        "engine died",
    ),
    "malformed asked, refused": (
        exchange(REFUSAL, status=400, content_type=JSON, behaviour=MALFORMED),
        RequestOutcome.REFUSED_AS_MEANT,
        "",
    ),
    "malformed asked, accepted": (
        exchange(*CHAT, behaviour=MALFORMED),
        RequestOutcome.HTTP_ERROR,
        "a malformed request (not JSON) was answered with HTTP 200",
    ),
    "malformed asked, server failed": (
        exchange(REFUSAL, status=500, content_type=JSON, behaviour=MALFORMED),
        RequestOutcome.HTTP_ERROR,
        "HTTP 500: full (for a malformed request: not JSON)",
    ),
    "malformed asked, server busy": (
        exchange(REFUSAL, status=503, content_type=JSON, behaviour=MALFORMED),
        RequestOutcome.REJECTED,
        "HTTP 503: full",
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_each_exchange_has_one_outcome(name: str) -> None:
    made, outcome, error = OUTCOMES[name]
    found = digest(made)
    assert (found.outcome, found.error) == (outcome, error)


def test_html_with_status_200_is_no_answer() -> None:
    found = digest(exchange(b"<html></html>", content_type="text/html"))
    assert found.outcome is RequestOutcome.MALFORMED_REPLY
    assert "<html>" in found.error


def test_a_whole_answer_has_no_moment_of_its_first_token() -> None:
    body = b'{"choices": [{"text": "a b", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    found = digest(exchange(body, content_type=JSON))
    assert (found.outcome, found.text, found.output_tokens) == (RequestOutcome.OK, "a b", 2)
    assert (found.chunk_times, found.chunk_tokens, found.first_answer_s) == (b"", b"", None)


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [(2, RequestOutcome.OK), (3, RequestOutcome.SHORT), (1, RequestOutcome.OK), (None, RequestOutcome.OK)],
)
def test_fewer_tokens_than_asked_for_are_short(expected: int | None, outcome: RequestOutcome) -> None:
    found = digest(exchange(*CHAT), expected)
    assert found.outcome is outcome
    assert bool(found.error) is (outcome is RequestOutcome.SHORT)


def test_without_usage_nothing_is_made_up() -> None:
    found = digest(exchange(text("a"), text("b", finish="length"), DONE), 5)
    assert found.outcome is RequestOutcome.OK
    assert found.output_tokens is found.input_tokens is found.cached_tokens is found.reasoning_tokens is None


def test_the_fields_of_a_record() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 1}}
    made = exchange(delta(reasoning="h"), delta(content="i"), delta(finish="stop"), usage(7, 2, **details), DONE)
    found = digest(made)
    record = RequestRecord(index=4, intended_s=0.25)
    fill_record(record, made, found, Keep(body=True, text=True))
    assert record.outcome is RequestOutcome.OK
    assert record.chunk_times == array("d", [1.0, 2.0]).tobytes()
    assert list(record.chunks()) == [1.0, 2.0]
    assert record.chunk_tokens == b""
    assert (record.started_s, record.first_byte_s, record.first_answer_s, record.ended_s) == (0.5, 0.9, 2.0, 5.0)
    assert (record.input_tokens, record.output_tokens, record.cached_tokens, record.reasoning_tokens) == (7, 2, 3, 1)
    assert (record.status, record.request_id, record.finish_reason, record.content_chars) == (200, "r-1", "stop", 2)
    assert (record.text, record.body, record.conduct) == ("i", b"{}", "normal")
    assert record.intended_s == 0.25


def test_text_and_body_are_left_out_unless_kept() -> None:
    made = exchange(*CHAT)
    record = RequestRecord(index=0)
    fill_record(record, made, digest(made), Keep())
    assert record.text is None
    assert record.body is None


def test_every_field_of_a_digest_is_one_of_a_record() -> None:
    assert set(Digest.__struct_fields__) <= set(RequestRecord.__struct_fields__)


def test_a_stream_may_be_read_while_it_runs() -> None:
    chunks = [text(f" {number}", usage={"completion_tokens": number + 1}) for number in range(200)]
    parts = [*chunks, text("", finish="length"), DONE]
    whole = digest(exchange(*parts))
    made = exchange(*parts)
    read_some(made)
    assert 0 < len(made.parts) < 200
    assert len(made.parts) == len(made.times)
    assert read_ahead(made).content_chunks == 200
    assert made.parts == []
    assert digest(made) == whole
    assert whole.outcome is RequestOutcome.OK
    assert list(array("i", whole.chunk_tokens)) == [1] * 200
