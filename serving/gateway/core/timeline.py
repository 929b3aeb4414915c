"""Timelines of requests as values: consecutive parts from arrival to the last byte.

Each process measures its own parts on its own clock. The gateway's events delimit the parts; the time between two of
them is divided into the durations that instances reported, and the remainder is `NETWORK`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from serving.values.expert_map import NO_SESSIONS, SessionTimes

TOKENIZING = "tokenizing"
WAITING = "waiting for its turn"
ROUTING = "moving on"
RESUMING = "resuming elsewhere"
INSTANCE_QUEUE = "waiting at the instance"
STEP_WAIT = "waiting for a step"
POOL_GET = "pool lookup and get"
PREFILL = "prefill"
CHECKSUMS = "checksums of the handoff"
HANDOFF = "handoff"
DECODE = "decode steps"
OTHER_STEPS = "steps of other sequences"
BETWEEN = "between steps"
NETWORK = "network and waiting for frames"
NO_NEWS = "no news from the instance"
OTHER_CHOICES = "waiting for other choices"
WRITING = "writing the answer"

Outcome = Literal["stop", "length", "abort", "error"]


class TimePart(Struct, frozen=True, omit_defaults=True):
    """One part of a timeline.

    Args:
        start_s: since arrival [s].
        replica, host: where it was spent; empty = at the gateway.
        tokens: fed, found or sampled in it; frames: received in it.
        nbytes: KV moved; source: the host that sent it.
        predicted_s: duration on real NPUs [s]; 0 = unknown.
        sessions: of its steps, where a group of ranks computed them.
    """

    kind: str
    start_s: float
    seconds: float
    replica: str = ""
    host: str = ""
    tokens: int = 0
    frames: int = 0
    nbytes: int = 0
    source: str = ""
    predicted_s: float = 0.0
    sessions: SessionTimes = NO_SESSIONS


class ChoiceLine(Struct, frozen=True):
    """One choice. `parts` are consecutive and cover the whole request.

    Args:
        resumed: number of times it was resumed on another instance.
    """

    index: int
    parts: tuple[TimePart, ...]
    tokens: int
    resumed: int
    first_token_s: float | None


class Answered(Struct, frozen=True):
    """End of a request, recorded by its HTTP handler.

    Args:
        arrived, ended: by the gateway's clock [s].
        names: ids by which its client can look it up, the response's first.
        trace: header `traceparent` of the request; empty = none.
        cached_tokens: of its prompts, found in KV blocks; pulled_tokens: those of them that came from the pool.
    """

    arrived: float
    ended: float
    outcome: Outcome
    names: tuple[str, ...] = ()
    trace: str = ""
    cached_tokens: int = 0
    pulled_tokens: int = 0


class RequestTimes(Struct, frozen=True):
    """One finished request.

    Args:
        arrived: seconds since 1970, by the gateway's clock.
        total_s: from its arrival to its end [s].
        choices: the choices that finished last, the very last first.
        tokens, resumed: of all its choices together.
        reason: of a failure; empty = none.
        cause: the largest part, as a sentence.
        names: further ids by which it can be found.
        trace: the W3C trace context that its client sent; empty = none.
        first_token_s: from its arrival, of the choice that finished last; None = there was none.
        replicas: those that computed that choice, in order. cached_tokens, pulled_tokens: as `Answered`.
    """

    request_id: str
    namespace: str
    arrived: float
    total_s: float
    outcome: Outcome
    prompt_tokens: int
    choices: tuple[ChoiceLine, ...]
    tokens: int
    resumed: int
    cause: str
    reason: str = ""
    trace: str = ""
    names: tuple[str, ...] = ()
    first_token_s: float | None = None
    replicas: tuple[str, ...] = ()
    cached_tokens: int = 0
    pulled_tokens: int = 0

    @property
    def failed(self) -> bool:
        """Whether it got no complete response."""
        return self.outcome in ("abort", "error")


# One sentence for a timeline: the largest part of the request's time, and its meaning.

MEANINGS = {
    TOKENIZING: "reading, rendering and tokenizing the prompt; long prompts queue for the tokenizing threads",
    WAITING: "the gateway had no capacity for it: add instances, or raise [gateway] max_running_sequences",
    ROUTING: "the gateway was choosing an instance",
    RESUMING: "an instance was lost or refused it, and another had to take over",
    INSTANCE_QUEUE: "it was queued at its instance, for a place in a step or for KV blocks",
    STEP_WAIT: "it was ready, but steps of other sequences ran first",
    POOL_GET: "the prefix of its prompt was looked up in the KV-cache pool, and blocks were fetched from there",
    PREFILL: "its prompt was computed; a cached prefix would save most of that",
    CHECKSUMS: "checksums of its prompt's blocks were computed before the handoff",
    HANDOFF: "its KV blocks were transferred to the decode instance",
    DECODE: "each token takes a step, so longer outputs take longer",
    OTHER_STEPS: "its instance ran steps without it, such as prompts of others",
    BETWEEN: "its instance did not compute between steps: planning, or nothing to do",
    NETWORK: "outputs were in transit from the instance, or queued at the gateway",
    NO_NEWS: "its instance reported nothing until the end",
    OTHER_CHOICES: "it was done, but other choices of the request were not",
    WRITING: "the response was written to the client, which reads at its own pace",
}


def seconds_by_kind(parts: Sequence[TimePart]) -> dict[str, float]:
    """Seconds of a choice by kind of part, the largest first."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.kind] = sums.get(part.kind, 0.0) + part.seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def largest_cause(choices: Sequence[ChoiceLine], total_s: float) -> str:
    """The sentence about the choice that finished last."""
    if not choices or total_s <= 0.0:
        return ""
    slowest = min(choices, key=waited_for_others)
    kind, seconds = next(iter(seconds_by_kind(slowest.parts).items()), ("", 0.0))
    if not kind:
        return ""
    parts = [part for part in slowest.parts if part.kind == kind]
    predicted = sum(part.predicted_s for part in parts)
    beside = f"; real NPUs would have taken {_time(predicted)}" if predicted > 0.0 else ""
    where = " and ".join(sorted({part.host for part in parts if part.host})[:3])
    place = f" on {where}" if where else ""
    share = f"{100.0 * seconds / total_s:.0f} % of its {_time(total_s)}"
    return f"{kind}{place} took {_time(seconds)}, {share}: {MEANINGS.get(kind, kind)}{beside}."


def waited_for_others(choice: ChoiceLine) -> float:
    """Time from a choice's end to the end of the last choice [s]."""
    return sum(part.seconds for part in choice.parts if part.kind == OTHER_CHOICES)


def _time(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


# Timelines of past requests: a bounded number, of which the slowest, failed and resumed are kept longest.
#
# The capacity is divided into shelves for the latest, the slowest, the failed and the resumed requests. A request is
# kept on each shelf that it qualifies for, and is dropped when it is on none. Half of the shelf of the slowest is for
# the slowest of each past minute: an overload would otherwise displace the slow request of ten minutes ago.

MOST_ROWS = 1000
"""Latest requests that are listed."""
SLOW_PER_MINUTE = 2
"""Slowest requests kept of each past minute."""
Choose = Literal["newest", "slowest", "failed", "resumed"]


class TimelineShelf:
    """Keeps at most `room` timelines.

    Args:
        room: total capacity: a quarter each for the slowest, the failed and the resumed, the rest for the latest; 0 =
            none.
    """

    def __init__(self, room: int) -> None:
        part = room // 4
        self.room = room
        self._rows: deque[RequestTimes] = deque(maxlen=MOST_ROWS if room else 0)
        self._newest: deque[RequestTimes] = deque(maxlen=room - 3 * part)
        self._failed: deque[RequestTimes] = deque(maxlen=part)
        self._resumed: deque[RequestTimes] = deque(maxlen=part)
        self._slowest: list[RequestTimes] = []
        self._most_slow = part - part // 2
        self._of_minute: list[RequestTimes] = []
        self._most_of_minute = min(SLOW_PER_MINUTE, part // 2)
        self._of_past_minutes: deque[RequestTimes] = deque(maxlen=part // 2 - self._most_of_minute)
        self._minute = 0

    def add(self, times: RequestTimes) -> None:
        """Keep a timeline. Effects: may drop others."""
        self._rows.append(replace(times, choices=()))
        self._newest.append(times)
        if times.failed:
            self._failed.append(times)
        if times.resumed:
            self._resumed.append(times)
        self._keep_slow(times)

    def _keep_slow(self, times: RequestTimes) -> None:
        minute = int((times.arrived + times.total_s) // 60)
        if minute != self._minute:
            self._of_past_minutes.extend(self._of_minute)
            self._of_minute, self._minute = [], minute
        _insert(self._slowest, times, self._most_slow)
        _insert(self._of_minute, times, self._most_of_minute)

    def __iter__(self) -> Iterator[RequestTimes]:
        seen: set[int] = set()
        for shelf in self._shelves():
            for times in shelf:
                if id(times) not in seen:
                    seen.add(id(times))
                    yield times

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _shelves(self) -> tuple[Iterable[RequestTimes], ...]:
        slow = (self._slowest, self._of_minute, self._of_past_minutes)
        return (self._newest, *slow, self._failed, self._resumed)

    def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """The latest request of that id, or None.

        Args:
            namespace: of the requesting tenant; None = all tenants.
        """
        found = [times for times in self if request_id in times.names and namespace in (None, times.namespace)]
        return max(found, key=lambda times: times.arrived, default=None)

    def choose(self, which: Choose, limit: int, namespace: str | None) -> list[RequestTimes]:
        """Requests by a criterion: latest or slowest first, or only the failed or the resumed, latest first.

        The latest are listed without their choices, and longer than their timelines are kept.
        """
        found = self._rows if which == "newest" else self
        return chosen((times for times in found if namespace in (None, times.namespace)), which, limit)


def _insert(slowest: list[RequestTimes], times: RequestTimes, most: int) -> None:
    """Keep a request among the slowest, slowest first."""
    slowest.append(times)
    slowest.sort(key=lambda one: -one.total_s)
    del slowest[most:]


def chosen(found: Iterable[RequestTimes], which: Choose, limit: int) -> list[RequestTimes]:
    """The first `limit` requests by a criterion, see `TimelineShelf.choose`."""
    if which == "slowest":
        return sorted(found, key=lambda times: -times.total_s)[:limit]
    wanted = [
        times
        for times in found
        if which == "newest" or (which == "failed" and times.failed) or (which == "resumed" and times.resumed)
    ]
    return sorted(wanted, key=lambda times: -times.arrived)[:limit]
