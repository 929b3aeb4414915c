"""Log-probabilities requested: of how many alternatives, or of which tokens, at which positions."""

from dataclasses import dataclass

from serving.errors import InvalidRequestError
from serving.gateway.api.sampling import Fields
from serving.gateway.api.schema import GenerationRequest
from serving.gateway.api.settings import ApiSettings, ServedModel

WHOLE_VOCABULARY = -1
MOST_NAMED = 128
"""Tokens whose log-probabilities can be requested by id."""


@dataclass(frozen=True, slots=True)
class AskedLogprobs:
    """Log-probabilities of a request.

    Args:
        shown: alternatives to each token of the output; None = no log-probabilities.
        ids: the alternatives, if they are named; otherwise the likeliest.
        prompt: alternatives to each token of the prompt; None = no log-probabilities.
        whole: of the whole vocabulary, at some positions.
    """

    shown: int | None
    ids: tuple[int, ...]
    prompt: int | None
    whole: bool

    @property
    def likeliest(self) -> int | None:
        """Alternatives to each output token that the engine has to find."""
        return 0 if self.ids else self.shown


def asked_logprobs(
    body: GenerationRequest, logprobs: int | None, fields: Fields, model: ServedModel, settings: ApiSettings
) -> AskedLogprobs:
    """Log-probabilities that a request selects.

    Args:
        logprobs: alternatives to each token of the output.
    Raises: InvalidRequestError for too many, for tokens outside the vocabulary, and for any that a stream cannot carry.
    """
    if body.prompt_logprobs is not None and body.stream:
        raise _wrong("prompt_logprobs", "is not available with 'stream'")
    whole = WHOLE_VOCABULARY in (logprobs, body.prompt_logprobs)
    if whole and body.stream:
        raise _wrong(fields.logprobs, "of the whole vocabulary is not available with 'stream'")
    shown = _alternatives(logprobs, fields.logprobs, model, settings)
    prompt = _alternatives(body.prompt_logprobs, "prompt_logprobs", model, settings)
    ids = tuple(dict.fromkeys(body.logprob_token_ids or ()))
    if ids:
        _check_ids(ids, logprobs, fields.logprobs, model)
        shown = len(ids)
    return AskedLogprobs(shown, ids, prompt, whole)


def _alternatives(asked: int | None, field: str, model: ServedModel, settings: ApiSettings) -> int | None:
    if asked == WHOLE_VOCABULARY:
        return model.token_limit
    if asked is not None and asked > settings.max_logprobs:
        raise _wrong(field, f"must be at most {settings.max_logprobs} alternatives, or -1 for all of them")
    return asked


def _check_ids(ids: tuple[int, ...], logprobs: int | None, field: str, model: ServedModel) -> None:
    name = "logprob_token_ids"
    if logprobs is None:
        raise _wrong(name, "needs log-probabilities, which the request does not enable")
    if logprobs:
        raise _wrong(name, f"selects the alternatives, but '{field}' requests others; leave that out or set it to 0")
    if len(ids) > MOST_NAMED:
        raise _wrong(name, f"may name at most {MOST_NAMED} tokens")
    if max(ids) >= model.token_limit:
        raise _wrong(name, f"holds {max(ids)}, which is not a token id below {model.token_limit}")


def _wrong(field: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{field}' {words}", param=field, code="invalid_value")
