"""Sampling fields of a request, with the model's defaults, to one immutable `SamplingParams`."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from serving.errors import ContextLengthError, InvalidRequestError
from serving.gateway.api.schema import GenerationRequest
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.values.sequence import Grammar, SamplingParams

T = TypeVar("T")

SEED_SPACE = 2**64
_LEAST_TEMPERATURE = 1e-5
MAX_BIASES = 1024
"""Each biased token costs the sampler of every step; OpenAI's own limit is of this order."""
MAX_ALLOWED_TOKENS = 8192
"""The list is sent with its sequence to every instance."""
MAX_BAD_WORDS, MAX_BAD_WORD = 256, 256
"""Words, and characters of each: all are compared with the output's end at every step."""


class Fields(NamedTuple):
    """Names of a request kind's fields, for errors."""

    prompt: str
    limit: str
    logprobs: str
    stop: str = "stop"


def sampling_params(
    body: GenerationRequest,
    model: ServedModel,
    *,
    max_tokens: int,
    seed: int,
    logprobs: int | None,
    logprob_ids: tuple[int, ...],
    prompt_logprobs: int | None,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """Sampling of one sequence. A request's value overrides generation_config.json, which overrides neutral values.

    Raises: InvalidRequestError for biases outside the vocabulary, contradicting limits.
    """
    min_tokens, stop_ids = body.min_tokens or 0, _stop_token_ids(body, model)
    if min_tokens and len(stop_ids) >= model.token_limit:
        message = "'min_tokens' leaves no token to choose: all of them are stop tokens"
        raise InvalidRequestError(message, param="min_tokens", code="invalid_value")
    if min_tokens > max_tokens:
        raise InvalidRequestError(
            f"'min_tokens' ({min_tokens}) must not exceed the maximum of {max_tokens} output tokens",
            param="min_tokens",
            code="invalid_value",
        )
    allowed = _allowed_token_ids(body.allowed_token_ids or [], model.token_limit, stop_ids if min_tokens else ())
    defaults = model.defaults
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_temperature(_first(body.temperature, defaults.temperature)),
        top_p=_first(body.top_p, defaults.top_p),
        top_k=max(0, _first(body.top_k, defaults.top_k)),  # -1 is another spelling of "off"
        min_p=_first(body.min_p, defaults.min_p),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}, model.token_limit),
        seed=seed % SEED_SPACE,
        stop_token_ids=stop_ids,
        logprobs=logprobs,
        logprob_ids=logprob_ids,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
        allowed_token_ids=allowed,
        bad_words=_bad_words(body.bad_words or [], model),
    )


def output_limit(
    model: ServedModel, prompt_tokens: int, asked: int | None, fields: Fields, *, by_default: bool = False
) -> int:
    """Output tokens of one sequence: the requested number, else all that fit; 0 after a prompt that is only scored.

    Args:
        by_default: the number is a default, so it may be reduced.
    Raises: ContextLengthError when prompt and output do not fit together.
    """
    room = model.max_model_len - prompt_tokens
    least = 1 if asked is None or (by_default and asked) else asked
    if least > room:
        detail = f"you requested {asked} output tokens and " if asked and not by_default else ""
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens. However, {detail}your prompt "
            f"contains {prompt_tokens} tokens. Shorten the prompt or request fewer output tokens.",
            param=fields.limit if detail and prompt_tokens < model.max_model_len else fields.prompt,
        )
    if asked is not None:
        return min(asked, room)
    return min(room, model.defaults.max_new_tokens or room)


def stop_strings(stop: str | list[str] | None, settings: ApiSettings, field: str = "stop") -> tuple[str, ...]:
    """The request's stop strings, checked. A single empty text counts as none, as from an empty form field.

    Raises: InvalidRequestError for empty, too long or too many strings.
    """
    stops = (stop,) if isinstance(stop, str) and stop else tuple(stop or ())
    if len(stops) > settings.max_stop_strings:
        raise InvalidRequestError(
            f"'{field}' may hold at most {settings.max_stop_strings} strings", param=field, code="invalid_value"
        )
    for text in stops:
        if not 0 < len(text) <= settings.max_stop_length:
            raise InvalidRequestError(
                f"each '{field}' string must have 1 to {settings.max_stop_length} characters",
                param=field,
                code="invalid_value",
            )
    return stops


def _stop_token_ids(body: GenerationRequest, model: ServedModel) -> tuple[int, ...]:
    """Raises: InvalidRequestError for ids outside the model's vocabulary."""
    limit = model.token_limit
    own = body.stop_token_ids or ()
    if any(token >= limit for token in own):
        raise InvalidRequestError(
            f"'stop_token_ids' holds {max(own)}, which is no token id below {limit}",
            param="stop_token_ids",
            code="invalid_value",
        )
    ends = () if body.ignore_eos else (token for token in model.eos_ids if token < limit)
    return tuple(sorted({*ends, *own}))


def _allowed_token_ids(asked: list[int], limit: int, hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Checked and sorted token ids; empty = no restriction.
    Args:
        hidden: stop tokens that must not be sampled first.
    Raises: InvalidRequestError.
    """
    name = "allowed_token_ids"
    allowed = tuple(sorted(set(asked)))
    if len(allowed) > MAX_ALLOWED_TOKENS:
        message = f"'{name}' may hold at most {MAX_ALLOWED_TOKENS} tokens"
        raise InvalidRequestError(message, param=name, code="invalid_value")
    if allowed and allowed[-1] >= limit:
        message = f"'{name}' holds {allowed[-1]}, which is no token id below {limit}"
        raise InvalidRequestError(message, param=name, code="invalid_value")
    if allowed and not set(allowed).difference(hidden):
        message = f"'{name}' holds stop tokens only, and 'min_tokens' forbids these at first"
        raise InvalidRequestError(message, param=name, code="invalid_value")
    return allowed


def _bad_words(words: list[str], model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """Tokens of each word, and of the word after a space if only its first token then differs."""
    name = "bad_words"
    if len(words) > MAX_BAD_WORDS or any(not 0 < len(word.lstrip()) <= MAX_BAD_WORD for word in words):
        message = f"'{name}' may hold at most {MAX_BAD_WORDS} words of 1 to {MAX_BAD_WORD} characters"
        raise InvalidRequestError(message, param=name, code="invalid_value")
    found: list[tuple[int, ...]] = []
    for word in words:
        own, behind = (
            tuple(model.tokenizer.encode(blank + word.lstrip(), add_special_tokens=False)) for blank in ("", " ")
        )
        if not own:  # a word without tokens cannot be generated
            continue
        found.append(own)
        if behind[0] != own[0] and len(behind) == len(own):
            found.append(behind)
    return tuple(found)


def _temperature(asked: float) -> float:
    """Below 1e-5 sampling equals argmax up to rounding, so it is treated as greedy."""
    return asked if asked >= _LEAST_TEMPERATURE else 0.0


def _logit_bias(bias: dict[str, Any], limit: int) -> tuple[tuple[int, float], ...]:
    if len(bias) > MAX_BIASES:
        message = f"'logit_bias' may hold at most {MAX_BIASES} tokens"
        raise InvalidRequestError(message, param="logit_bias", code="invalid_value")
    pairs = []
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 20 and int(key) < limit):
            raise InvalidRequestError(
                f"'logit_bias' has the key '{key[:40]}', which is no token id below {limit}",
                param="logit_bias",
                code="invalid_value",
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            message = f"'logit_bias' of token {key} must be a number from -100 to 100"
            raise InvalidRequestError(message, param="logit_bias", code="invalid_value")
        pairs.append((int(key), float(value)))
    return tuple(sorted(pairs))


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


# Log-probabilities requested: of how many alternatives, or of which tokens, at which positions.

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
