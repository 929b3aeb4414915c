"""Recorded sessions of coding agents, without their vendors' texts.

A file has one request per line, as the difference to the thread's previous one. Prompts, descriptions and tool results
are replaced by marks `~NAME:LENGTH:LINES`; reading a file generates a text of that length and number of lines for each,
always the same for one name. Names, types, fields, schemas and the calls, which a script made, are the recorded ones.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.grammars import GRAMMARS

FOLDER = Path(__file__).parents[1] / "cases" / "agent_sessions"
_MARK = re.compile(r"~([0-9a-f]{8}):(\d+):(\d+)")
_WORD = re.compile(r"[\w.:/@$+=\[\]{}*?!&-]{0,80}")
"""Names, types, ids, addresses: what is not prose."""
_OURS = frozenset(("arguments", "input", "name", "query", "encrypted_content", "data", "image_url", "signature"))
"""Fields with what the script said, or what the recorded folder holds."""
_LISTS = ("input", "messages", "tools", "system")
_HEADERS = re.compile(
    r"originator|session-id|thread-id|x-app|x-codex-(window-id|beta-features)|anthropic-.*|x-claude-code-.*"
    r"|x-openai-internal-.*|x-session-.*"
)
_WORDS = (
    "the a one and or if when then so that with from into read write keep show list count find name file line test "
    "change result step short plain small every other first last before after needs gives takes holds begins ends"
).split()


@dataclass(frozen=True)
class Request:
    """One request of a session.

    Args:
        thread: name of the agent that sent it: main, or of a subagent.
        said: output of the scripted model.
        restarts: why its prompt does not extend the thread's previous one; empty if it does.
    """

    thread: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    said: str
    restarts: str


def read(name: str, scale: float = 1.0) -> list[Request]:
    """A recorded session.

    Args:
        scale: factor of the lengths of generated texts, for models with a short context.
    """
    return list(expanded((FOLDER / f"{name}.jsonl").read_text().splitlines(), scale))


def expanded(lines: Sequence[str], scale: float = 1.0) -> Iterator[Request]:
    """The requests of a file."""
    heads: dict[str, dict[str, str]] = {}
    bodies: dict[str, dict[str, Any]] = {}
    for line in lines:
        one = json.loads(line)
        headers = heads[one["thread"]] = one.get("headers") or heads[one["thread"]]
        before = bodies.get(one["thread"], {})
        body = {key: value for key, value in before.items() if key not in one.get("without", ())} | one["body"]
        for key, kept in one.get("keeps", {}).items():
            body[key] = [*before[key][:kept], *one["body"].get(key, ())]
        bodies[one["thread"]] = body
        yield Request(
            one["thread"], one["path"], headers, _generated(body, scale), one["said"], one.get("restarts", "")
        )


def _generated(value: Any, scale: float) -> Any:
    if isinstance(value, dict):
        return {key: _generated(one, scale) for key, one in value.items()}
    if isinstance(value, list):
        return [_generated(one, scale) for one in value]
    if isinstance(value, str) and value in GRAMMARS:
        return GRAMMARS[value]
    found = _MARK.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else text(found[1], int(int(found[2]) * scale), int(int(found[3]) * scale))


def text(name: str, length: int, lines: int) -> str:
    """Generated text of a length and number of lines."""
    draw = random.Random(name)
    words, size = [], 0
    while size < length:
        words.append(draw.choice(_WORDS))
        size += len(words[-1]) + 1
    whole = list(" ".join(words)[:length])
    gaps = [at for at, letter in enumerate(whole) if letter == " "]
    for at in draw.sample(gaps, min(lines - 1, len(gaps)) if lines > 1 else 0):
        whole[at] = "\n"
    return "".join(whole)


def compacted(requests: Sequence[Request], folder: str) -> Iterator[str]:
    """The lines of a file, for requests as agents sent them.

    Args:
        folder: the agents' working folder, which is renamed.
    """
    heads: dict[str, dict[str, str]] = {}
    bodies: dict[str, dict[str, Any]] = {}
    for one in requests:
        plain = json.loads(json.dumps(one.body).replace(folder, "/project"))
        body: dict[str, Any] = _stripped(plain)
        before = bodies.get(one.thread, {})
        bodies[one.thread] = body
        line: dict[str, Any] = {"thread": one.thread, "path": one.path}
        headers = {key: value for key, value in one.headers.items() if _HEADERS.fullmatch(key)}
        line["headers"] = {} if heads.get(one.thread) == headers else headers
        heads[one.thread] = headers
        line["keeps"] = {
            key: _alike(before[key], body[key]) for key in _LISTS if isinstance(body.get(key), list) and key in before
        }
        line["without"] = sorted(before.keys() - body.keys())
        line["body"] = {
            key: value[line["keeps"][key] :] if key in line["keeps"] else value
            for key, value in body.items()
            if key in line["keeps"] or key not in before or before[key] != value
        }
        line |= {"said": one.said.replace(folder, "/project"), "restarts": _restart(before, body)}
        yield json.dumps({key: value for key, value in line.items() if value not in ({}, [], "")}, ensure_ascii=False)


def _alike(before: Sequence[object], after: Sequence[object]) -> int:
    """Number of equal items at the beginning."""
    pairs = zip(before, after, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


def _restart(before: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    if not before:
        return "first"
    if before.get("tools") and not body.get("tools"):
        return "no tools"
    key = "input" if "input" in body else "messages"
    old, new = (json.dumps(one[key]) for one in (_unmarked(before), _unmarked(body)))
    return "" if new.startswith(old[:-1]) else "other history"


def _unmarked(value: Any) -> Any:
    """Without cache marks, which move to the newest block; a text alone as a block."""
    if isinstance(value, dict):
        own = {key: _unmarked(one) for key, one in value.items() if key != "cache_control"}
        if isinstance(own.get("content"), str):
            own["content"] = [{"type": "text", "text": own["content"]}]
        return own
    return [_unmarked(one) for one in value] if isinstance(value, list) else value


def _stripped(value: Any, field: str = "") -> Any:
    if isinstance(value, dict):
        calls = value.get("type") in ("tool_use", "custom_tool_call")
        ours = {
            key: one
            for key, one in value.items()
            if (isinstance(one, str) and key in _OURS) or (calls and key == "input")
        }
        return {key: ours[key] if key in ours else _stripped(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_stripped(one, field) for one in value]
    if not isinstance(value, str) or value.startswith("x-anthropic-billing-header:"):
        return value
    if field == "x-codex-installation-id":
        return "0"
    if field == "definition":
        return next(name for name, mark in _GRAMMAR_SIGNS.items() if mark in value)
    if _WORD.fullmatch(value):
        return value
    if field == "user_id":
        return json.dumps({"session_id": json.loads(value)["session_id"]})
    return f"~{hashlib.sha256(value.encode()).hexdigest()[:8]}:{len(value)}:{value.count(chr(10)) + 1}"


_GRAMMAR_SIGNS = {"lark:patch": "*** Begin Patch", "lark:script": "@exec"}
"""By the name in `GRAMMARS`, a text that only this grammar has."""
