"""Items of a response's output during generation: a message, reasoning, or a call of a function or a custom tool."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from hardware.nesting import parse_json
from serving.gateway.api.choice import Visible
from serving.gateway.api.forms.form import Answering
from serving.gateway.api.logprob_wire import chat_logprobs
from serving.gateway.api.responses.compaction import SEALED
from serving.gateway.api.responses.tools import SEARCH, FlatNames, OwnName
from serving.gateway.api.tools.reader import CallPart, Part, ReasoningPart

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call", "tool_search_call", "compaction"]
_PREFIX: dict[Kind, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "tool_search_call": "tsc",
    "compaction": "cmp",
}
_DRAWN = re.compile(r"(call_|)([0-9a-f]{24}|[a-zA-Z0-9]{9})")
"""Ids of calls that are drawn for the model families."""
CALLED_WITH: dict[Kind, str] = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of a call's item that grows."""


@dataclass(slots=True)
class OutputItem:
    """One item.

    Args:
        place: its index in the output.
        call: index of the call within the choice; calls only.
        call_id: id of the call; calls only.
        tool: namespace (empty if none) and name of the tool; calls only.
        pieces: of its text, or of its arguments.
        logprobs: of its text's tokens, JSON-ready.
    """

    kind: Kind
    place: int
    id: str
    call: int = 0
    call_id: str = ""
    tool: OwnName = ("", "")
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The item's text so far."""
        return "".join(self.pieces)

    def part(self) -> dict[str, Any]:
        """The only content part of a message, or of reasoning."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}


class OutputItems:
    """All items of one response.

    Args:
        stem: stem of the items' ids.
        sealed: whether reasoning is repeated as `encrypted_content`.
        names: names of the request's tools.
        compacts: whether the only item is a summary, made of all text.
        repeats: whether a second run must make the same ids of calls.
    """

    def __init__(
        self, stem: str, *, sealed: bool, names: FlatNames, compacts: bool = False, repeats: bool = False
    ) -> None:
        self.items: list[OutputItem] = []
        self._stem = stem
        self._sealed = sealed
        self._names = names
        self._compacts = compacts
        self._repeats = repeats

    def wanted(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts that become items: of a summary, its text."""
        return [part for part in parts if type(part) is str] if self._compacts else parts

    def finish(self) -> None:
        """End the output. A summary is an item even if it is empty."""
        if self._compacts and not self.items:
            self._open("compaction")

    def take(self, part: Part) -> tuple[OutputItem, str]:
        """Add a part to its item, which is the last one or a new one.

        Returns: the item and its increment, which may be empty.
        """
        if type(part) is str:
            item, piece = self._last("compaction" if self._compacts else "message"), part
        elif isinstance(part, ReasoningPart):
            item, piece = self._last("reasoning"), part.text
        else:
            assert isinstance(part, CallPart), "there are no other parts"
            item, piece = self._call(part), part.arguments
        if piece:
            item.pieces.append(piece)
        return item, piece

    def shown(self, item: OutputItem, status: str) -> dict[str, Any]:
        """An item as it appears in the response.

        Args:
            status: in_progress, completed or incomplete.
        """
        if item.kind == "compaction":
            return {"type": item.kind, "id": item.id, "encrypted_content": SEALED + item.text}
        shown: dict[str, Any] = {"type": item.kind, "id": item.id, "status": status}
        if item.kind in CALLED_WITH:
            namespace, name = item.tool
            own = {"namespace": namespace} if namespace else {}
            return {**shown, "call_id": item.call_id, "name": name, **own, CALLED_WITH[item.kind]: item.text}
        if item.kind == "tool_search_call":
            arguments = _whole_arguments(item.text)
            return {**shown, "call_id": item.call_id, "execution": "client", "arguments": arguments}
        content = [] if status == "in_progress" else [item.part()]
        if item.kind == "message":
            return {**shown, "role": "assistant", "content": content}
        sealed = {"encrypted_content": SEALED + item.text} if self._sealed and content else {}
        return {**shown, "summary": [], "content": content, **sealed}

    def output(self, end: str) -> list[dict[str, Any]]:
        """All items of a finished response.

        Args:
            end: status of the last one.
        """
        last = len(self.items) - 1
        return [self.shown(item, end if item.place == last else "completed") for item in self.items]

    def _last(self, kind: Kind) -> OutputItem:
        if self.items and self.items[-1].kind == kind:
            return self.items[-1]
        return self._open(kind)

    def _call(self, part: CallPart) -> OutputItem:
        last = self.items[-1] if self.items else None
        if last is not None and last.call_id and last.call == part.index:
            return last
        search = part.name == SEARCH and self._names.searches
        item = self._open("custom_tool_call" if part.custom else "tool_search_call" if search else "function_call")
        item.call, item.call_id = part.index, part.id or f"call_{item.id}"
        if self._repeats:
            item.call_id = _fixed_id(item)
        item.tool = self._names.own.get(part.name or "", ("", part.name or ""))
        return item

    def _open(self, kind: Kind) -> OutputItem:
        place = len(self.items)
        self.items.append(OutputItem(kind, place, f"{_PREFIX[kind]}_{self._stem}_{place}"))
        return self.items[-1]


def _fixed_id(item: OutputItem) -> str:
    """The id of a call, derived from its item's if it was drawn at random; in the same form, which templates expect."""
    if (drawn := _DRAWN.fullmatch(item.call_id)) is None:
        return item.call_id
    return drawn[1] + blake2b(item.id.encode()).hexdigest()[: len(drawn[2])]


def _whole_arguments(text: str) -> dict[str, Any]:
    """Arguments as an object, which is empty if they are incomplete."""
    try:
        arguments = parse_json(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def text_logprobs(answering: Answering, out: Visible) -> list[dict[str, Any]]:
    """Log-probabilities of an update, in chat's format; empty if not requested."""
    options = answering.order.options
    if options.logprobs is None or not out.logprobs:
        return []
    formatted = chat_logprobs(out.logprobs, options.logprobs, answering.tokenizer, as_ids=options.tokens_as_ids)
    shown: list[dict[str, Any]] = formatted["content"]
    return shown
