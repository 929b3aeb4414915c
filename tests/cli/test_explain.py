"""`cloudmatrix explain` against a gateway that is only HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from serving.cli.command_line import main
from serving.cli.explain_page import GROUPS, explain_page
from serving.gateway.core import causes
from serving.gateway.core.timeline import ChoiceLine, RequestTimes, TimePart

PARTS = (
    TimePart("waiting for its turn", 0.0, 0.5),
    TimePart("prefill", 0.5, 1.0, "prefill#a", "n0", tokens=64, predicted_s=0.01),
    TimePart("handoff", 1.5, 0.25, "decode#b", "n1", nbytes=1 << 20, source="n0"),
    TimePart("decode steps", 1.75, 0.25, "decode#b", "n1", tokens=9, frames=9),
)
TIMES = RequestTimes(
    "chatcmpl-1 <b>", "default", 1e9, 2.0, "stop", 64, (ChoiceLine(0, PARTS, 10, 0, 1.5),), 10, 0,
    "prefill on n0 took 1.00 s, 50 % of its 2.00 s", names=("job-1", "chatcmpl-1"),
)  # fmt: skip


class Gateway(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/v1/requests/job-1/timeline":
            status, answer = 200, msgspec.to_builtins(TIMES)
        elif self.path.startswith("/v1/requests?which=slowest"):
            status, answer = 200, {"object": "list", "data": [{"names": ["job-1"]}, {"names": ["forgotten"]}]}
        elif self.path.startswith("/v1/requests?"):
            status, answer = 200, {"object": "list", "data": []}
        else:
            status, answer = 404, {"error": {"message": "no time line of a request"}}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_one_by_its_id(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "job-1", "--url", url]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for wanted in (
        "chatcmpl-1 <b>",
        "prefill on n0 took 1.00 s",
        "n0 → n1",
        "1.00 MiB at 4.00 MiB/s",
        "their sum is 2.00 s",
    ):
        assert wanted in said, said


def test_the_slowest_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--slowest", "3", "--json", "--url", url]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["request_id"] == TIMES.request_id
    assert "/v1/requests?which=slowest&limit=3" in Gateway.asked


def test_nothing_failed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--failed", "--url", url]) == 0
    assert "there are none" in capsys.readouterr().out


def test_an_unknown_id_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "what", "--url", url]) == 2
    error = capsys.readouterr().err
    assert "no time line" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["--slowest", "0"], ["--slowest", "x"], [], ["a", "--failed"]])
def test_mistakes_are_told(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", *words])


def test_a_page(url: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "--slowest", "--html", str(page), "--url", url]) == 0
    text = page.read_text()
    assert "chatcmpl-1 &lt;b&gt;" in text
    assert "<b>" not in text.partition("<body")[2].partition("chatcmpl-1")[2][:10]
    assert explain_page([])


def test_every_kind_of_part_has_a_colour_and_a_meaning() -> None:
    assert sorted(kind for _, _, _, kinds in GROUPS for kind in kinds) == sorted(causes.MEANINGS)
