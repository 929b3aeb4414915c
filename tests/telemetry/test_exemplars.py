"""Exemplars from the histogram of first tokens to traces, in OpenMetrics only."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from serving.telemetry.exposition import OPENMETRICS_TYPE, wants_openmetrics
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.shared_metrics import GatewayNumbers
from tests.telemetry.samples import stats

TTFT = "vllm:time_to_first_token_seconds"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


class Sent:
    """Like `Others`: numbers as they are sent."""

    def __init__(self, *others: GatewayMetrics) -> None:
        self._others = others

    async def numbers(self) -> Sequence[GatewayNumbers]:
        sent = (msgspec.msgpack.encode(one.numbers()) for one in self._others)
        return [msgspec.msgpack.decode(one, type=GatewayNumbers) for one in sent]

    async def first(self, name: str) -> bool:
        return True


def served(engine: str, *first_tokens_s: float) -> GatewayMetrics:
    metrics = GatewayMetrics("m", engine=engine, name=engine)
    for first_token_s in first_tokens_s:
        metrics.ttft.observe(first_token_s)
    return metrics


def exemplars(text: bytes) -> dict[tuple[str, str], tuple[str, float, float]]:
    """Exemplars of a page: trace, value and time, by the engine and limit of their bucket."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if (one := sample.exemplar) is not None:
                assert family.name == TTFT
                told = one.labels["trace_id"], one.value, float(one.timestamp)
                found[sample.labels["engine"], sample.labels["le"]] = told
    return found


def test_a_bucket_leads_to_its_newest_trace() -> None:
    metrics = served("0", 0.3, 0.3, 9000.0)
    metrics.traced(0.3, "a" * 32, 1e9)
    metrics.traced(0.4, "b" * 32, 1e9 + 1)
    metrics.traced(9000.0, "c" * 32, 1e9 + 2)
    assert exemplars(metrics.render(openmetrics=True)) == {
        ("0", "0.5"): ("b" * 32, 0.4, 1e9 + 1),
        ("0", "+Inf"): ("c" * 32, 9000.0, 1e9 + 2),
    }


def test_a_plain_page_has_none_and_is_the_same_as_without() -> None:
    metrics = served("0", 0.3)
    metrics.publish_instance(stats(steps_by_tokens=(1,) * 14))
    before = metrics.render(namespaces=True)
    metrics.traced(0.3, "a" * 32, 1e9)
    assert metrics.render(namespaces=True) == before
    assert b"trace_id" not in before


def test_every_gateway_shows_those_of_all() -> None:
    one, other = served("0", 0.3), served("1", 0.7)
    one.others = Sent(other)
    one.traced(0.3, "a" * 32, 1e9)
    other.traced(0.7, "b" * 32, 1e9)
    page = asyncio.run(one.render_all(namespaces=True, openmetrics=True))
    assert exemplars(page) == {("0", "0.5"): ("a" * 32, 0.3, 1e9), ("1", "0.75"): ("b" * 32, 0.7, 1e9)}


def test_every_family_is_right_in_openmetrics_too() -> None:
    metrics = served("0", 0.3)
    metrics.http_request("GET", "/health", 200, 0.1)
    metrics.publish_instance(stats(steps_by_tokens=(1,) * 14, generated_tokens_total=9))
    page = metrics.render(namespaces=True, openmetrics=True).decode()
    assert page.count("# EOF") == 1
    families = [family.name for family in text_string_to_metric_families(page)]
    assert "vllm:prompt_tokens" in families
    assert len(set(families)) == len(families) > 40


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.4", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_the_form_is_the_one_asked_for(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        openmetrics = wants_openmetrics(self.headers["Accept"])
        body = self.server.metrics.render(openmetrics=openmetrics)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS_TYPE if openmetrics else "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress log output."""


@contextlib.contextmanager
def watched(metrics: GatewayMetrics, folder: Path) -> Iterator[str]:
    """A real Prometheus that reads the gateway's page. Yields: its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server, socket.create_server(("127.0.0.1", 0)) as free:
        server.metrics = metrics  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        jobs = [{"job_name": "gateway", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}]
        (folder / "prometheus.yml").write_text(
            json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
        )
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        command = [
            "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}", "--enable-feature=exemplar-storage",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                yield f"http://{address}"
            finally:
                process.terminate()
                server.shutdown()
                thread.join()


@pytest.mark.skipif(shutil.which("prometheus") is None and not os.environ.get("CI"), reason="prometheus is missing")
@pytest.mark.timeout(180)
def test_a_real_prometheus_keeps_them(tmp_path: Path) -> None:
    metrics = served("0", 0.3)
    metrics.traced(0.3, "a" * 32, time.time())
    asked = urllib.parse.urlencode({"query": f"{TTFT}_bucket", "start": time.time() - 3600, "end": time.time() + 3600})
    with watched(metrics, tmp_path) as prometheus:
        found: list[dict[str, Any]] = []
        end = time.monotonic() + 120
        while not found and time.monotonic() < end:
            time.sleep(0.2)
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{prometheus}/api/v1/query_exemplars?{asked}", timeout=30) as reply,
            ):
                found = json.load(reply)["data"]
    (series,) = found
    assert series["seriesLabels"]["le"] == "0.5"
    assert [one["labels"] for one in series["exemplars"]] == [{"trace_id": "a" * 32}]
