"""Values of a gateway's admission: limits, queued requests and decisions."""

from collections import deque
from heapq import heappop, heappush

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from serving.errors import LedgerError
from serving.values.sequence import BACKGROUND_PRIORITY


class AdmissionLimits(Struct, frozen=True, gc=False):
    """Limits of one gateway.

    Args:
        max_queued_requests, max_queued_tokens: requests that may wait for a start, and their prompt tokens.
        max_running_sequences: concurrently in the pools.
        shared: whether several keys use this gateway, so that none may occupy all places of the queue.
        by_job: earlier sessions' turns start first, see `job_order`.
    """

    max_queued_requests: int
    max_queued_tokens: int
    max_running_sequences: int
    shared: bool = False
    by_job: bool = False

    @property
    def at_gateway(self) -> bool:
        """Whether requests wait here rather than at the instances, since only here their order is known."""
        return self.shared or self.by_job

    def line(self, key: str, priority: int = 0) -> int:
        """A key's number in sequences, the same at every gateway; instances know no keys. 0 = not shared.

        Background sequences have none, so that their priority counts among the sequences of all keys.
        """
        return (xxh3_64_intdigest(key.encode()) >> 1) | 1 if self.shared and priority < BACKGROUND_PRIORITY else 0


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
        session: the conversation that it continues; empty = none.
        due: among equal priorities the lowest starts first, then the oldest; see `job_order`.
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
    session: str = ""
    due: float = 0.0


class AdmissionDecision(Struct, frozen=True, gc=False):
    """`retry_after_s` is 0 when accepted, otherwise whole seconds, as in HTTP."""

    accepted: bool
    reason: str
    retry_after_s: float = 0.0


# Capacity reserved for refused requests until their Retry-After is due.
#
# Without reservations, arbitrary new requests take the places that become free, and clients that honoured Retry-After
# are refused again. A retry is recognized by its mark, a fingerprint of the request, since clients repeat it unchanged.
# A reservation expires some time after it was due.

EARLY_S = 0.1
"""Tolerance for retries before the due time, as clocks differ."""
GRACE_S = 3.0
"""Time for which an overdue reservation is kept: its client may still be connecting, or may have given up."""
ALIKE_SHARE = 4
"""Divisor of all reservations for those with the same mark: a client that retries endlessly gets a Retry-After each
time, but no further reservations."""


class Reservation(Struct, frozen=True, gc=False):
    """Capacity for prompt tokens of a key, reserved from `due` on."""

    due: float
    tokens: int
    key: str = ""


class RetryReservations:
    """All valid reservations."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_mark: dict[int, deque[Reservation]] = {}
        self._by_key: dict[str, tuple[int, int]] = {}
        self._dues: list[tuple[float, int]] = []
        self.requests = 0
        self.tokens = 0

    def bound(self, most: int) -> None:
        """Set the limit of reservations."""
        self._most = most

    def book(self, mark: int, reservation: Reservation) -> bool:
        """Reserve capacity. Returns: False if there are too many reservations, in total or of this mark."""
        alike = self._by_mark.get(mark, ())
        if self.requests >= self._most or len(alike) > self._most // ALIKE_SHARE:
            return False
        mine = self._by_mark.setdefault(mark, deque())
        at = len(mine)
        while at and mine[at - 1].due > reservation.due:
            at -= 1
        mine.insert(at, reservation)
        heappush(self._dues, (reservation.due, mark))
        self._count(reservation, 1)
        return True

    def of(self, key: str) -> tuple[int, int]:
        """Reserved requests of a key, and their tokens."""
        return self._by_key.get(key, (0, 0))

    def claim(self, mark: int, now: float) -> bool:
        """Claim a request's reservation. Returns: whether its Retry-After has passed; it is then released."""
        mine = self._by_mark.get(mark)
        if mine is None or mine[0].due > now + EARLY_S:
            return False
        self._void(mark, mine)
        return True

    def expire(self, now: float) -> None:
        """Drop reservations whose clients did not retry in time."""
        while self._dues and self._dues[0][0] + GRACE_S < now:
            due, mark = heappop(self._dues)
            mine = self._by_mark.get(mark)
            if mine is not None and mine[0].due <= due:  # otherwise it was claimed
                self._void(mark, mine)

    def _void(self, mark: int, mine: deque[Reservation]) -> None:
        self._count(mine.popleft(), -1)
        if not mine:
            del self._by_mark[mark]

    def _count(self, reservation: Reservation, sign: int) -> None:
        self.requests += sign
        self.tokens += sign * reservation.tokens
        requests, tokens = self.of(reservation.key)
        if requests + sign:
            self._by_key[reservation.key] = requests + sign, tokens + sign * reservation.tokens
        else:
            del self._by_key[reservation.key]

    def check(self) -> None:
        """Check that the sums are those of the reservations.

        Raises: LedgerError if they are not.
        """
        kept = [one for mine in self._by_mark.values() for one in mine]
        by_key: dict[str, list[int]] = {}
        for one in kept:
            by_key.setdefault(one.key, []).append(one.tokens)
        if (len(kept), sum(one.tokens for one in kept)) != (self.requests, self.tokens):
            raise LedgerError("the reserved capacity does not match the reservations")
        if self._by_key != {key: (len(tokens), sum(tokens)) for key, tokens in by_key.items()}:
            raise LedgerError("the reserved capacity of a key does not match its reservations")
