"""Questions to a gateway's admission and their answers, as values."""

from msgspec import Struct
from xxhash import xxh3_64_intdigest


class AdmissionLimits(Struct, frozen=True, gc=False):
    """Bounds of one gateway.

    Args:
        max_queued_requests, max_queued_tokens: that may wait for a start, and their prompt tokens.
        max_running_sequences: in the pools at once.
        shared: several keys use this gateway, so that none may take all places of the queue.
    """

    max_queued_requests: int
    max_queued_tokens: int
    max_running_sequences: int
    shared: bool = False

    def line(self, key: str) -> int:
        """A key's number in sequences, the same at every gateway; instances know no keys. 0 = nobody shares."""
        return (xxh3_64_intdigest(key.encode()) >> 1) | 1 if self.shared else 0


class QueuedRequest(Struct, frozen=True, gc=False):
    """A request that wants to start.

    Args:
        number: unique within the gateway.
        sequences: that it will run. tokens: of its prompts.
        expected_tokens: that it is likely to generate; with `tokens` they are what its key is charged.
        deadline: gateway time after which it is of no use [s].
        key: whose it is; keys share fairly. Empty: everybody's.
        weight: of the key: twice the weight, twice the share.
        priority: lower starts sooner, among the requests of one key.
        mark: fingerprint of what it asks for, by which it is known again when it comes back.
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
    """`retry_after_s` is 0 when accepted, else whole seconds, as HTTP tells them."""

    accepted: bool
    reason: str
    retry_after_s: float = 0.0
