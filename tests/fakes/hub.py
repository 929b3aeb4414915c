"""A fake Hugging Face Hub on loopback: the part of its interface that downloads use, and its failures.

Each failure has the Hub's own status, headers and timing. The client's side is the real library, without changes.

    python -m tests.fakes.hub FOLDER     prints its address and serves the folder's files as `test/random`, until killed
"""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "test/random"


class FakeHub:
    """One repository, and its failures.

    Attributes:
        revisions: branch or tag -> commit. A commit holds the files of its own folder.
        asked: "METHOD path" of each request.
        refusal: status and headers of every response about the repository, or about its files only.
        token: required bearer token for the files.
        cut: file -> how often its connection is closed half-way.
        moves_to: a commit to which the branch is moved as soon as it has been listed.
        answers_as: a commit that a mirror serves instead of the requested one.
        longer: file -> bytes that are added to it after it has been listed.
        headers: put into every response about a file, in place of the Hub's own of that name.
        redirects: headers of a redirect to the same URL, once per file, before the response; None = no redirect.
        listed_commit: the commit that the listing names, in place of the right one.
        stalls: a file whose transfer stops half-way.
        stalled: whether it has.
    """

    def __init__(self) -> None:
        self.revisions: dict[str, str] = {}
        self.folders: dict[str, Path] = {}
        self.asked: list[str] = []
        self.refusal: tuple[int, dict[str, str]] | None = None
        self.token: str | None = None
        self.cut: dict[str, int] = {}
        self.moves_to: str | None = None
        self.answers_as: str | None = None
        self.longer: dict[str, int] = {}
        self.headers: dict[str, str] = {}
        self.redirects: dict[str, str] | None = None
        self.listed_commit: str | None = None
        self.stalls = ""
        self.stalled, self.ends = threading.Event(), threading.Event()
        self.url = ""

    def add(self, folder: Path, revision: str = "main") -> str:
        """Add a revision with a folder's files. Returns: its commit."""
        commit = hashlib.sha1(f"{folder} {revision}".encode()).hexdigest()
        self.revisions[revision], self.folders[commit] = commit, folder
        return commit

    @property
    def files_asked(self) -> set[str]:
        """Names of all requested files."""
        return {path.split("/resolve/")[1].split("/", 1)[1] for path in self.asked if "/resolve/" in path}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A listening Hub. Effects: a thread, until the end."""
    hub = FakeHub()

    class Handler(_Handler):
        """HTTP handler bound to this Hub."""

        served = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.ends.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppress log output."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.served, unquote(urlsplit(self.path).path).strip("/")
        hub.asked.append(f"{self.command} {path}")
        head, found, rest = path.partition(NAME)
        if not found:
            return self._refuse(404, {"X-Error-Code": "RepoNotFound"})
        if head == "api/models/":
            return self._list(rest.removeprefix("/revision/") or "main")
        _, _, revision, name = rest.split("/", 3)
        self._file(revision, name)

    def _refuse(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers.items(), ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def _commit(self, revision: str) -> str | None:
        commit = self.served.revisions.get(revision, revision)
        return commit if commit in self.served.folders else None

    def _list(self, revision: str) -> None:
        hub, commit = self.served, self._commit(revision)
        if hub.refusal is not None:
            return self._refuse(*hub.refusal)
        if commit is None:
            return self._refuse(404, {"X-Error-Code": "RevisionNotFound"})
        siblings = [_listed(path) for path in sorted(hub.folders[commit].iterdir()) if path.is_file()]
        body = json.dumps({"id": NAME, "sha": hub.listed_commit or commit, "siblings": siblings}).encode()
        if hub.moves_to is not None:
            hub.revisions[revision] = hub.moves_to
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, revision: str, name: str) -> None:
        hub, commit = self.served, self._commit(revision)
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._refuse(401, {"X-Error-Code": "GatedRepo"})
        if commit is None or not (hub.folders[commit] / name).is_file():
            return self._refuse(404, {"X-Error-Code": "EntryNotFound", **hub.headers})
        if hub.redirects is not None and not urlsplit(self.path).query:
            return self._refuse(307, {"Location": f"{urlsplit(self.path).path}?again", **hub.redirects})
        content = (hub.folders[commit] / name).read_bytes()
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        body = (content + b"x" * hub.longer.get(name, 0))[begin:]
        self.send_response(206 if "Range" in self.headers else 200)
        own = {"X-Repo-Commit": hub.answers_as or commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        for header, value in (own | hub.headers).items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        if self.command == "HEAD":
            self.send_header("X-Linked-Size", str(len(content)))
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if hub.stalls == name:
            self.wfile.write(body[: len(body) // 2])
            hub.stalled.set()
            hub.ends.wait()
        if hub.cut.get(name, 0):
            hub.cut[name] -= 1
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.wfile.write(body)


def _listed(path: Path) -> dict[str, Any]:
    return {"rfilename": path.name, "size": path.stat().st_size, "blobId": hashlib.sha1(path.read_bytes()).hexdigest()}


def main() -> None:
    with fake_hub() as hub:
        hub.add(Path(sys.argv[1]))
        print(hub.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
