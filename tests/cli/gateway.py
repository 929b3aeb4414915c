"""A gateway's HTTP surface over a scripted backend, for commands that query a gateway."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from serving.gateway.api.settings import ApiSettings, ServedModel
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, running_server, write_model_folder


@contextmanager
def scripted_gateway(folder: Path, settings: ApiSettings | None = None) -> Iterator[tuple[Harness, str]]:
    """Run such a gateway inside the block. Yields: its address."""
    model = ServedModel.from_folder(write_model_folder(folder), names=("tiny",), max_model_len=MAX_MODEL_LEN, created=7)
    harness = Harness(model, settings)
    with running_server(harness.app) as url:
        yield harness, url


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], tuple[int, object]]) -> Iterator[str]:
    """Serve every GET with a fixed status and JSON. Yields: the server's address."""

    class Handler(BaseHTTPRequestHandler):
        """HTTP handler bound to `answer`."""

        def do_GET(self) -> None:
            status, shown = answer(self)
            body = json.dumps(shown).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Suppress log output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
