"""Tool calls of the bundled model on a real system: it is too small to call tools on its own.

Between agent and server, each turn's `tool_choice` names a tool, and the tool's schema or grammar is narrowed to a few
arguments, among which the model chooses. Everything else of a request stays as the agent sent it; all turns of a
session have the same tools, so their prompts begin alike. After the last call the agent's own `tool_choice` remains.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.agents.scripts import PATCH

_CALLING = (b"input_json_delta", b"arguments.delta", b"tool_call_input.delta", b'"tool_calls"')
"""Words of events that carry a part of a call."""
_REPLACED_S = 60.0
LONG = "".join(f"line {number} of a longer file\n" for number in range(60))
"""A call with this text takes long enough for a kill in the middle of it."""


@dataclass(frozen=True)
class ForcedCall:
    """One turn.

    Args:
        arguments: choices of each argument; of a custom tool, choices of its input.
    """

    tool: str
    arguments: Mapping[str, Sequence[Any]] | Sequence[str]


@dataclass
class ForcedCalls:
    """The calls of one session, in one of which a decode instance is killed.

    Args:
        url: of the system.
        kill_at: number of the turn.
        turns: requests changed so far.
        killed: what was killed, and when.
    """

    calls: Sequence[ForcedCall]
    url: str
    kill_at: int = 2
    turns: int = field(default=0, init=False)
    killed: str = field(default="", init=False)
    _victim: tuple[int, dict[str, Any]] | None = None

    def change(self, path: str, body: dict[str, Any]) -> None:
        """Choose the call of this turn. Requests without these tools, e.g. for a title, stay as they are."""
        planned = {call.tool: call for call in self.calls}
        found = {name: (tool, space) for name, tool, space in _tools(body) if name in planned}
        if not found:
            return
        for name, (tool, _) in found.items():
            _narrow(tool, planned[name])
        if self.turns < len(self.calls):
            name = self.calls[self.turns].tool
            custom = not isinstance(planned[name].arguments, Mapping)
            body["tool_choice"] = _choice(path, name, found[name][1], custom=custom)
        if self.turns == self.kill_at:
            self._victim = decode_process(self.url), body
        self.turns += 1

    def on_piece(self, body: dict[str, Any], piece: bytes) -> None:
        """Kill the instance when the call has begun."""
        if self._victim is not None and self._victim[1] is body and any(mark in piece for mark in _CALLING):
            pid, self._victim = self._victim[0], None
            os.kill(pid, signal.SIGKILL)
            self.killed = f"kill -9 {pid} in the call of turn {self.kill_at + 1}"


def decode_process(url: str) -> int:
    """Process of a decode instance.

    Raises: TimeoutError if none serves within `_REPLACED_S`.
    """
    end = time.monotonic() + _REPLACED_S
    while time.monotonic() < end:
        pools = httpx.get(f"{url}/cluster", timeout=10).json()["pools"]
        replicas = next(pool["replicas"] for pool in pools if pool["name"] == "decode")
        if serving := [one["pid"] for one in replicas if one["pid"] and one["state"] not in ("dead", "frozen")]:
            return int(serving[0])
        time.sleep(0.2)
    raise TimeoutError("no decode instance serves")


def _tools(
    body: Mapping[str, Any], given: Sequence[Any] | None = None, space: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Name, definition and namespace of each tool of a request, of any route."""
    if given is None:
        items = [one for one in body.get("input") or () if isinstance(one, dict)]
        added = [tool for one in items if one.get("type") == "additional_tools" for tool in one["tools"]]
        given = [*(body.get("tools") or ()), *added]
    for tool in given:
        if tool.get("type") == "namespace":
            yield from _tools(body, tool["tools"], tool["name"])
        else:
            inner = tool["function"] if isinstance(tool.get("function"), dict) else tool
            yield inner.get("name", ""), inner, space


def _narrow(tool: dict[str, Any], call: ForcedCall) -> None:
    """Allow only the planned arguments."""
    if isinstance(call.arguments, Mapping):
        schema = "input_schema" if "input_schema" in tool else "parameters"
        choices = {name: {"enum": list(values)} for name, values in call.arguments.items()}
        tool[schema] = {"type": "object", "properties": choices, "required": [*choices], "additionalProperties": False}
        tool.pop("strict", None)
    else:
        literals = " | ".join(json.dumps(text) for text in call.arguments)
        tool["format"] = {"type": "grammar", "syntax": "lark", "definition": f"start: {literals}"}


def _choice(path: str, name: str, space: str, *, custom: bool) -> dict[str, Any]:
    if path == "/v1/messages":
        return {"type": "tool", "name": name}
    if path == "/v1/responses":
        choice = {"type": "custom" if custom else "function", "name": name}
        return {**choice, "namespace": space} if space else choice
    return {"type": "function", "function": {"name": name}}


def _shell(tool: str, argument: str, **others: Sequence[Any]) -> ForcedCall:
    return ForcedCall(tool, {argument: ["ls -1", "cat README", "wc -c README"], **others})


def forced_calls(name: str, folder: str, url: str) -> ForcedCalls:
    """The session of a trial: a command, a file read or listed, and a long text written.

    Args:
        folder: the project.
    """
    readme, notes, about = f"{folder}/README", f"{folder}/notes.txt", {"description": ["Run it"]}
    patches = [PATCH, f"*** Begin Patch\n*** Add File: log.txt\n{_added(LONG)}*** End Patch\n"]
    scripts = [
        'text((await tools.exec_command({cmd: "ls -1"})).output);\n',
        f"text(await tools.apply_patch({json.dumps(patches[1])}));\n",
    ]
    calls: Mapping[str, Sequence[ForcedCall]] = {
        "codex": [
            _shell("exec_command", "cmd"),
            _shell("exec_command", "cmd"),
            ForcedCall("apply_patch", patches[1:]),
            _shell("exec_command", "cmd"),
        ],
        "codex-code-mode": [ForcedCall("exec", scripts)] * 4,
        "claude": [
            _shell("Bash", "command", **about),
            ForcedCall("Read", {"file_path": [readme]}),
            ForcedCall("Write", {"file_path": [notes], "content": [LONG]}),
            _shell("Bash", "command", **about),
        ],
        "opencode": [
            _shell("bash", "command", **about),
            ForcedCall("read", {"filePath": [readme]}),
            ForcedCall("write", {"filePath": [notes], "content": [LONG]}),
            _shell("bash", "command", **about),
        ],
        "qwen": [
            _shell("run_shell_command", "command", is_background=[False], **about),
            ForcedCall("read_file", {"file_path": [readme]}),
            ForcedCall("write_file", {"file_path": [notes], "content": [LONG]}),
            _shell("run_shell_command", "command", is_background=[False], **about),
        ],
    }
    return ForcedCalls(calls[name], url)


def _added(text: str) -> str:
    return "".join(f"+{line}\n" for line in text.splitlines())
