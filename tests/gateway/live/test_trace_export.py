"""Spans are exported as OTLP, to a receiver that parses them, without delaying requests."""

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from serving.gateway.core.timeline import Answered, ChoiceLine, RequestTimes, TimePart
from serving.gateway.core.trace_spans import trace_id_of
from serving.gateway.live import timelines
from serving.gateway.live.timelines import MOST_QUEUED, LiveTimelines, TraceExporter
from serving.ids import RequestId, SequenceId
from serving.values.jobs import GenerationJob
from serving.values.sequence import SamplingParams, SequenceSpec

LINE = ChoiceLine(0, (TimePart("prefill", 0.0, 2.0, "p#a", "n0"),), 1, 0, 1.5)
TIMES = RequestTimes(
    "chatcmpl-1", "acme", 1e9, 2.0, "error", 64, (LINE,),
    1, 0, "why", "it broke", names=("job-1", "chatcmpl-1"),
)  # fmt: skip
PATIENCE_S = 60.0


class Receiver(ThreadingHTTPServer):
    """A collector that stores the received spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: queue.Queue[ExportTraceServiceRequest] = queue.Queue()
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.got.put(ExportTraceServiceRequest.FromString(body))

    def log_message(self, *_: object) -> None:
        """Suppress log output."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "GATHER_S", 0.0)


def test_a_receiver_gets_the_spans(receiver: Receiver) -> None:
    exporter = TraceExporter(f"{receiver.address}/", 1.0, "storyteller", "gateway-1")
    exporter.add(TIMES)
    (of_resource,) = receiver.got.get(timeout=PATIENCE_S).resource_spans
    exporter.close()
    resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("cloudmatrix", "gateway-1")
    root, part = of_resource.scope_spans[0].spans
    assert (root.name, root.kind, root.status.code, root.status.message) == ("chat storyteller", 2, 2, "it broke")
    assert root.end_time_unix_nano - root.start_time_unix_nano == 2_000_000_000
    assert (part.name, part.kind, part.parent_span_id) == ("prefill", 1, root.span_id)
    values = {one.key: one.value for one in root.attributes}
    assert values["gen_ai.usage.input_tokens"].int_value == 64
    assert values["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "error"
    assert values["gen_ai.server.time_to_first_token"].double_value == 1.5
    assert exporter.sent == 1


def test_what_is_not_sampled_is_not_sent(receiver: Receiver) -> None:
    exporter = TraceExporter(receiver.address, 0.0, "m", "g")
    exporter.add(TIMES)
    exporter.add(replace(TIMES, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    (of_resource,) = receiver.got.get(timeout=PATIENCE_S).resource_spans
    exporter.close()
    assert of_resource.scope_spans[0].spans[0].trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert receiver.got.empty()


@pytest.mark.parametrize("gone", [False, True])
def test_a_receiver_that_fails_costs_spans_only(receiver: Receiver, gone: bool) -> None:
    receiver.status = 503
    exporter = TraceExporter("http://127.0.0.1:9" if gone else receiver.address, 1.0, "m", "g")
    exporter.add(TIMES)
    if not gone:
        receiver.got.get(timeout=PATIENCE_S)
    exporter.close()
    assert (exporter.sent, exporter.lost) == (0, 1)


def test_the_queue_is_bounded() -> None:
    exporter = TraceExporter("http://127.0.0.1:9", 1.0, "m", "g")
    exporter.close()
    for _ in range(2 * MOST_QUEUED):
        exporter.add(TIMES)
    assert len(exporter._queue) == MOST_QUEUED


@pytest.mark.parametrize("sampled", [False, True])
def test_first_tokens_of_traces_that_are_sent_are_told(sampled: bool) -> None:
    kept, told = LiveTimelines(4, lambda _: "n0"), list[tuple[float, str, float]]()
    exporter = TraceExporter("http://127.0.0.1:9", float(sampled), "m", "g")
    kept.send_to(exporter, lambda *what: told.append(what))
    spec = SequenceSpec(SequenceId("r/0"), (1, 2, 3), SamplingParams())
    builder = kept.begin(GenerationJob(RequestId("r"), (spec,)), 0.5)
    assert builder is not None
    builder.choice(0).news(2.5, 1, None, last=True)
    kept.answered(builder, Answered(0.0, 3.0, "stop", ("chatcmpl-2",)))
    exporter.close()
    (times,) = kept.shelf
    assert told == ([(2.5, trace_id_of(times), times.arrived + 2.5)] if sampled else [])
