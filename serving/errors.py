"""All errors of `serving/`, as one tree.

ServingError
├── ConfigError                 the configuration or the command line is wrong
│   └── NotWrittenError             a result cannot be written
├── ModelError                  the checkpoint folder cannot be served
├── RequestError                an invalid request; HTTP 4xx
│   ├── InvalidRequestError         400, names the parameter
│   ├── ContextLengthError          400, prompt and output do not fit the model
│   ├── ModelNotFoundError          404
│   ├── AuthenticationError         401
│   ├── PermissionDeniedError       403, a known key that may not do this
│   └── PayloadTooLargeError        413
├── OverloadedError             429, retry after `retry_after_s`
├── UnavailableError            503, no instance can serve now
│   └── SilentError                 a process exists, but did not respond in time; worth a retry
├── ScaleError                  a pool cannot have the requested size; the reason is in `kind`
├── PlacementError              the experts of a layer do not fit the slots of a group
├── RoutingTraceError           a file is not a routing trace of experts, or damaged
├── GroupError                  ranks of one instance cannot compute together; the shell repairs the group
├── ExpertError                 an expert's weights could not be loaded into a slot, which is then empty
├── GrammarError                a grammar cannot be compiled, or does not allow an output to continue
├── DeadlineError               408, the request's time is over
├── EngineError                 500, an instance failed and no retry was left
│   └── PoisonError                 500, the request crashed its instances; it must not be repeated
├── HandoffError                KV blocks could not be moved; the request is prefilled again
│   ├── HandoffChecksumError        the bytes that arrived are not the bytes that were registered
│   ├── HandoffExpiredError         the source no longer holds the blocks
│   └── HandoffTimeoutError         nothing arrives from the source
├── PoolError                   the KV-cache pool could not do it; a miss for readers, a drop for writers
│   ├── PoolTimeoutError            a memory server did not respond in time
│   ├── PoolUnreachableError        a memory server is down
│   ├── PoolRefusedError            a memory server refused the request
│   └── SsdError                    a directory of the SSD tier cannot be used
├── DecisionLogError            a file is not a decision log, or damaged
├── LinkError                   a gateway-to-instance link broke or received an invalid frame
│   └── ProofError                  one end of a connection did not prove the secret, or TLS failed
└── LedgerError                 a ledger does not balance: our bug, never the caller's

A message contains the remedy. Only the most specific class is raised.
"""

import re

import msgspec

from hardware.nesting import NestedTooDeeply

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NestedTooDeeply)
"""Errors of reading invalid bytes: msgspec's own, and those for broken UTF-8 or deep nesting."""


class ServingError(Exception):
    """Base of the tree."""


class ConfigError(ServingError):
    """The configuration or command line is invalid."""


class NotWrittenError(ConfigError):
    """A command's result cannot be written."""


class ModelError(ServingError):
    """The model folder is missing, incomplete, or of an architecture that is not served."""


class RequestError(ServingError):
    """Invalid request. `param` names the field, `code` is OpenAI's machine-readable reason, `kind` its type of error if
    that does not follow from the status."""

    status = 400
    code: str | None = None
    kind: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequestError(RequestError):
    """A field is missing, of the wrong type, out of range, or not supported."""


class ContextLengthError(RequestError):
    """Prompt plus requested output exceed the model's maximum context length."""

    code = "context_length_exceeded"
    prompt_tokens: int | None = None
    """Tokens of a prompt that is too long by itself, or the least number that it can have."""


class ModelNotFoundError(RequestError):
    """The request names a model that is not served."""

    status = 404
    code = "model_not_found"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The API key is known, but lacks this permission."""

    status = 403
    code = "permission_denied"


class PayloadTooLargeError(RequestError):
    """The request body exceeds the configured limit."""

    status = 413
    code = "request_too_large"


class OverloadedError(ServingError):
    """Admission refused the request: queues are full."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(ServingError):
    """No live instance can serve the request."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SilentError(UnavailableError):
    """A process that exists has not responded in time, as on a loaded machine; the request may be repeated."""


class ScaleError(ServingError):
    """A pool cannot be scaled or held as requested.

    Args:
        kind: `unknown_pool`, `invalid`, `no_room`, `unavailable` or `no_system`.
        fits: with `no_room`: the most replicas that would fit.
    """

    def __init__(self, message: str, *, kind: str, fits: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.fits = fits


class PlacementError(ServingError):
    """A group of ranks has too few slots for the experts of a layer."""


class RoutingTraceError(ServingError):
    """A file is not a routing trace of experts, or damaged."""


class GroupError(ServingError):
    """The ranks of an instance cannot form a group, or continue as one."""


class ExpertError(ServingError):
    """An expert's weights could not be loaded into a slot of a rank."""


class GrammarError(ServingError):
    """A grammar is invalid, exceeds a limit, or allows no token."""


class DeadlineError(ServingError):
    """The request's deadline passed before it was done."""


class EngineError(ServingError):
    """An instance failed on this request and no retry was left."""


class PoisonError(EngineError):
    """The request crashed the instances that worked on it."""


class HandoffError(ServingError):
    """KV blocks could not be moved from prefill to decode."""


class HandoffChecksumError(HandoffError):
    """The bytes that arrived differ from the bytes that were registered."""


class HandoffExpiredError(HandoffError):
    """The source instance no longer holds the blocks of this ticket."""


class HandoffTimeoutError(HandoffError):
    """Nothing arrived from the source in time: the path may be broken."""


class PoolError(ServingError):
    """The KV-cache pool could not fulfil a request. Never reaches a client: readers recompute, writers drop."""


class PoolTimeoutError(PoolError):
    """A memory server did not respond before the deadline."""


class PoolUnreachableError(PoolError):
    """A memory server does not listen, or its connection broke."""


class PoolRefusedError(PoolError):
    """A memory server refused the request; the connection to it is intact."""


class SsdError(PoolError):
    """A directory of the SSD tier cannot be read, written or locked."""


class DecisionLogError(ServingError):
    """A decision log cannot be read."""


class LinkError(ServingError):
    """A gateway-to-instance link broke, timed out or received an unreadable frame."""


class ProofError(LinkError):
    """One end of a connection has not proved the secret, is of another release, or TLS failed."""


class LedgerError(ServingError):
    """A ledger does not balance. Always a bug of ours."""


def in_words(error: BaseException) -> str:
    """Text of an error without numbers and wrappers of libraries: `Connection reset by peer`."""
    text = re.sub(
        r"\[Errno -?\d+\] ?", "", re.sub(r"^<urlopen error (.*)>$", r"\1", str(error), flags=re.DOTALL)
    ).strip()
    return text or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
