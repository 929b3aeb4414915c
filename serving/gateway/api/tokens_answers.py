"""Wire models of responses in tokens, used only for `/openapi.json`, as in `answers`."""

from typing import Any

from pydantic import RootModel

from serving.gateway.api.answers import Answer, ChatLogprobs, Count, Finish, Ids, PromptLogprobs, Usage


class TokensChoice(Answer):
    """Tokens of one choice, or an increment of them."""

    index: Count
    token_ids: Ids
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None


class GeneratedTokens(Answer):
    """POST /inference/v1/generate without `stream`."""

    request_id: str
    choices: list[TokensChoice]
    prompt_logprobs: PromptLogprobs | None
    usage: Usage


class GeneratedTokensChunk(Answer):
    """One event of the stream."""

    request_id: str
    choices: list[TokensChoice]
    usage: Usage | None = None


class RenderedRequest(Answer):
    """A body for /inference/v1/generate."""

    request_id: str
    token_ids: Ids
    sampling_params: dict[str, Any]
    model: str
    features: None
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int


class RenderedPrompts(RootModel[list[RenderedRequest]]):
    """POST /v1/completions/render."""
