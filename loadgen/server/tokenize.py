"""The server's own tokenizer at `/tokenize`: exact lengths without any file of the model on this machine."""

from collections.abc import Sequence

import msgspec

from loadgen import json_text
from loadgen.endpoint import Endpoint
from loadgen.errors import NOT_JSON, ServerError
from loadgen.plan import PromptMessage, Role
from loadgen.server.connection import QueryConnection, refuse

TOKENIZE = "/tokenize"
_SAMPLE = "The server under test counts these words."
_UNKNOWN_OPTION = (400, 422)


class TokenizedText(msgspec.Struct, frozen=True):
    """The response of /tokenize. `token_strs` is set if it was requested and the server supports the option."""

    count: int
    tokens: list[int] | None = None
    token_strs: list[str] | None = None
    max_model_len: int | None = None


class ServerTokenCounter:
    """A `TokenCounter` (see `workload.ports`) that uses the server's tokenizer.

    Each text is one call; the last response is cached, because callers request the count, the pieces and the numbers of
    the same text one after another.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = 30.0) -> None:
        """Counter for an endpoint; `connect` checks whether the server supports it."""
        self._connection = QueryConnection(endpoint.base_url, endpoint.headers, verify_tls=endpoint.verify_tls)
        self._model = endpoint.model
        self._timeout_s = timeout_s
        self._options: dict[str, object] = {"return_token_strs": True}
        self._last: tuple[str, TokenizedText] | None = None

    def works(self) -> bool:
        """Whether the server counts tokens at all.

        Raises: ServerError if the request fails.
        """
        return self._ask({"prompt": _SAMPLE, "add_special_tokens": True}) is not None

    def count(self, text: str) -> int:
        """Tokens of a text as a prompt.

        Raises: ServerError.
        """
        return self._tokens(text).count

    def pieces(self, text: str) -> list[str] | None:
        """The tokens' texts; None if the server does not report them.

        Raises: ServerError.
        """
        answer = self._tokens(text)
        return answer.token_strs if answer.token_strs and len(answer.token_strs) == answer.count else None

    def ids(self, text: str) -> list[int] | None:
        """The tokens' numbers; None if the server does not report them.

        Raises: ServerError.
        """
        answer = self._tokens(text)
        return answer.tokens if answer.tokens and len(answer.tokens) == answer.count else None

    def count_chat(self, messages: Sequence[PromptMessage]) -> int | None:
        """Tokens of a conversation after the model's chat template; None if the server does not support it.

        Raises: ServerError.
        """
        answer = self._ask({"messages": list(messages), "add_generation_prompt": True})
        return None if answer is None else answer.count

    def chat_overhead(self) -> int | None:
        """Tokens that the chat template puts around one user message; None if the server does not support it.

        Raises: ServerError.
        """
        whole = self.count_chat([PromptMessage(Role.USER, _SAMPLE)])
        bare = self._ask({"prompt": _SAMPLE, "add_special_tokens": False})
        return None if whole is None or bare is None else max(0, whole - bare.count)

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        self._connection.close()

    def _tokens(self, text: str) -> TokenizedText:
        """The tokens of a text as a prompt, which includes what the tokenizer puts around any text."""
        if self._last is not None and self._last[0] == text:
            return self._last[1]
        answer = self._ask({"prompt": text, "add_special_tokens": True})
        if answer is None:
            raise ServerError(f"{self._connection.base_url}{TOKENIZE} does not count tokens (any more)")
        self._last = (text, answer)
        return answer

    def _ask(self, fields: dict[str, object]) -> TokenizedText | None:
        """One call; None if the server has no such route or does not understand the request.

        An option that is not understood is left out from then on.
        Raises: ServerUnreachable, AuthRefused, ServerError.
        """
        wanted = {**({"model": self._model} if self._model else {}), **fields}
        reply = self._connection.post(TOKENIZE, {**wanted, **self._options}, self._timeout_s)
        if reply.status in _UNKNOWN_OPTION and self._options:
            reply = self._connection.post(TOKENIZE, wanted, self._timeout_s)
            if reply.status == 200:
                self._options = {}
        if reply.status == 501 or (400 <= reply.status < 500 and reply.status not in (401, 403)):
            return None
        if reply.status != 200:
            refuse(self._connection, TOKENIZE, reply)
        try:
            answer = json_text.decode(reply.body, TokenizedText)
        except NOT_JSON:
            return None  # another program's /tokenize, with another answer
        return answer if answer.count > 0 else None


def connect(endpoint: Endpoint, *, timeout_s: float = 30.0) -> ServerTokenCounter | None:
    """A counter that has proved that it counts; None if the server has no `/tokenize` of the usual form.

    Raises: ServerUnreachable, AuthRefused, ServerError.
    """
    counter = ServerTokenCounter(endpoint, timeout_s=timeout_s)
    try:
        works = counter.works()
    except BaseException:
        counter.close()
        raise
    if not works:
        counter.close()
    return counter if works else None
