"""Addresses of requests and the form of their bodies; pure, so that a body can be rendered before it is due."""

from enum import StrEnum

import msgspec

from loadgen.errors import UsageError
from loadgen.plan import Prompt, PromptMessage, Role, Turn


class Backend(StrEnum):
    """Which of the OpenAI endpoints is used; the names are those of `vllm bench serve`."""

    COMPLETIONS = "openai"
    CHAT = "openai-chat"


DEFAULT_PATHS = {Backend.COMPLETIONS: "/v1/completions", Backend.CHAT: "/v1/chat/completions"}

History = list[PromptMessage] | str
"""Earlier turns: messages for chat, text for completions. Empty in a first turn."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Address and request options of a server, the same for every request of a run.

    Attributes:
        base_url: scheme, host, port and any path prefix, without the endpoint's path: "http://127.0.0.1:8000".
        path: "/v1/completions" ...
        model: name sent as `model`.
        headers: additional header lines, e.g. Authorization.
        stream: request a stream (with usage).
        ignore_eos: request generation up to `output_tokens` regardless of stop tokens.
        extra: fields merged into every body; a null value removes a field.
    """

    base_url: str
    path: str
    model: str
    backend: Backend = Backend.COMPLETIONS
    headers: list[tuple[str, str]] = []
    stream: bool = True
    ignore_eos: bool = True
    extra: dict[str, object] = {}
    verify_tls: bool = True

    def body(self, turn: Turn, history: History = "") -> bytes:
        """The JSON body of one request.

        Args:
            history: result of `extend` for the previous turn; empty for a first turn.
        Raises: UsageError if the prompt does not fit the endpoint (token ids or messages where text is needed).
        """
        if turn.body is not None:
            return turn.body
        fields: dict[str, object] = {"model": self.model}
        if self.backend is Backend.CHAT:
            fields["messages"] = [*(history or []), *as_messages(turn.prompt)]
            fields["max_completion_tokens"] = turn.output_tokens
        else:
            fields["prompt"] = _as_prompt(turn.prompt, history)
            fields["max_tokens"] = turn.output_tokens
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.stream:
            fields["stream"] = True
            fields["stream_options"] = {"include_usage": True}
        fields.update(self.extra)
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})

    def extend(self, history: History, turn: Turn, answer: str) -> History:
        """The history including a completed turn."""
        if self.backend is Backend.CHAT:
            return [*(history or []), *as_messages(turn.prompt), PromptMessage(Role.ASSISTANT, answer)]
        return f"{_as_prompt(turn.prompt, history)}{answer}"


def as_messages(prompt: Prompt) -> list[PromptMessage]:
    """A prompt as chat messages; plain text is one user message.

    Raises: UsageError for token ids, which chat cannot carry.
    """
    if isinstance(prompt, str):
        return [PromptMessage(Role.USER, prompt)]
    messages = [part for part in prompt if isinstance(part, PromptMessage)]
    if len(messages) < len(prompt):
        raise UsageError("prompts made of token ids need --backend openai (completions); chat takes text only")
    return messages


def _as_prompt(prompt: Prompt, history: History) -> str | list[int]:
    """A prompt for the completions endpoint, after its history."""
    if isinstance(prompt, str):
        return f"{history}{prompt}" if history else prompt
    token_ids = [part for part in prompt if isinstance(part, int)]
    if len(token_ids) == len(prompt) and not history:
        return token_ids
    if token_ids:
        raise UsageError("conversations of several turns need text prompts, not token ids")
    text = "\n".join(message.content for message in prompt if isinstance(message, PromptMessage))
    return f"{history}{text}" if history else text
