"""Gateway admission queue: which requests may wait, which starts next, and the Retry-After of those refused.

    offer ──► waits ──take──► runs ──finished──► its slot is free
      │         └── withdraw, overdue
      └── refused: retry after so many seconds, when capacity is reserved

A queue longer than the pools can drain in acceptable time only delays the refusal, so the number of requests and the
number of their prompt tokens are both bounded. One request may exceed the remaining tokens, or the whole bound.
Every request passes through the queue, even one that starts at once, because each is charged to its API key. The order
is that of `fair_lines`, and no request is overtaken because of its size: if the next request needs more slots than are
free, all wait for it.

Where several keys share the queue, a key that already has as many requests or prompt tokens waiting as there is
capacity left is refused, and capacity is reserved only against new requests of the same key. So regardless of how many
keys fill the queue, and of the Retry-After they received, a key without waiting requests still finds a place. In this
mode the slots are those of the instances, see `concurrency`: requests that would otherwise wait in the pools may wait
in this queue.
"""

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, sqrt

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.gateway.core.concurrency import ConcurrencyLedger
from serving.gateway.core.fair_lines import FairLines
from serving.gateway.core.gateway_admission import (
    AdmissionDecision,
    AdmissionLimits,
    QueuedRequest,
    Reservation,
    RetryReservations,
)
from serving.gateway.core.job_order import JobOrder
from serving.values.throughput import MAX_RETRY_S

CAUTION = 2.0
"""Standard deviations added to the starts that a Retry-After waits for, if starts were a Poisson process: retrying a
little late costs little, retrying too early costs the reserved place."""
RESERVATIONS_PER_PLACE = 8
"""Limits the reservations in memory; they expire after `MAX_RETRY_S` anyway."""
DRY_S = 2.0
"""A queue that drains in less than this time is about to run empty."""
UNKNOWN_RETRY_S = 1
"""Retry-After before any measurement."""


class AdmissionQueue:
    """Queue of one gateway. All times are the gateway's [s]."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._lines = FairLines()
        self._reservations = RetryReservations(RESERVATIONS_PER_PLACE * max(1, limits.max_queued_requests))
        self._rate = DrainRate(limits.max_running_sequences)
        self._deadlines: list[tuple[float, int]] = []
        self._jobs = JobOrder()
        self._since: OrderedDict[int, float] = OrderedDict()
        self._places = limits.max_queued_requests
        """Number of requests that may wait now."""
        self._waited_from: float | None = None
        """Time up to which waiting for capacity is accounted; None while no request waits for it."""

    def configure(self, limits: AdmissionLimits) -> None:
        """Apply other limits; waiting requests and reservations are kept."""
        self._limits = limits
        self._reservations.bound(RESERVATIONS_PER_PLACE * max(1, limits.max_queued_requests))
        self._set_limits(None)

    # ---- queries -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def limits(self) -> AdmissionLimits:
        """The present limits."""
        return self._limits

    @property
    def tokens(self) -> int:
        """Prompt tokens of all waiting requests."""
        return self._lines.tokens

    @property
    def oldest_since(self) -> float | None:
        """Start of the oldest request's wait; None if no request waits."""
        return next(iter(self._since.values()), None)

    def upcoming(self, most: int) -> list[int]:
        """Numbers of about the next requests to start."""
        return [one.number for one in self._lines.upcoming(most)]

    # ---- events ----------------------------------------------------------------------------------------------------

    def offer(
        self, one: QueuedRequest, running: int, now: float, is_open: bool = True, slots: ConcurrencyLedger | None = None
    ) -> AdmissionDecision:
        """Queue an arriving request, or refuse it.

        Args:
            running: sequences in the pools.
            is_open: whether an instance can start it; otherwise it waits for one.
            slots: slots of the instances; None = the configured number.
        Returns: accepted: it waits, and a later `take` returns it. A refusal has the time after which to retry.
        Effects: enqueues it, or reserves capacity for its retry.
        """
        if not is_open:  # without an instance, the wait is no measure of how fast the queue drains
            self._waited_from = None
        self._set_limits(slots)
        self._reservations.expire(now)
        if self._limits.by_job:
            one = replace(one, due=self._jobs.due(one.key, one.session, now))
        claimed = self._reservations.claim(one.mark, now)
        waits = len(self._lines)
        if is_open and not waits and self._fits(one, running, slots):
            self._add(one, now)
            return AdmissionDecision(True, "starts at once")
        refusal = self._bounds(one, claimed, now) or (self._too_late(one, now) if waits else None)
        if refusal is not None:
            return refusal
        self._add(one, now)
        if is_open and self._waited_from is None:
            self._waited_from = now
        return AdmissionDecision(True, f"{waits} requests, {self.tokens - one.tokens} tokens wait")

    def take(self, running: int, now: float, slots: ConcurrencyLedger | None = None) -> int | None:
        """The next request to start now. Call it until it returns None, and only while an instance is available.

        Args:
            running, slots: as in `offer`.
        Returns: number of the request, which no longer waits; None if no request may start.
        """
        self._set_limits(slots)
        held = None if slots is None or not running or not self._limits.shared else slots.held
        one = self._lines.next(held)
        if self._waited_from is not None:
            self._rate.waited(max(0.0, now - self._waited_from))
            self._waited_from = now
        if one is None or not self._fits(one, running, slots):
            self._waited_from = now if self._lines else None
            return None
        queued = self._waited_from is not None
        self._lines.start(one)
        self._rate.started(one.sequences, one.tokens, queued=queued)
        del self._since[one.number]
        if not self._lines:
            self._waited_from = None
        return one.number

    def finished(self, residence_s: float) -> None:
        """Note that a sequence left the pools after this time."""
        self._rate.finished(residence_s)

    def withdraw(self, number: int) -> bool:
        """Remove a waiting request. Returns: False if it did not wait."""
        self._since.pop(number, None)
        found = self._lines.remove(number) is not None
        if not self._lines:
            self._waited_from = None
        return found

    def overdue(self, now: float, before: float | None = None) -> tuple[int, ...]:
        """Remove and return the requests whose deadline has passed.

        Args:
            before: also remove those that have waited since before this time, because no instance is available.
        """
        gone = []
        if before is not None:
            self._waited_from = None
        while self._deadlines and self._deadlines[0][0] < now:
            _, number = heappop(self._deadlines)
            if self.withdraw(number):
                gone.append(number)
        while before is not None and (oldest := self.oldest_since) is not None and oldest < before:
            gone.append(next(iter(self._since)))
            self.withdraw(gone[-1])
        return tuple(gone)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def _fits(self, one: QueuedRequest, running: int, slots: ConcurrencyLedger | None) -> bool:
        """Whether the request fits the free slots; on idle pools even the largest fits."""
        if not running:
            return True
        if running + one.sequences > self._limits.max_running_sequences:
            return False
        return slots is None or not (slots.held(one) or slots.full(one))

    def _set_limits(self, slots: ConcurrencyLedger | None) -> None:
        """Update the number of slots and places."""
        limits, most = self._limits, None if slots is None else slots.most
        may_run = limits.max_running_sequences if most is None else min(most, limits.max_running_sequences)
        self._rate.slots = may_run
        self._places = limits.max_queued_requests + limits.max_running_sequences - may_run

    def _add(self, one: QueuedRequest, now: float) -> None:
        self._lines.add(one)
        self._since[one.number] = now
        heappush(self._deadlines, (one.deadline, one.number))
        if len(self._deadlines) > 2 * len(self._lines) + 64:
            self._deadlines = sorted([entry for entry in self._deadlines if entry[1] in self._since])

    def _bounds(self, one: QueuedRequest, claimed: bool, now: float) -> AdmissionDecision | None:
        """The refusal of a request beyond the limits; None if it fits.

        An empty queue refuses no request: otherwise a limit of 1 would refuse all.
        """
        if not self._lines and self._places:
            return None
        requests, tokens = self._excess(one, reserved=False)
        if requests > 0 or tokens > 0:
            reason = self._in_words(one, requests)
        elif not claimed and self._kept_for_others(one):
            reason = self._promised_in_words(one)
        else:
            return None
        return AdmissionDecision(False, reason, self._retry_s(one, now))

    def _excess(self, one: QueuedRequest, *, reserved: bool) -> tuple[int, int]:
        """Requests and prompt tokens by which it would exceed the limits; less than 1 = it fits.

        If keys share the queue, a key may have as many requests waiting as there are free places. So each of its own
        requests counts twice, and capacity reserved for other keys does not count.

        Args:
            reserved: also count the requests for which capacity is reserved.
        """
        limits, reservations, lines, room = self._limits, self._reservations, self._lines, self._room_for(one)
        if limits.shared:
            (own, own_tokens), (due, due_tokens) = lines.of(one.key), reservations.of(one.key) if reserved else (0, 0)
            more, more_tokens = max(1, own + 2 * due), max(room, own_tokens + 2 * due_tokens)
        else:
            due, due_tokens = (reservations.requests, reservations.tokens) if reserved else (0, 0)
            more, more_tokens = 1 + due, room + due_tokens
        return len(lines) + more - self._places, self.tokens + more_tokens - limits.max_queued_tokens

    def _room_for(self, one: QueuedRequest) -> int:
        """Prompt tokens that must be free before it may wait.

        A request that needs the whole limit would never find it free while others keep arriving; half of the limit does
        become free when reserved. So one such request may exceed it; no other is queued until the queue has drained.
        """
        return min(one.tokens, max(1, self._limits.max_queued_tokens // 2))

    def _in_words(self, one: QueuedRequest, requests: int) -> str:
        """Reason for the refusal: the excess requests, or else the excess tokens."""
        limits, waits, tokens = self._limits, len(self._lines), self.tokens
        own, own_tokens = self._lines.of(one.key)
        if requests > 0:
            places = self._places - waits
            if places < 1:
                return f"{waits} requests are queued, the limit is {self._places}"
            return f"{own} requests of the key are queued, {places} places are left for all keys"
        room = limits.max_queued_tokens - tokens
        if self._room_for(one) > room:
            return f"{tokens} prompt tokens are queued, the limit is {limits.max_queued_tokens}"
        return f"{own_tokens} prompt tokens of the key are queued, {room} more fit for all keys"

    def _promised_in_words(self, one: QueuedRequest) -> str:
        limits, reservations = self._limits, self._reservations
        if self._excess(one, reserved=True)[0] > 0:
            reserved = f"{reservations.requests} were given a Retry-After, the limit is {self._places}"
            return f"{len(self._lines)} requests are queued and {reserved}"
        reserved = f"{reservations.tokens} were given a Retry-After, the limit is {limits.max_queued_tokens}"
        return f"{self.tokens} prompt tokens are queued and {reserved}"

    def _kept_for_others(self, one: QueuedRequest) -> bool:
        """Whether the remaining capacity is reserved for clients that were given a Retry-After.

        False while the queue is about to run empty: such clients may never retry, and repeated requests obtain one
        reservation after the other; neither may leave slots idle.
        """
        dry = min(self._places / 2, self._rate.requests_per_s * DRY_S)
        return len(self._lines) + 1 > dry and max(self._excess(one, reserved=True)) > 0

    def _too_late(self, one: QueuedRequest, now: float) -> AdmissionDecision | None:
        """Refuse a request that could not start before its deadline at the measured rate."""
        if not self._rate.measured or self._rate.tokens_per_s <= 0:
            return None
        own = self._lines.ahead(one)
        ahead = min(float(self.tokens), own / self._lines.share(one.key, one.weight))
        late_s = ahead / self._rate.tokens_per_s - (one.deadline - now)
        if late_s <= 0:
            return None
        left, rate = one.deadline - now, self._rate.tokens_per_s
        before = f"{round(ahead)} prompt tokens are before it at {rate:.0f}/s"
        reason = f"it could not start before its deadline: {before}, {max(0.0, left):.1f} s are left"
        return AdmissionDecision(False, reason, min(MAX_RETRY_S, max(1.0, float(ceil(late_s)))))

    def _retry_s(self, one: QueuedRequest, now: float) -> float:
        """Seconds until it fits, after all earlier reservations. Effects: reserves that capacity."""
        reservations, rate = self._reservations, self._rate
        requests, tokens = self._excess(one, reserved=True)
        tokens = min(tokens, self.tokens + reservations.tokens)
        if rate.requests_per_s <= 0:
            return float(UNKNOWN_RETRY_S)
        starts = float(max(requests, 1))
        if tokens > 0 and rate.tokens_per_s > 0:
            starts = max(starts, tokens / rate.tokens_per_s * rate.requests_per_s)
        reserved = float(ceil(max(1.0, (starts + CAUTION * sqrt(starts)) / rate.requests_per_s)))
        if reserved > MAX_RETRY_S:
            return MAX_RETRY_S
        reservations.book(one.mark, Reservation(now + reserved, self._room_for(one), one.key))
        return reserved

    def check(self) -> None:
        """Check that all ledgers agree.

        Raises: LedgerError if they do not.
        """
        self._lines.check()
        if {one.number for one in self._lines} != set(self._since):
            raise LedgerError("waiting times do not match the queued requests")
        if not set(self._since) <= {number for _, number in self._deadlines}:
            raise LedgerError("a queued request has no deadline")
        self._reservations.check()


# Rate at which a gateway's queue drains.
#
# Measured by the starts while requests wait: waiting requests will see that rate, whatever limits it. Until a queue has
# existed for long enough, Little's law is used instead: number of slots, and time for which each is occupied.

HALF_LIFE_S = 20.0
"""Time of waiting queues after which a start counts half."""
ENOUGH_STARTS = 5.0
"""Starts from which a rate counts as known."""
_RESIDENCE_SHARE = 0.1
"""Weight of the latest sequence in the mean time that a slot is occupied."""


@dataclass(slots=True)
class DrainRate:
    """Starts per second from a queue that never runs empty."""

    slots: int
    """Sequences that may run concurrently."""
    starts: float = 0.0
    """Decayed sum, like the next two."""
    tokens: float = 0.0
    seconds: float = 0.0
    residence_s: float = 0.0
    """Mean time that a sequence occupies its place; 0 = unknown."""
    slots_per_start: float = 1.0
    tokens_per_start: float = 0.0

    def waited(self, seconds: float) -> None:
        """Note a wait without a start. Effects: earlier starts count less."""
        keep = 0.5 ** (seconds / HALF_LIFE_S)
        self.starts *= keep
        self.tokens *= keep
        self.seconds = self.seconds * keep + seconds

    def started(self, sequences: int, tokens: int, *, queued: bool) -> None:
        """Note a request's start. `queued`: it had to wait."""
        self.slots_per_start += _RESIDENCE_SHARE * (sequences - self.slots_per_start)
        self.tokens_per_start += (_RESIDENCE_SHARE if self.tokens_per_start else 1.0) * (tokens - self.tokens_per_start)
        if queued:
            self.starts += 1
            self.tokens += tokens

    def finished(self, residence_s: float) -> None:
        """Note that a slot was occupied for this time."""
        share = _RESIDENCE_SHARE if self.residence_s else 1.0
        self.residence_s += share * (residence_s - self.residence_s)

    @property
    def measured(self) -> bool:
        """Whether the rates were measured on a queue."""
        return self.starts >= ENOUGH_STARTS and self.seconds > 0

    @property
    def requests_per_s(self) -> float:
        """Requests that start per second; 0 = unknown."""
        if self.measured:
            return self.starts / self.seconds
        return self.slots / self.residence_s / self.slots_per_start if self.residence_s > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens started per second; 0 = unknown."""
        return self.tokens / self.seconds if self.measured else self.requests_per_s * self.tokens_per_start
