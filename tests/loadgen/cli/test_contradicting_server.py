"""A server whose stream and usage disagree causes a warning, and the command fails."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.loadgen.cli.conftest import Run

TOKENS = 5


class Doubling(BaseHTTPRequestHandler):
    """Each chunk is sent as often as the path states."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "tiny", "max_model_len": 2048}]}', "application/json")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        times = 1 if "/once/" in self.path else 0 if "/never/" in self.path else 2
        text = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "text": "x"}]}\n\n'
        usage = {"prompt_tokens": 16, "completion_tokens": TOKENS, "total_tokens": 16 + TOKENS}
        choice = {"index": 0, "delta": {}, "text": "", "finish_reason": "length"}
        last = {"choices": [choice], "usage": usage}
        body = text * (TOKENS * times) + b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"
        self._answer(body, "text/event-stream")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Doubling) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("path", "status"), [("once", 0), ("twice", 5), ("never", 5)])
def test_the_exit_status_tells(path: str, status: int, url: str, loadgen_run: Run) -> None:
    flags = ("--concurrency", "1", "--num-prompts", "2", "--model", "tiny", "--out", "run")
    assert loadgen_run(*flags, url=f"{url}/{path}") == status
    own = json.loads(Path("run/result.json").read_text())["loadgen"]
    assert own["contradictions"] == (2 if status else 0)
    assert any("contradict" in warning for warning in own["warnings"]) is bool(status)
    assert loadgen_run(*flags[:-1], "more", "--max-failure-share", "1", url=f"{url}/{path}") == 0
