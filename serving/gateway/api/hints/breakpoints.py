"""Cache breakpoints: how many tokens of a prompt come before a place in the conversation.

The conversation is rendered up to that place, and the beginning that this text shares with the whole prompt is
tokenized. So the number is right for any chat template: another request with the same conversation up to there shares
exactly these tokens. Only requests with breakpoints pay for it, and beginnings that return are tokenized once.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from serving.errors import InvalidRequestError
from serving.gateway.api.prompts import Rendered, encode_text, render_chat
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.templates.chat_template import Rendering

MOST_BREAKPOINTS = 4
MOST_KNOWN = 1024
"""Beginnings of prompts whose length is remembered."""

_EDGE = 8
"""Last tokens of a beginning that may differ because of the text that follows."""
_TAIL = 64
_NEAR = 512
"""Characters between the end of a block and the next text that is not the template's."""

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work on a request's text where it does not stall others."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A conversation that ends at a breakpoint.

    Args:
        rendering: makes it ready for the template.
        last: text of its last block; empty = unknown.
    """

    rendering: Callable[[], Rendering]
    last: str = ""


class PrefixLengths:
    """Lengths of beginnings in tokens, the latest remembered by digest."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._known: dict[bytes, int] = {}

    async def measure(self, run: Run, text: Rendered, ids: Sequence[int], beginnings: Sequence[Beginning]) -> list[int]:
        """For each conversation, how many leading tokens of the prompt it shares; 0 if the template refuses it.

        Args:
            text, ids: the whole prompt.
        Raises: OverloadedError, TimeoutError.
        """
        return [await self._one(run, text, ids, one) for one in beginnings]

    async def _one(self, run: Run, text: Rendered, ids: Sequence[int], beginning: Beginning) -> int:
        try:
            part = await render_chat(self._model, await run(beginning.rendering))
        except InvalidRequestError:  # a template may refuse a conversation that ends here
            return 0
        shared = text.marked[: _common(text.marked, part.marked)]
        tail = beginning.last.rstrip()[-_TAIL:]
        if tail and (at := shared.rfind(tail, max(0, len(shared) - _NEAR))) >= 0:
            shared = shared[: at + len(tail)]  # without the template's own text for whatever comes next
        digest = blake2b(shared.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (known := self._known.get(digest)) is None:
            begun: list[int] = await run(lambda: encode_text(self._model, Rendered(shared), add_special_tokens=False))
            known = _common(begun, list(ids))
            if known + _EDGE < len(begun):  # the prompt was cut, so another one may share more
                return known
            self._known[digest] = known
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return min(known, len(ids))


def _common(one: Any, other: Any) -> int:  # noqa: ANN401
    """Length of the beginning that two sequences share."""
    least, most = 0, min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    while least + 1 < most:
        middle = (least + most) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle
    return least
