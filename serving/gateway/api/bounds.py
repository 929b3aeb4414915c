"""Limits of one request: choices, and log-probabilities, which are all held until a whole response is sent."""

from serving.errors import InvalidRequestError
from serving.gateway.api.settings import ApiSettings

USUAL_OUTPUT = 4096
"""Output tokens assumed for a request without `max_tokens`."""


def check_choices(prompts: int, n: int, settings: ApiSettings) -> None:
    """Check the number of choices, before any work on the prompts.

    Raises: InvalidRequestError, which names the excessive value.
    """
    if n > settings.max_n:
        raise InvalidRequestError(
            f"'n' requests {n} choices for a prompt; at most {settings.max_n} are allowed ([gateway] max_n)",
            param="n",
            code="invalid_value",
        )
    if prompts * n <= settings.max_sequences:
        return
    limit = f"at most {settings.max_sequences} are allowed in a request ([gateway] max_request_sequences)"
    if prompts > settings.max_sequences:
        message = f"'prompt' holds {prompts} prompts; {limit}; send them in several requests"
        raise InvalidRequestError(message, param="prompt", code="invalid_value")
    message = f"{prompts} prompts times 'n' = {n} are {prompts * n} answers; {limit}"
    raise InvalidRequestError(message, param="n", code="invalid_value")


def check_logprobs(
    prompt_tokens: int,
    output_tokens: int,
    *,
    prompt_logprobs: int | None,
    logprobs: int | None,
    field: str,
    settings: ApiSettings,
) -> None:
    """Check the number of log-probabilities in the response, of tokens and alternatives.

    Args:
        prompt_tokens, output_tokens: of all choices together.
        logprobs: None if each is sent as soon as it is known.
        field: the request's name for `logprobs`.
    Raises: InvalidRequestError.
    """
    of_prompt = 0 if prompt_logprobs is None else prompt_tokens * (prompt_logprobs + 1)
    of_output = 0 if logprobs is None else output_tokens * (logprobs + 1)
    if of_prompt + of_output <= settings.max_logprob_entries:
        return
    name = "prompt_logprobs" if of_prompt >= of_output else field
    way = "fewer answers, alternatives or prompt tokens" if of_prompt >= of_output else "a smaller limit, or a stream"
    raise InvalidRequestError(
        f"the response could hold {of_prompt + of_output} log-probabilities; at most "
        f"{settings.max_logprob_entries} are allowed ([gateway] max_logprob_entries); request {way}",
        param=name,
        code="invalid_value",
    )
