"""Values of a gateway's admission: limits, queued requests and decisions."""

from msgspec import Struct
from xxhash import xxh3_64_intdigest


class AdmissionLimits(Struct, frozen=True, gc=False):
    """Limits of one gateway.

    Args:
        max_queued_requests, max_queued_tokens: requests that may wait for a start, and their prompt tokens.
        max_running_sequences: concurrently in the pools.
        shared: whether several keys use this gateway, so that none may occupy all places of the queue.
    """

    max_queued_requests: int
    max_queued_tokens: int
    max_running_sequences: int
    shared: bool = False

    def line(self, key: str) -> int:
        """A key's number in sequences, the same at every gateway; instances know no keys. 0 = not shared."""
        return (xxh3_64_intdigest(key.encode()) >> 1) | 1 if self.shared else 0


class QueuedRequest(Struct, frozen=True, gc=False):
    """A request that waits to start.

    Args:
        number: unique within the gateway.
        sequences: number of its sequences. tokens: of its prompts.
        expected_tokens: tokens that it will probably generate; its key is charged for these and `tokens`.
        deadline: gateway time after which its result is useless [s].
        key: its API key; keys share fairly. Empty: shared by all clients without a key.
        weight: of the key: twice the weight, twice the share.
        priority: lower starts sooner, among the requests of one key.
        mark: fingerprint of its content, by which a retry is recognized.
    """

    number: int
    sequences: int
    tokens: int
    expected_tokens: int
    deadline: float
    key: str = ""
    weight: float = 1.0
    priority: int = 0
    mark: int = 0


class AdmissionDecision(Struct, frozen=True, gc=False):
    """`retry_after_s` is 0 when accepted, otherwise whole seconds, as in HTTP."""

    accepted: bool
    reason: str
    retry_after_s: float = 0.0
