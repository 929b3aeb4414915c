import asyncio
import contextlib
from array import array

import pytest

from loadgen.client.digest import BATCH_BYTES, Digest, Digester, fill_record, read_ahead, read_some
from loadgen.client.exchange import Exchange, Failure, Keep
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


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [(2, RequestOutcome.OK), (3, RequestOutcome.SHORT), (1, RequestOutcome.OK), (None, RequestOutcome.OK)],
)
def test_fewer_tokens_than_asked_for_are_short(expected: int | None, outcome: RequestOutcome) -> None:
    found = digest(exchange(*CHAT), expected)
    assert found.outcome is outcome
    assert bool(found.error) is (outcome is RequestOutcome.SHORT)


def test_what_was_not_told_is_not_made_up() -> None:
    found = digest(exchange(text("a"), text("b", finish="length"), DONE), 5)
    assert found.outcome is RequestOutcome.OK
    assert found.output_tokens is found.input_tokens is found.cached_tokens is found.reasoning_tokens is None
    body = b'{"choices": [{"text": "a b", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    found = digest(exchange(body, content_type=JSON))
    assert (found.outcome, found.text, found.output_tokens) == (RequestOutcome.OK, "a b", 2)
    assert (found.chunk_times, found.chunk_tokens, found.first_answer_s) == (b"", b"", None)
    found = digest(exchange(b"<html></html>", content_type="text/html"))
    assert found.outcome is RequestOutcome.MALFORMED_REPLY
    assert "<html>" in found.error


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

    made = exchange(*CHAT)
    record = RequestRecord(index=0)
    fill_record(record, made, digest(made), Keep())
    assert record.text is None
    assert record.body is None

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


def long_exchange(events: int = 3000, together: int = 1) -> Exchange:
    """A response with many events, in parts of this many."""
    parts = [text(f" {number}") * together for number in range(events // together)]
    return exchange(*parts, text("", finish="stop"), DONE)


@pytest.mark.asyncio
@pytest.mark.parametrize("together", [1, 7, 600])
async def test_the_same_as_at_once(together: int) -> None:
    found = await Digester().digest(long_exchange(together=together))
    assert found == digest(long_exchange(together=together))
    assert found.outcome is RequestOutcome.OK


@pytest.mark.asyncio
async def test_others_run_between_the_slices() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    digester = Digester(slice_s=0.0)  # one batch, then the others
    made = long_exchange(3000)
    batches = sum(map(len, made.parts)) // BATCH_BYTES
    await digester.digest(made)
    counting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await counting
    assert turns >= batches


@pytest.mark.asyncio
async def test_many_at_once_in_the_order_of_their_ends() -> None:
    digester = Digester()
    order: list[int] = []

    async def one(number: int) -> None:
        found = await digester.digest(long_exchange(10 * (5 - number)))
        assert found.outcome is RequestOutcome.OK
        order.append(number)

    await asyncio.gather(*(one(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert len(digester) == 0
    assert digester.backlog_bytes == 0
    assert digester.overruns == 0


@pytest.mark.asyncio
async def test_a_full_backlog_is_worked_off_at_once() -> None:
    digester = Digester(max_backlog_bytes=1000)
    found = await asyncio.gather(*(digester.digest(long_exchange(100)) for _ in range(3)))
    assert [one.outcome for one in found] == [RequestOutcome.OK] * 3
    assert digester.overruns == 3
    assert digester.backlog_bytes == 0


@pytest.mark.asyncio
async def test_one_that_nobody_waits_for_does_not_stop_the_others() -> None:
    digester = Digester()
    waiting = asyncio.create_task(digester.digest(long_exchange()))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await digester.digest(exchange(*CHAT), 2)).outcome is RequestOutcome.OK
    assert digester.backlog_bytes == 0


@pytest.mark.asyncio
async def test_a_bug_reaches_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    digester = Digester()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("loadgen.client.digest.conclude", broken)
    with pytest.raises(ZeroDivisionError):
        await digester.digest(exchange(*CHAT))
    monkeypatch.undo()
    assert (await digester.digest(exchange(*CHAT))).outcome is RequestOutcome.OK
