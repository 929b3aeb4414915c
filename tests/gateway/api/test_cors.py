"""Pages of allowed origins may call and read every route; for all others, and by default, no CORS header is sent."""

import json
import queue
import subprocess
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import httpx
import pytest

from serving.errors import EngineError, OverloadedError
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, check, request, running_server
from tests.loadgen.report.browser import FLAGS, chromium

PAGE = "https://chat.example.com"
KEY = (hash_api_key("one"),)
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
ASKING = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def server(served: ServedModel, *origins: str) -> Harness:
    return Harness(served, ApiSettings(api_key_hashes=KEY, allowed_origins=origins))


@pytest.mark.parametrize("origins", [(PAGE,), ("*",), ("https://other.example.com", PAGE)])
def test_a_preflight_needs_no_key(served: ServedModel, origins: tuple[str, ...]) -> None:
    app = server(served, *origins).app
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models", "/pool"):
        reply = request(app, "OPTIONS", path, headers=ASKING)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == ("*" if origins == ("*",) else PAGE)
        assert "POST" in reply.headers["access-control-allow-methods"]
        allowed = {name.strip().lower() for name in reply.headers["access-control-allow-headers"].split(",")}
        assert {"authorization", "content-type", "x-stainless-os"} <= allowed
        assert "access-control-allow-credentials" not in reply.headers


def test_streams_and_errors_are_readable(served: ServedModel) -> None:
    harness = server(served, PAGE)
    headers = {"origin": PAGE, "authorization": "Bearer one"}
    with running_server(harness.app) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        replies = [
            client.post("/v1/chat/completions", json=BODY),
            client.post("/v1/chat/completions", json={"messages": []}),
            client.post("/v1/chat/completions", json=BODY, headers={"authorization": ""}),
            client.get("/nothing"),
            client.get("/metrics"),
        ]
        for error in (OverloadedError("full", retry_after_s=1.0), EngineError("broken")):
            script = Script((), fail_after=0, error=error)
            harness.script_of = partial(lambda script, _: script, script)
            replies.append(client.post("/v1/chat/completions", json=BODY))
    assert [reply.status_code for reply in replies] == [200, 400, 401, 404, 200, 429, 500]
    for reply in replies:
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["vary"] == "Origin"
        readable = reply.headers["access-control-expose-headers"]
        assert {"x-request-id", "retry-after"} <= {name.strip() for name in readable.split(",")}
        assert reply.headers["x-request-id"]
    assert replies[0].text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("origins", "origin"), [((), PAGE), ((PAGE,), "https://evil.example.com"), ((PAGE,), "null")])
def test_nobody_else_is_let_in(served: ServedModel, origins: tuple[str, ...], origin: str) -> None:
    app = server(served, *origins).app
    for method, more in (("OPTIONS", {}), ("GET", {"authorization": "Bearer one"})):
        reply = request(app, method, "/v1/models", headers={**ASKING, **more, "origin": origin})
        assert "access-control-allow-origin" not in reply.headers


def test_a_preflight_has_an_id_and_a_refused_one_is_an_error_of_ours(served: ServedModel) -> None:
    app = server(served, PAGE).app
    assert request(app, "OPTIONS", "/v1/models", headers=ASKING).headers["x-request-id"].startswith("req-")
    for origin, method, status in (
        (PAGE, "POST", 200), (PAGE, "TRACE", 400), ("https://evil.example.com", "GET", 400), ("null", "POST", 400),
    ):  # fmt: skip
        asking = {**ASKING, "origin": origin, "access-control-request-method": method, "x-request-id": "mine"}
        reply = request(app, "OPTIONS", "/v1/chat/completions", headers=asking)
        assert reply.headers.get_list("x-request-id") == ["mine"]
        assert reply.status_code == status
        if status == 400:
            check(reply, 400, None, "cors_not_allowed", "allowed_origins")
        assert ("access-control-allow-origin" in reply.headers) is (origin == PAGE)


def test_without_origins_there_is_no_layer(served: ServedModel) -> None:
    assert len(server(served).app.user_middleware) == len(server(served, PAGE).app.user_middleware) - 1


_SCRIPT = """<!DOCTYPE html><script>
(async () => {
  const ask = (key, body) => fetch("URL/v1/chat/completions", {
    method: "POST", headers: {"content-type": "application/json", authorization: `Bearer ${key}`, "x-request-id": "p1"},
    body: JSON.stringify(body) });
  const seen = {};
  try {
    const good = await ask("one", BODY);
    const bad = await ask("two", BODY);
    Object.assign(seen, {text: await good.text(), id: good.headers.get("x-request-id"),
      code: (await bad.json()).error.code});
  } catch (error) { seen.failed = String(error); }
  await fetch("/seen", {method: "POST", body: JSON.stringify(seen)});
})();
</script>"""


class _Pages(ThreadingHTTPServer):
    """Serves one page, and receives the page's report."""

    page = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: queue.Queue[dict[str, str]] = queue.Queue()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = cast(_Pages, self.server).page.encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()
        cast(_Pages, self.server).seen.put(told)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("allowed", [True, False])
def test_a_page_in_a_browser(served: ServedModel, tmp_path: Path, allowed: bool) -> None:
    with _Pages() as pages:
        origin = f"http://127.0.0.1:{pages.server_address[1]}"
        thread = threading.Thread(target=pages.serve_forever, daemon=True)
        thread.start()
        try:
            with running_server(server(served, origin if allowed else PAGE).app) as url:
                pages.page = _SCRIPT.replace("URL", url).replace("BODY", json.dumps(BODY))
                seen = _open(pages, origin, tmp_path)
        finally:
            pages.shutdown()
            thread.join(60)
    if not allowed:
        assert seen == {"failed": "TypeError: Failed to fetch"}
        return
    assert seen["id"] == "p1"
    assert seen["code"] == "invalid_api_key"
    assert seen["text"].endswith("data: [DONE]\n\n")


def _open(pages: _Pages, origin: str, folder: Path) -> dict[str, str]:
    """Run the page in a browser. Returns: its report."""
    flags = [flag for flag in FLAGS if flag not in ("--dump-dom", "--virtual-time-budget=5000")]
    command = [chromium(), *flags, "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", origin]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return pages.seen.get(timeout=50)
    finally:
        browser.terminate()
        browser.wait(60)
