"""Accuracy of Retry-After: a gateway with concurrency limits in virtual time, and clients that honour it."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest
from msgspec import structs

from serving.gateway.core.admission_queue import AdmissionQueue, DrainRate
from serving.gateway.core.gateway_admission import AdmissionLimits, QueuedRequest

LIMITS = AdmissionLimits(max_queued_requests=64, max_queued_tokens=64_000, max_running_sequences=16)
FULL_S = 16 * 120.0
"""Seats over the two minutes of `overload`."""


@dataclass
class Door:
    """One gateway, its concurrency limits, and all clients."""

    rng: random.Random
    obedient: float = 1.0
    """Share of clients that come back at all."""
    late_s: float = 0.05
    """By how much clients are late at most."""
    queue: AdmissionQueue = field(default_factory=lambda: AdmissionQueue(LIMITS))
    now: float = 0.0
    running: int = 0
    retries: int = 0
    good_retries: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """By key."""
    let_in: set[int] = field(default_factory=set)
    """By mark."""
    finished: int = 0
    busy_s: float = 0.0
    """Seats, over time."""
    _events: list[tuple[float, int, Callable[[Any], None], Any]] = field(default_factory=list)
    _serial: int = 0

    def at(self, when: float, what: Callable[[Any], None], arg: object) -> None:
        self._serial += 1
        heappush(self._events, (when, self._serial, what, arg))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            when, _, what, arg = heappop(self._events)
            self.busy_s += self.running * (when - self.now)
            self.now = when
            what(arg)

    def arrive(self, before: QueuedRequest | str | None) -> None:
        """A client arrives: a retry or a new one, with or without a key."""
        self._serial += 1
        if isinstance(before, QueuedRequest):
            key, mark, tokens = before.key, before.mark, before.tokens
        else:
            key, mark, tokens = before or "", self._serial, self.rng.choice([100, 400, 1200])
        one = QueuedRequest(self._serial, 1, tokens, 100, self.now + 600.0, key=key, mark=mark)
        decision = self.queue.offer(one, self.running, self.now)
        self.retries += isinstance(before, QueuedRequest)
        if decision.accepted:
            self.let_in.add(mark)
            self.good_retries += isinstance(before, QueuedRequest)
            self.start_all()
            return
        self.refusals[key] += 1
        if self.rng.random() < self.obedient:
            self.at(self.now + decision.retry_after_s + self.rng.random() * self.late_s, self.arrive, one)

    def start_all(self) -> None:
        while self.queue.take(self.running, self.now) is not None:
            self.running += 1
            service_s = self.rng.lognormvariate(0.0, 0.6) * 2.0
            self.at(self.now + service_s, self.end, service_s)

    def end(self, service_s: float) -> None:
        self.running -= 1
        self.finished += 1
        self.queue.finished(service_s)
        self.start_all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("burst", [150, 300])
def test_after_a_burst_those_who_come_back_are_let_in(seed: int, burst: int) -> None:
    door = Door(random.Random(seed))
    for n in range(100):
        door.at(n * 0.2, door.arrive, None)  # an ordinary day: 5 a second, 7 could be served
    for n in range(burst):
        door.at(20.0 + n * 0.002, door.arrive, None)
    for n in range(200):
        door.at(20.0 + n * 0.4, door.arrive, None)
    door.run(1e9)
    assert door.finished == 300 + burst, "everybody was served in the end"
    assert door.retries > 50
    assert door.good_retries >= 0.9 * door.retries


def overload(**clients: Any) -> Door:
    """Load of 1.5 times the capacity, for two minutes."""
    door = Door(random.Random(0), **clients)
    for n in range(1200):
        door.at(n * 0.1, door.arrive, None)
    door.run(120.0)
    return door


def test_in_lasting_overload_too() -> None:
    door = overload()
    assert door.retries > 100
    assert door.good_retries >= 0.9 * door.retries
    assert door.busy_s >= 0.98 * FULL_S


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("of_bound", [1, 3])
def test_a_request_as_large_as_the_bound_has_its_turn_although_others_keep_coming(of_bound: int, shared: bool) -> None:
    limits = AdmissionLimits(1000, LIMITS.max_queued_tokens, LIMITS.max_running_sequences, shared)
    door = Door(random.Random(0), queue=AdmissionQueue(limits))
    for n in range(3000):
        door.at(n * 0.1, door.arrive, None)
    large = QueuedRequest(0, 1, of_bound * limits.max_queued_tokens, 100, 0.0, key="large", mark=-1)
    door.at(60.0, door.arrive, large)
    door.run(120.0)
    assert large.mark in door.let_in
    door.queue.check()


def test_room_for_clients_that_never_come_back_does_not_leave_seats_empty() -> None:
    door = overload(obedient=0.1)
    assert door.busy_s >= 0.98 * FULL_S
    assert door.good_retries >= 0.9 * door.retries


@pytest.mark.parametrize(("per_s", "obedient"), [(10, 1.0), (70, 1.0), (70, 0.1)])
def test_a_key_that_floods_the_gateway_keeps_no_other_out(per_s: int, obedient: float) -> None:
    door = Door(random.Random(0), obedient, queue=AdmissionQueue(structs.replace(LIMITS, shared=True)))
    for n in range(120 * per_s):
        door.at(n / per_s, door.arrive, "greedy")
    for n in range(10):
        door.at(30.0 + n * 9.0, door.arrive, "modest")
    door.run(120.0)
    assert door.refusals["greedy"] > 100
    assert door.refusals["modest"] == 0
    assert door.busy_s >= 0.98 * FULL_S


def test_what_keys_that_share_are_told_is_true_too() -> None:
    door = Door(random.Random(0), queue=AdmissionQueue(structs.replace(LIMITS, shared=True)))
    for n in range(1200):
        door.at(n * 0.1, door.arrive, "even" if n % 2 else "odd")
    door.run(120.0)
    assert door.retries > 100
    assert door.good_retries >= 0.9 * door.retries
    assert door.busy_s >= 0.98 * FULL_S


def test_a_drain_rate_begins_with_littles_law_and_then_is_measured() -> None:
    rate = DrainRate(slots=10)
    assert (rate.requests_per_s, rate.tokens_per_s, rate.measured) == (0.0, 0.0, False)
    rate.started(1, 100, queued=False)
    rate.finished(5.0)
    assert rate.requests_per_s == pytest.approx(10 / 5)
    assert rate.tokens_per_s == pytest.approx(200.0)
    for _ in range(40):
        rate.waited(0.25)
        rate.started(1, 100, queued=True)
    assert rate.measured
    assert rate.requests_per_s == pytest.approx(4.0, rel=0.05)
    assert rate.tokens_per_s == pytest.approx(400.0, rel=0.05)


def test_requests_of_several_sequences_take_several_seats() -> None:
    rate = DrainRate(slots=8)
    for _ in range(200):
        rate.started(4, 10, queued=False)
    rate.finished(2.0)
    assert rate.requests_per_s == pytest.approx(1.0, rel=0.01)
