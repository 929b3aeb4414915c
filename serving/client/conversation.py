"""A conversation with a gateway: its turns, and each response's cost. Independent of a terminal."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from serving.client.http_client import ask_again, ask_gateway, gateway_events
from serving.errors import UnavailableError
from serving.gateway.live.fingerprint import PLACEHOLDER


def served_model(url: str, api_key: str | None) -> tuple[str, int]:
    """Name of the model that a gateway serves, and its context [tokens].

    Raises: UnavailableError, in one line, if it cannot be reached, requires another key, or is not a gateway.
    """
    try:
        card = ask_again(lambda: ask_gateway(url, "/v1/models", api_key))["data"][0]
        return str(card["id"]), int(card["max_model_len"])
    except (LookupError, TypeError, ValueError) as error:
        raise UnavailableError(f"{url} serves no model: is that a CloudMatrix gateway?") from error


@dataclass(slots=True)
class ChatReply:
    """A response received so far. Times are of the caller's clock [s]; None until the event has happened."""

    asked: float
    first: float | None = None
    last: float | None = None
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    replicas: tuple[str, ...] = ()
    placeholder: bool = False

    def take(self, event: Mapping[str, Any], now: float) -> str:
        """Process one event of the stream. Returns: the text that it adds.

        Raises: LookupError, TypeError, AttributeError if it is not a chunk of a chat.
        """
        added = ""
        for choice in event["choices"]:
            added += choice["delta"].get("content") or ""
            self.finish = choice.get("finish_reason") or self.finish
        if added:
            self.first = now if self.first is None else self.first
            self.last = now
            self.text += added
        self.usage = event.get("usage") or self.usage
        self.replicas = tuple(event.get("replicas") or self.replicas)
        self.placeholder = str(event.get("system_fingerprint")).endswith(PLACEHOLDER)
        return added

    def figures(self) -> str:
        """Tokens, times and replicas in one line; empty if the stream was stopped before its usage arrived."""
        if not self.usage:
            return ""
        details = self.usage.get("prompt_tokens_details") or {}
        cached = [f"{details.get('cached_tokens', 0)} cached"]
        if "pulled_tokens" in details:
            cached.append(f"{details['pulled_tokens']} of them pulled from the pool")
        output = self.usage["completion_tokens"]
        parts = [f"{self.usage['prompt_tokens']} prompt tokens ({', '.join(cached)})", f"{output} output tokens"]
        if self.first is not None and self.last is not None:
            parts.append(f"first after {(self.first - self.asked) * 1e3:.0f} ms")
            if output > 1 and self.last > self.first:
                parts.append(f"{(output - 1) / (self.last - self.first):.0f} tokens/s")
        if self.replicas:
            parts.append(" → ".join(self.replicas))
        if resumed := self.usage.get("resumptions"):
            parts.append("resumed once" if resumed == 1 else f"resumed {resumed} times")
        if self.finish == "length":
            parts.append("stopped at the token limit")
        if self.placeholder:
            parts.append("placeholder text: the NPUs are simulated")
        return ", ".join(parts)


class ChatConversation:
    """Turns so far. A failed message leaves no turn; a response that is stopped is kept as received so far.

    Args:
        system: system message.
        fields: further fields of each request; None = omitted.
        clock: monotonic [s].
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        model: str,
        system: str | None,
        fields: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.model = model
        self._api_key = api_key
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._opening = [{"role": "system", "content": system}] if system else []
        self._turns: list[dict[str, str]] = []
        self._clock = clock
        self.reply = ChatReply(0.0)
        """The latest reply."""

    def clear(self) -> None:
        """Remove all turns."""
        self._turns.clear()

    def ask(self, message: str) -> Generator[str]:
        """Send a message, and yield the response piece by piece; `reply` has its figures afterwards. Closing stops it.

        Raises: UnavailableError, in one line.
        """
        self.reply = reply = ChatReply(self._clock())
        turns = [*self._turns, {"role": "user", "content": message}]
        body = {
            "model": self.model,
            "messages": [*self._opening, *turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_replicas": True,
            **self._fields,
        }
        try:
            with closing(gateway_events(self.url, "/v1/chat/completions", self._api_key, body)) as events:
                for event in events:
                    if added := reply.take(event, self._clock()):
                        yield added
        except (LookupError, TypeError, AttributeError) as error:
            raise UnavailableError(f"{self.url} answers in another form: is that a CloudMatrix gateway?") from error
        finally:
            if reply.text:
                self._turns = [*turns, {"role": "assistant", "content": reply.text}]
