"""KV hints change no token: the same conversations without hints, with hints, and with wrong ones."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.server import PATIENCE_S, Server, wait_for

pytestmark = pytest.mark.slow

COMPLETIONS, MESSAGES = "/v1/completions", "/v1/messages"
QUESTIONS = (
    "Tell me a story about a cat, a bird and the old tree. " * 3,
    "And then?",
    "How does it end?",
)
GREEDY, SEEDED = {"temperature": 0.0}, {"temperature": 1.0, "seed": 7}
FIELDS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True}},
    MESSAGES: {},
}
RETAINED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt_cache_retention": "24h"},
    MESSAGES: {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
}
WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("kv.touch", {"session_id": "never was"}, "missing"),
    ("kv.release", {"session_id": "never was", "branch": "nor this"}, "missing"),
    ("kv.retain", {"ttl_s": 0.001}, "deferred"),
    ("kv.retain", {"ttl_s": 86_400, "tokens": 40}, "clipped"),
    ("kv.pin", {}, "rejected"),
    ("kv.teleport", {}, "rejected"),
    ("kv.demote", {}, "deferred"),
    ("kv.branch_ended", {}, "deferred"),
)
"""Actions on a request's own session and others, and their outcomes."""


def envelope(*actions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    numbered = [
        {"action_id": f"a{number}", "action_type": kind, "payload": payload}
        for number, (kind, payload) in enumerate(actions)
    ]
    return {"protocol_version": "0.1", "message_id": "m", "actions": numbered}


def hint(server: Server, *kinds: str, session: str) -> list[str]:
    """Outcomes of actions on a session, without a request."""
    asked = envelope(*((kind, {"session_id": session}) for kind in kinds))
    return [one["outcome"] for one in server.post("/v1/kv_hints", asked)["outcomes"]]


class Conversation:
    """Streamed turns on one route. Its `salt` separates its blocks from those of other conversations."""

    def __init__(self, server: Server, path: str, sampling: dict[str, Any], salt: str) -> None:
        self.said: list[list[int] | str] = []
        """Of each turn, its token ids, or its text where the route has no ids."""
        self.outcomes: list[list[str]] = []
        self.pulled = 0
        """Tokens whose blocks came from memory servers."""
        self.request_id = ""
        self._server, self._path = server, path
        self._body = {"max_tokens": 40, "stream": True, "cache_salt": salt, **FIELDS[path], **sampling}
        self._prompt: list[int] = []
        self._messages: list[dict[str, str]] = []

    def go_on(self, question: str, session: str = "", within: Callable[[], None] | None = None, **fields: Any) -> None:
        """Add a turn. `within` is called once, after the first part of the answer."""
        self._prompt += question.encode()
        self._messages.append({"role": "user", "content": question})
        history = {"prompt": self._prompt} if self._path == COMPLETIONS else {"messages": self._messages}
        answer: list[Any] = []
        for event in self._events({**self._body, **history, **fields}, session):
            answer += [token for choice in event.get("choices", ()) for token in choice.get("token_ids", ())]
            answer += [text] if (text := event.get("delta", {}).get("text")) else []
            if answer and within is not None:
                within()
                within = None
            self.pulled += (event.get("usage") or {}).get("prompt_tokens_details", {}).get("pulled_tokens", 0)
            if told := event.get("kv_hints"):
                self.outcomes.append([one["outcome"] for one in told["outcomes"]])
        assert answer
        if self._path == COMPLETIONS:
            self.said.append(answer)
            self._prompt += answer
        else:
            self.said.append("".join(answer))
            self._messages.append({"role": "assistant", "content": "".join(answer)})

    def _events(self, body: dict[str, Any], session: str) -> Iterator[dict[str, Any]]:
        headers = {"Content-Type": "application/json", **({"x-claude-code-session-id": session} if session else {})}
        asked = Request(f"{self._server.url}{self._path}", json.dumps(body).encode(), headers)
        with urlopen(asked, timeout=PATIENCE_S) as reply:
            self.request_id = reply.headers["x-request-id" if self._path == COMPLETIONS else "request-id"]
            yield from (json.loads(line[6:]) for line in reply if line.startswith(b"data: {"))


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("path", [COMPLETIONS, MESSAGES])
def test_tokens_are_the_same_without_hints_with_hints_and_with_wrong_ones(
    server: Server, path: str, sampling: dict[str, Any]
) -> None:
    name = f"{path}{sampling}"
    plain, hinted, wrong = (Conversation(server, path, sampling, f"{name}{arm}") for arm in range(3))
    mine, other = f"mine {name}", f"other {name}"

    def release_what_is_needed() -> None:
        hint(server, "kv.demote", "kv.release", session=other)
        with pytest.raises(HTTPError, match="404"):
            server.post("/v1/messages/cache_touch", {"request_id": plain.request_id})

    kept = envelope(("kv.retain", {"ttl_s": 3000}), ("kv.prefetch", {}))
    bad = envelope(*((kind, payload) for kind, payload, _ in WRONG))
    more = {"evict_on_complete": True} if path == MESSAGES else RETAINED[path]
    for question in QUESTIONS:
        plain.go_on(question)
        hinted.go_on(question, mine, kv_hints=kept, **RETAINED[path])
        wrong.go_on(question, other, release_what_is_needed, kv_hints=bad, return_kv_hints=True, **more)
    assert plain.said == hinted.said == wrong.said
    assert wrong.outcomes == [[outcome for *_, outcome in WRONG]] * len(QUESTIONS)
    if path == COMPLETIONS:
        assert plain.pulled + hinted.pulled + wrong.pulled > 0, "what decode instances generated"

    def listed() -> dict[str, Any]:
        return {one["session"]: one for one in json.loads(server.get("/pool/sessions"))["sessions"]}

    wait_for(lambda: mine in listed(), "its blocks are in the pool", state=listed)
    assert listed()[mine]["dram_bytes"] > 0
    assert 2000 < listed()[mine]["left_s"] <= 3600
    assert hint(server, "kv.touch", session=mine) == ["accepted"]
    assert hint(server, "kv.touch", session="never was") == ["missing"]


def test_the_command_lists_sessions(server: Server) -> None:
    command = [sys.executable, "-m", "serving.cli", "pool", "sessions", "--url", server.url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "sessions with blocks in the KV-cache pool" in shown
    assert "mine /v1/messages" in shown
