"""Spans of time lines: the same parts under their span names, in the caller's trace."""

from msgspec.structs import replace

from serving.gateway.core.timeline import ChoiceLine, RequestTimes, TimePart
from serving.gateway.core.trace_spans import is_sampled, spans_of, trace_id_of
from serving.values.expert_map import SessionTimes

PARTS = (
    TimePart("waiting for its turn", 0.0, 0.5),
    TimePart("handoff", 0.5, 0.25, "decode#b", "n1", nbytes=4096, source="n0"),
    TimePart("decode steps", 0.75, 1.25, "decode#b", "n1", tokens=9, frames=9, sessions=SessionTimes(0.1, 0.2, 0.0, 6)),
)
TIMES = RequestTimes(
    "chatcmpl-1", "acme", 1e9, 2.0, "length", 64, (ChoiceLine(0, PARTS, 10, 0, 0.75),), 10, 0, "why",
    names=("job-1", "chatcmpl-1"),
)  # fmt: skip
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_span_for_the_request_and_one_for_each_part() -> None:
    root, *parts = spans_of(TIMES, "storyteller")
    assert (root.parent, root.begun, root.ended, root.name) == (b"", 1e9, 1e9 + 2.0, "chat storyteller")
    assert root.attributes["gen_ai.usage.output_tokens"] == 10
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert [(one.name, one.begun, one.ended - one.begun) for one in parts] == [
        (part.kind, 1e9 + part.start_s, part.seconds) for part in PARTS
    ]
    assert {one.parent for one in parts} == {root.span_id}
    assert {one.trace_id for one in parts} == {root.trace_id}
    assert len({one.span_id for one in (root, *parts)}) == 4
    assert parts[1].attributes == {
        "cloudmatrix.choice": 0, "host.name": "n1", "cloudmatrix.replica": "decode#b", "cloudmatrix.source": "n0",
        "cloudmatrix.bytes": 4096,
    }  # fmt: skip
    assert parts[2].attributes["cloudmatrix.session.experts_s"] == 0.2


def test_the_callers_trace_goes_on() -> None:
    root = spans_of(replace(TIMES, trace=TRACE), "m")[0]
    assert root.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c" == trace_id_of(replace(TIMES, trace=TRACE))
    assert root.parent.hex() == "b7ad6b7169203331"


def test_the_caller_decides_whether_its_trace_is_kept() -> None:
    assert is_sampled(replace(TIMES, trace=TRACE), 0.0)
    assert not is_sampled(replace(TIMES, trace=f"{TRACE[:-2]}00"), 1.0)


def test_so_many_of_all_others_are_kept() -> None:
    every = [replace(TIMES, names=(f"job-{number}",)) for number in range(4000)]
    assert not any(is_sampled(times, 0.0) for times in every)
    assert all(is_sampled(times, 1.0) for times in every)
    assert 800 < sum(is_sampled(times, 0.25) for times in every) < 1200


def test_a_failure_is_told() -> None:
    failed = replace(TIMES, outcome="error", reason="no instance came up")
    assert spans_of(failed, "m")[0].failed == "no instance came up"
    assert spans_of(TIMES, "m")[0].failed == ""
