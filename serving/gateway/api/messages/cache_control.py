"""Anthropic's `cache_control`: breakpoints on tools, instructions and blocks, or one at the end of the whole prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.hints.breakpoints import MOST_BREAKPOINTS
from serving.gateway.api.hints.fields import TTL_S
from serving.gateway.api.messages.schema import CountTokensRequest, MessagesRequest, MessageTurn

_TTLS = ("5m", "1h")
_KEYS = ("type", "ttl", "evict_on_complete")
_PLACEHOLDER = MessageTurn(role="user", content="\u00b7")
"""The turn behind instructions, where a breakpoint comes before every turn."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """One breakpoint.

    Args:
        ttl: 5m or 1h.
        before: the request up to there; None = the whole.
        last: text of the block; empty = unknown.
    """

    ttl: str
    before: CountTokensRequest | None
    last: str = ""


@dataclass(frozen=True, slots=True)
class CacheControl:
    """All of a request's breakpoints in their order, and whether its claims end with the response.

    Args:
        ignored: keys without effect, for the warning header.
    """

    breakpoints: tuple[Breakpoint, ...] = ()
    evicts: bool = False
    ignored: tuple[str, ...] = ()


def cache_control(body: MessagesRequest) -> CacheControl | None:
    """The breakpoints of a request; None if it has none.

    Raises: InvalidRequestError naming the breakpoint that is invalid, one too many, or lives longer than one before it.
    """
    found: list[Breakpoint] = []
    ignored: list[str] = []
    earlier = ""
    evicts = bool(body.evict_on_complete) or _evicts(body.cache_control)
    whole: list[_Mark] = []
    if body.cache_control is not None and not evicts:  # what ends with the response is not to be kept
        whole.append(("cache_control", body.cache_control, None, None))
    for place, mark, before, block in chain(_marks(body), whole):
        ttl = _ttl(mark, place, ignored)
        if len(found) == MOST_BREAKPOINTS:
            raise _wrong(place, f"is one too many: at most {MOST_BREAKPOINTS} blocks may have cache_control")
        if earlier and TTL_S[ttl] > TTL_S[earlier]:
            raise _wrong(place, f"has ttl {ttl} after one with ttl {earlier}; the longer ones must come first")
        found.append(Breakpoint(ttl, before, _text(block)))
        earlier = ttl
    if not found and body.cache_control is None and not body.evict_on_complete:
        return None
    return CacheControl(tuple(found), evicts, tuple(ignored))


_Mark = tuple[str, object, CountTokensRequest | None, object]
"""A breakpoint's path, its value, the request up to there, and the block."""


def _marks(body: MessagesRequest) -> Iterator[_Mark]:
    for index, tool in enumerate(body.tools or ()):
        if isinstance(tool, dict) and tool.get("cache_control") is not None:
            # Templates place tools before or behind the instructions, so both are kept.
            yield f"tools[{index}].cache_control", tool["cache_control"], _until(body, [_PLACEHOLDER]), None
    if isinstance(body.system, list):
        for index, block in enumerate(body.system):
            if isinstance(block, dict) and block.get("cache_control") is not None:
                before = _until(body, [_PLACEHOLDER], body.system[: index + 1])
                yield f"system[{index}].cache_control", block["cache_control"], before, block
    for index, turn in enumerate(body.messages):
        if isinstance(turn.content, str):
            continue
        for part, block in enumerate(turn.content):
            for path, mark in _marks_of(block, f"messages[{index}].content[{part}]"):
                last = index == len(body.messages) - 1 and part == len(turn.content) - 1
                cut = turn.model_copy(update={"content": turn.content[: part + 1]})
                shorter = None if last else _until(body, [*body.messages[:index], cut])
                yield f"{path}.cache_control", mark, shorter, block


def _marks_of(block: object, path: str) -> Iterator[tuple[str, object]]:
    """Breakpoints within the result of a tool, which keep all of it, and the block's own, each with its path."""
    if not isinstance(block, dict):
        return
    inner = block.get("content")
    for index, one in enumerate(inner if isinstance(inner, list) else ()):
        yield from _marks_of(one, f"{path}.content[{index}]")
    if (mark := block.get("cache_control")) is not None:
        yield path, mark


def _until(
    body: MessagesRequest, messages: Sequence[MessageTurn], system: list[Any] | None = None
) -> CountTokensRequest:
    update: dict[str, Any] = {"messages": list(messages)}
    if system is not None:
        update["system"] = system
    return body.model_copy(update=update)


def _text(block: object) -> str:
    text = block.get("text") or block.get("content") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


def _evicts(mark: object) -> bool:
    return isinstance(mark, dict) and mark.get("evict_on_complete") is True


def _ttl(mark: object, place: str, ignored: list[str]) -> str:
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise _wrong(f"{place}.type", "must be 'ephemeral'")
    ttl = mark.get("ttl")
    if ttl is not None and ttl not in _TTLS:
        raise _wrong(f"{place}.ttl", f"must be one of {', '.join(_TTLS)}")
    evicts = mark.get("evict_on_complete")
    if evicts is not None and not isinstance(evicts, bool):
        raise _wrong(f"{place}.evict_on_complete", "must be true or false")
    ignored += [f"{place}.{name[:40]}" for name in mark if name not in _KEYS]
    return ttl or _TTLS[0]


def _wrong(param: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{param}' {words}", param=param, code="invalid_value")
