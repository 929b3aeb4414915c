"""Everything that can go wrong in `serving/`, as one tree.

ServingError
├── ConfigError                 the configuration or the command line is wrong; exit code 2
├── ModelError                  the checkpoint folder cannot be served
├── RequestError                the caller's fault; HTTP 4xx
│   ├── InvalidRequestError         400, names the parameter
│   ├── ContextLengthError          400, prompt and output do not fit the model
│   ├── ModelNotFoundError          404
│   ├── AuthenticationError         401
│   ├── PermissionDeniedError       403, a known key that may not do this
│   └── PayloadTooLargeError        413
├── OverloadedError             429, come back after `retry_after_s`
├── UnavailableError            503, no instance can serve now
│   └── SilentError                 what was asked is there, but gave no answer in time; worth asking again
├── ScaleError                  a pool cannot have the size that was asked for; `kind` says why
├── PlacementError              the experts of a layer do not fit the slots of a group
├── RoutingTraceError           a file is no routing trace of experts, or a damaged one
├── GroupError                  ranks of one instance cannot compute together; the shell makes the group whole again
├── ExpertError                 an expert's weights could not be brought into a slot, which is empty then
├── GrammarError                a grammar cannot be compiled, or an output cannot go on by it
├── DeadlineError               408, the request's time is over
├── EngineError                 500, an instance failed and no retry was left
│   └── PoisonError                 500, the request took its instances down; it must not be repeated
├── HandoffError                KV blocks could not be moved; the request is prefilled again
│   ├── HandoffChecksumError        the bytes that arrived are not the bytes that were registered
│   ├── HandoffExpiredError         the source no longer holds the blocks
│   └── HandoffTimeoutError         nothing arrives from the source
├── PoolError                   the KV-cache pool could not do it; a miss for readers, a drop for writers
│   ├── PoolTimeoutError            a memory server did not answer in time
│   ├── PoolUnreachableError        a memory server is gone
│   ├── PoolRefusedError            a memory server answered that it cannot do it
│   └── SsdError                    a directory of the SSD tier cannot be used
├── DecisionLogError            a file is no decision log, or a damaged one
├── LinkError                   a gateway-to-instance link broke or spoke nonsense
│   └── ProofError                  one end of a connection did not prove the secret, or TLS did not come about
└── LedgerError                 a ledger does not balance: our bug, never the caller's

A message says what to do next. Nothing here is raised bare: always the most specific class.
"""

import re

import msgspec

from hardware.nesting import NestedTooDeeply

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NestedTooDeeply)
"""What reading raises for bytes without sense: msgspec's own error, but not for broken UTF-8 or endless nesting."""


class ServingError(Exception):
    """Base of the tree."""


class ConfigError(ServingError):
    """The configuration or command line cannot be used."""


class ModelError(ServingError):
    """The model folder is missing, incomplete, or of an architecture that is not served."""


class RequestError(ServingError):
    """The caller's fault. `param` names the field, `code` is OpenAI's machine-readable reason, `kind` its type of error
    where that does not follow from the status."""

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


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""

    status = 404
    code = "model_not_found"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The API key is known, but this is not for it to see or to do."""

    status = 403
    code = "permission_denied"


class PayloadTooLargeError(RequestError):
    """The request body exceeds the configured limit."""

    status = 413
    code = "request_too_large"


class OverloadedError(ServingError):
    """Admission refused the request: queues are at their bound."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(ServingError):
    """No live instance can take the request."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SilentError(UnavailableError):
    """A process that exists has given no answer in time, as on a loaded machine; the same question may be repeated."""


class ScaleError(ServingError):
    """A pool cannot be scaled or held as asked.

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
    """A file is no routing trace of experts, or a damaged one."""


class GroupError(ServingError):
    """The ranks of an instance cannot be formed into a group, or go on as one."""


class ExpertError(ServingError):
    """An expert's weights could not be brought into a slot of a rank."""


class GrammarError(ServingError):
    """A grammar is none, takes too much, or allows no token."""


class DeadlineError(ServingError):
    """The request's deadline passed before it was done."""


class EngineError(ServingError):
    """An instance failed on this request and no retry was left."""


class PoisonError(EngineError):
    """The request took down the instances that worked on it."""


class HandoffError(ServingError):
    """KV blocks could not be moved from prefill to decode."""


class HandoffChecksumError(HandoffError):
    """The bytes that arrived differ from the bytes that were registered."""


class HandoffExpiredError(HandoffError):
    """The source instance no longer holds the blocks of this ticket."""


class HandoffTimeoutError(HandoffError):
    """Nothing arrived from the source in time: the path may be broken."""


class PoolError(ServingError):
    """The KV-cache pool could not do what was asked. Never reaches a client: readers recompute, writers drop."""


class PoolTimeoutError(PoolError):
    """A memory server did not answer before the deadline."""


class PoolUnreachableError(PoolError):
    """A memory server does not listen, or its connection broke."""


class PoolRefusedError(PoolError):
    """A memory server answered that it cannot do what was asked; the connection to it is good."""


class SsdError(PoolError):
    """A directory of the SSD tier cannot be read, written or locked."""


class DecisionLogError(ServingError):
    """A decision log cannot be read."""


class LinkError(ServingError):
    """A gateway-to-instance link broke, timed out or carried an unreadable frame."""


class ProofError(LinkError):
    """One end of a connection has not proved the secret, is of another release, or TLS did not come about."""


class LedgerError(ServingError):
    """A ledger does not balance. Always a bug of ours."""


def in_words(error: BaseException) -> str:
    """Text of an error without numbers and wrappers of libraries: `Connection reset by peer`."""
    text = re.sub(
        r"\[Errno -?\d+\] ?", "", re.sub(r"^<urlopen error (.*)>$", r"\1", str(error), flags=re.DOTALL)
    ).strip()
    return text or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
