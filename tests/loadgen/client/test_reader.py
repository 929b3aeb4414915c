import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.reader import AnswerReader, SseSplitter
from tests.loadgen.client.events import CHAT, DONE, delta, event, text, usage


def read(*parts: bytes, streamed: bool | None = True, clean: bool = True) -> AnswerReader:
    """Read parts that arrived at 1, 2, 3 ... s."""
    reader = AnswerReader(streamed=streamed)
    for number, part in enumerate(parts, start=1):
        reader.feed([float(number)], [part])
    reader.finish(clean=clean)
    return reader


def test_chat_counts_from_the_first_content_and_not_from_the_opening_role() -> None:
    reader = read(*CHAT)
    assert list(reader.times) == [2.0, 3.0]
    assert reader.first_answer_s == 2.0
    assert "".join(reader.text) == "Once upon"
    assert reader.content_chars == len("Once upon")
    assert reader.finish_reason == "length"
    assert reader.done
    assert reader.ended
    assert reader.usage is not None
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (7, 2)
    assert reader.usage.prompt_tokens_details is not None
    assert reader.usage.prompt_tokens_details.cached_tokens == 3
    assert not reader.tokens_known  # the contents of a chunk were not reported

    reader = read(text(""), text(" a"), text(" b", finish="stop"), usage(1, 2), DONE)
    assert list(reader.times) == [2.0, 3.0]
    assert reader.finish_reason == "stop"
    assert read(delta(reasoning="hm", reasoning_content="hm")).content_chars == 2
    assert not read(delta(content="", tool_calls=[], reasoning=None, function_call=None)).times


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_content_but_no_answer(name: str) -> None:
    reader = read(event({"choices": [{"delta": {name: "hm"}}]}), delta(content="so"), delta(finish="stop"), DONE)
    assert list(reader.times) == [1.0, 2.0]
    assert reader.first_answer_s == 2.0
    assert reader.text == ["so"]
    assert reader.content_chars == 4


@pytest.mark.parametrize(
    "said",
    [
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"function_call": {"name": "f"}},
        {"refusal": "no"},
    ],
)
def test_tool_calls_and_refusals_are_answers(said: dict[str, Any]) -> None:
    reader = read(delta(content=None, **said), delta(finish="tool_calls"), DONE)
    assert list(reader.times) == [1.0]
    assert reader.first_answer_s == 1.0


def test_tokens_of_each_chunk() -> None:
    def running(total: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 1, "completion_tokens": total}}

    reader = read(
        delta(role="assistant", content="", more=running(0)),
        delta(content="a", more=running(2)),
        delta(content="", more=running(3)),  # half a character: its token belongs to the next chunk
        delta(content="b", more=running(4)),
        delta(finish="length", more=running(4)),
        DONE,
    )
    assert reader.tokens_known
    assert list(reader.tokens) == [2, 2]

    chunks = [event({"choices": [{"index": 0, "text": "ab", "token_ids": ids}]}) for ids in ([5, 6], [7])]
    reader = read(*chunks)
    assert reader.tokens_known
    assert list(reader.tokens) == [2, 1]
    reader = read(event({"choices": [{"index": 0, "text": "ab", "token_ids": [1]}]}), text("c"))
    assert not reader.tokens_known
    one = {"completion_tokens": 1}
    assert not read(text("a", index=0, usage=one), text("x", index=1, usage=one)).tokens_known


def test_interleaved_choices_end_when_all_have_ended() -> None:
    chunks = [text("a", index=0), text("x", index=1), text("b", finish="stop", index=0)]
    reader = read(*chunks)
    assert not reader.ended
    reader = read(*chunks, text("y", finish="length", index=1), DONE)
    assert reader.ended
    assert len(reader.times) == 4
    assert reader.text == ["a", "b"]
    assert reader.content_chars == 4


@pytest.mark.parametrize(
    ("error", "shown"),
    [({"message": "out of\nmemory", "code": 500}, "out of memory"), ("Unauthorized", "Unauthorized")],
)
def test_an_error_inside_the_stream(error: object, shown: str) -> None:
    reader = read(text("a"), event({"error": error}), DONE)
    assert reader.stream_error == shown
    assert list(reader.times) == [1.0]


def test_what_is_neither_malformed_nor_done() -> None:
    assert read(event({"object": "error", "message": "bad"})).stream_error == "bad"
    reader = read(text("a"), text("b")[:20], clean=False)
    assert not reader.malformed
    assert not reader.done
    assert read(text("a"), streamed=None).is_stream
    assert read(b": hello\n\n", text("a"), streamed=None).is_stream
    assert not read(b'{"choices":[]}', streamed=None).is_stream


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {nope}\n\n", b'data: {"choices": 3}\n\n', b'data: {"choices": [{"text": "\xff"}]}\n\n',
        b'data: {"a": 1}\n\n', b"data: 7\n\n",
        b'data: {"choices": [], "error": ' + b"[" * 5000 + b"]" * 5000 + b"}\n\n", usage(1, 3_000_000_000),
        usage(10**30, 1), usage(1, -1),
    ],
)  # fmt: skip
def test_what_cannot_be_understood(bad: bytes) -> None:
    reader = read(text("a"), bad, text("b"))
    assert reader.malformed
    assert len(reader.times) == 2


def test_server_times_in_seconds() -> None:
    metrics = {"queue_time_ms": 12.5, "time_to_first_token_ms": 40, "model": "x", "batch_ms": True, "decode_s": 2}
    metrics |= {"nonsense_ms": 10**400}
    reader = read(event({"choices": [], "usage": {"completion_tokens": 1}, "metrics": metrics}))
    assert reader.server_times == {"queue": 0.0125, "ttft": 0.04, "decode": 2.0}


def test_a_whole_answer_is_one_chunk_at_its_last_byte() -> None:
    fields = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
    }
    body = json.dumps(fields).encode()
    reader = read(body[:10], body[10:], streamed=None)
    assert not reader.is_stream
    assert list(reader.times) == [2.0]
    assert list(reader.tokens) == [9]
    assert reader.tokens_known
    assert reader.done
    assert reader.ended
    assert reader.text == ["hello"]
    assert reader.usage is not None
    assert reader.usage.completion_tokens_details is not None
    assert reader.usage.completion_tokens_details.reasoning_tokens == 4


def test_plain_and_other_chunks_may_alternate() -> None:
    """Chunks of text only take a shorter path, which must make no difference."""
    chunks = [
        delta(content="a"), delta(content="b"), delta(reasoning="c"), delta(content="d", refusal="e"),
        delta(content=""), delta(content="f"), delta(tool_calls=[{}]), delta(content="g", index=1),
        delta(content="h", more={"usage": {"completion_tokens": 8}}),
        delta(content="i", more={"metrics": {"queue_time_ms": 5}}), event({"choices": [], "usage": None}),
        delta(content="j", finish="stop"), delta(content="k", finish="stop", index=1), DONE,
    ]  # fmt: skip
    reader = read(*chunks)
    assert list(reader.times) == [1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 13.0]
    assert "".join(reader.text) == "abdfhij"
    assert reader.content_chars == len("abcdfghijk")
    assert reader.usage is not None
    assert reader.usage.completion_tokens == 8
    assert reader.server_times == {"queue": 0.005}
    assert reader.ended
    assert not reader.malformed


@given(cuts=st.lists(st.integers(0, 900), max_size=20))
def test_any_cutting_gives_the_same_reading(cuts: list[int]) -> None:
    stream = b"".join(CHAT[:2]) + b": note\r\n\r\n" + text("ü").replace(b"\n", b"\r\n") + b"".join(CHAT[2:])
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = read(*(stream[a:b] for a, b in pairwise(edges)))
    assert reader.text == ["Once", "ü", " upon"]
    assert reader.done
    assert reader.ended
    assert not reader.malformed
    assert list(reader.times) == sorted(reader.times)


def split(*portions: bytes) -> list[bytes]:
    splitter = SseSplitter()
    found = [data for portion in portions for data in splitter.feed(portion)]
    return found + splitter.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_three_ways(end: bytes) -> None:
    lines = [b"data: one", b"", b"data: two", b"data:three", b""]
    assert split(b"".join(line + end for line in lines)) == [b"one", b"two\nthree"]


def test_what_carries_nothing_is_dropped() -> None:
    stream = b": keep-alive\n\nevent: message\nid: 4\nretry: 10\ndata: x\n\nnonsense\n\n:\n\n"
    assert split(stream) == [b"x"]
    assert split(b"data:  x\n\ndata:y\n\ndata\n\ndata:\n\n") == [b" x", b"y", b"", b""]
    assert split(b"\xef\xbb\xbfdata: x\n\ndata: \xef\xbb\xbfy\n\n") == [b"x", b"\xef\xbb\xbfy"]


def test_an_event_comes_out_with_its_empty_line_or_at_the_end() -> None:
    splitter = SseSplitter()
    found = [(splitter.feed(portion), splitter.idle) for portion in (b"data: x\n", b"\n", b"dat")]
    assert found == [([], False), ([b"x"], True), ([], False)]
    assert SseSplitter().idle
    assert split(b"data: x\n\ndata: [DONE]") == [b"x", b"[DONE]"]
    assert split(b"data: x\n\ndata: [DONE]\n") == [b"x", b"[DONE]"]


_LINES = st.sampled_from([b"data: {}", b"data:a b", b"data", b"", b": note", b"event: e", "data: äß€".encode(), b"x"])


@given(
    lines=st.lists(st.tuples(_LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=12),
)
def test_any_cutting_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    portions = [stream[a:b] for a, b in pairwise(edges)]
    assert split(*portions) == split(stream)
    assert split(*(stream[i : i + 1] for i in range(len(stream)))) == split(stream)
