"""A small real HTTP server whose routes a test sets."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from loadgen.endpoint import Endpoint


@dataclass(frozen=True)
class Answer:
    """Response of a route. `cut`: the connection breaks in the middle of the body."""

    status: int = 200
    body: object = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0
    cut: bool = False
    close: bool = False


Route = Callable[[dict], Answer]


@dataclass
class SmallServer:
    """`routes`: path -> response, or function of the request's JSON body. Unknown paths give 404."""

    url: str
    routes: dict[str, Answer | Route] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str], dict]] = field(default_factory=list)
    connections: int = 0

    def endpoint(self, model: str = "tiny", **changes: Any) -> Endpoint:
        return Endpoint(**{"base_url": self.url, "path": "/v1/completions", "model": model, **changes})

    def models(self, *names: str, **card: object) -> None:
        self.routes["/v1/models"] = Answer(body={"object": "list", "data": [{"id": name, **card} for name in names]})


class Listening(ThreadingHTTPServer):
    """The socket and the threads of a `SmallServer`."""

    def __init__(self, small: SmallServer, port: int) -> None:
        self.small = small
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.small = cast(Listening, self.server).small
        self.small.connections += 1

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["content-length"])) or "{}"))

    def answer(self, fields: dict) -> None:
        self.small.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, fields))
        route = self.small.routes.get(self.path, Answer(404, {"detail": "Not Found"}))
        answer = route if isinstance(route, Answer) else route(fields)
        time.sleep(answer.delay_s)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) + (100 if answer.cut else 0)))
        self.end_headers()
        try:
            for piece in [body] if not answer.drip_s else [body[i : i + 1] for i in range(len(body))]:
                self.wfile.write(piece)
                time.sleep(answer.drip_s)
        except OSError:  # the client has left, as it should
            self.close_connection = True
        if answer.cut or answer.close:  # close without announcing it
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[SmallServer]:
    small = SmallServer("")
    listening = Listening(small, 0)
    small.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield small
    listening.shutdown()
    listening.server_close()
    thread.join()
