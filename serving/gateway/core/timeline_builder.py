"""Builds a request's timeline from the gateway's events and the durations that instances report.

    gateway    arrived │ submitted │ Add sent ··············· first token │ Adopt sent ···· token · token · token │ over
    instance                          queue, get, prefill ...               handoff, decode   step   step   step

A gap between two gateway events is filled with the durations reported with the second one; the rest of the gap is
network time, or events that waited for a frame. If clocks of different speed make the durations exceed the gap, they
are scaled down in proportion: parts always sum to the gap.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from serving.gateway.core import timeline as t
from serving.gateway.core.timeline import largest_cause, waited_for_others
from serving.values import visit_times as c
from serving.values.expert_map import NO_SESSIONS
from serving.values.jobs import GenerationJob
from serving.values.visit_times import Leg, StepTime, VisitTimes

KINDS = {
    c.QUEUE: t.INSTANCE_QUEUE,
    c.WAIT: t.STEP_WAIT,
    c.POOL_GET: t.POOL_GET,
    c.PREFILL: t.PREFILL,
    c.CHECKSUMS: t.CHECKSUMS,
    c.HANDOFF: t.HANDOFF,
    c.DECODE: t.DECODE,
}
MOST_RUNS = 24
"""Runs of decode steps of one choice; beyond that, neighbours are merged in pairs, and later runs are longer."""
FIRST_RUN = 32
"""Initial number of frames in a run."""
MOST_CHOICES = 8
"""Choices stored per request, those that finished last, to limit the memory of one with hundreds of choices."""
MOST_PARTS = 400
"""Parts stored per choice. Beyond that, e.g. after many resumptions, parts are summed by kind."""


class _Run:
    """Decode steps at one instance, from one token's arrival to a later one's; totals only."""

    __slots__ = ("begun", "ended", "first", "frames", "last", "own_s", "predicted_s", "sessions", "tokens")

    def __init__(self, begun: float, first: StepTime | None) -> None:
        self.begun = self.ended = begun
        self.first = self.last = first
        self.frames = self.tokens = 0
        self.own_s = self.predicted_s = 0.0
        self.sessions = NO_SESSIONS


class ChoiceBuilder:
    """One choice of a running request. Times are the gateway's [s].

    Args:
        submitted: when the request was submitted to the gateway's core.
    """

    __slots__ = (
        *(
            "_ended",
            "_heard",
            "_host",
            "_legs",
            "_limit",
            "_mark",
            "_parts",
            "_replica",
            "_run",
            "_sent",
            "_source",
            "_start",
        ),
        *("first_at", "resumed", "tokens"),
    )

    def __init__(self, submitted: float) -> None:
        self._start = self._mark = submitted
        self._parts: list[t.TimePart] = []
        self._legs: list[Leg] = []
        self._source = self._replica = self._host = ""
        self._ended = self._sent = self._heard = False
        """Whether its last event has arrived; whether it was sent to an instance, and whether that has reported any
        event.
        """
        self._run: _Run | None = None
        self._limit = FIRST_RUN
        self.first_at: float | None = None
        self.tokens = 0
        self.resumed = 0

    def sent(self, now: float, replica: str, host: str, *, handoff: bool) -> None:
        """Note that the sequence is sent to an instance.

        Args:
            handoff: whether the instance adopts KV from another one instead of computing it.
        """
        again = self._sent and not (handoff and self._heard)
        self._close_run()
        self._add(t.RESUMING if again else t.ROUTING if self._sent else t.WAITING, now)
        self._sent, self._heard = True, False
        self.resumed += again
        self._legs = []
        self._replica, self._host, self._source = replica, host, ""

    def add_visit(self, course: VisitTimes, source: str) -> None:
        """Note durations reported with the next event. `source`: host of a handoff."""
        self._legs += course.legs
        self._source = source

    def news(self, now: float, tokens: int, step: StepTime | None, *, last: bool = False) -> None:
        """Note tokens, or an end, from the instance."""
        self._heard = True
        self._ended = self._ended or last
        if tokens and self.first_at is None:
            self.first_at = now
        self.tokens += tokens
        run = self._run
        if run is None or self._legs:
            self._close_run()
            self._lay(now, [*self._legs], tokens)
            self._legs = []
            self._run = _Run(now, step)
            return
        run.ended = now
        run.frames += 1
        run.tokens += tokens
        if step is not None:
            run.last = step
            run.own_s += step.step_s
            run.predicted_s += step.predicted_s
            run.sessions += step.sessions
        if run.frames >= self._limit:
            self._close_run()
            self._run = _Run(now, step)

    def end(self, index: int, before_s: float, now: float, over: float) -> t.ChoiceLine:
        """Finish and return the timeline of the choice. Do not report further events after this call.

        Args:
            before_s: from the request's arrival to its submission to the gateway's core [s].
            now: when the core had finished all choices; over: when the request ended.
        """
        self._close_run()
        if self._mark < now:
            self._add(t.OTHER_CHOICES if self._ended else t.NO_NEWS if self._sent else t.WAITING, now)
        self._add(t.WRITING, over)
        parts = [replace(part, start_s=part.start_s + before_s) for part in self._parts]
        if before_s > 0.0:
            parts.insert(0, t.TimePart(t.TOKENIZING, 0.0, before_s))
        first = None if self.first_at is None else self.first_at - self._start + before_s
        return t.ChoiceLine(index, tuple(parts), self.tokens, self.resumed, first)

    def _add(self, kind: str, until: float) -> None:
        """Append a part that ends at `until`, unless it would be empty."""
        if until > self._mark:
            at_instance = kind in (t.NETWORK, t.NO_NEWS)
            replica, host = (self._replica, self._host) if at_instance else ("", "")
            self._put(t.TimePart(kind, self._mark - self._start, until - self._mark, replica, host))
            self._mark = until

    def _put(self, part: t.TimePart) -> None:
        self._parts.append(part)

    def _lay(self, now: float, legs: Sequence[Leg], tokens: int) -> None:
        """Fill the time from the mark to now with an instance's durations, and the network."""
        gap = now - self._mark
        legs_s = sum(leg.seconds for leg in legs)
        scale = 1.0 if legs_s <= gap else gap / legs_s if legs_s else 0.0
        at = self._mark
        for index, leg in enumerate(legs):
            kind = KINDS.get(leg.kind, leg.kind)
            frames = 1 if index == len(legs) - 1 else 0
            self._put(
                t.TimePart(
                    kind,
                    at - self._start,
                    leg.seconds * scale,
                    self._replica,
                    self._host,
                    leg.tokens,
                    frames if tokens else 0,
                    leg.nbytes,
                    self._source if kind == t.HANDOFF else "",
                    leg.predicted_s,
                )
            )
            at += leg.seconds * scale
        self._mark = at
        self._add(t.NETWORK, now)
        self._mark = max(self._mark, now)

    def _close_run(self) -> None:
        """Convert the run to parts: own steps, those of others, between steps, and the network."""
        run, self._run = self._run, None
        if run is None or not run.frames:
            return
        gap = run.ended - run.begun
        clock = busy = run.own_s
        if run.first is not None and run.last is not None:
            clock = max(0.0, run.last.at_s - run.first.at_s)
            busy = min(clock, max(0.0, run.last.busy_s - run.first.busy_s))
        own = min(run.own_s, busy)
        scale = 1.0 if clock <= gap else gap / clock
        at = self._mark
        pieces = ((t.DECODE, own), (t.OTHER_STEPS, busy - own), (t.BETWEEN, clock - busy))
        for kind, seconds in pieces:
            if seconds <= 0.0 and kind != t.DECODE:
                continue
            mine = kind == t.DECODE
            self._put(
                t.TimePart(
                    kind,
                    at - self._start,
                    seconds * scale,
                    self._replica,
                    self._host,
                    run.tokens if mine else 0,
                    run.frames if mine else 0,
                    predicted_s=run.predicted_s if mine else 0.0,
                    sessions=run.sessions if mine else NO_SESSIONS,
                )
            )
            at += seconds * scale
        self._mark = at
        self._add(t.NETWORK, run.ended)
        self._mark = max(self._mark, run.ended)
        self._limit = self._merge()

    def _merge(self) -> int:
        """Limit the number of runs. Returns: frames of the next one."""
        if len(self._parts) > MOST_PARTS:
            self._parts = _by_kind(self._parts)
        decodes = sum(part.kind == t.DECODE for part in self._parts)
        if decodes <= MOST_RUNS:
            return self._limit
        self._parts = _halved(self._parts)
        return self._limit * 2


def _halved(parts: list[t.TimePart]) -> list[t.TimePart]:
    """Merge pairs of neighbouring runs at one replica, each pair with its parts by kind. Sums are unchanged."""
    result: list[t.TimePart] = []
    group: list[t.TimePart] = []
    runs = 0
    for part in parts:
        decoding = part.kind in (t.DECODE, t.OTHER_STEPS, t.BETWEEN, t.NETWORK)
        if not decoding or (group and part.replica != group[0].replica):
            result += _by_kind(group)
            group, runs = [], 0
        if not decoding:
            result.append(part)
            continue
        if part.kind == t.DECODE:
            runs += 1
            if runs > 2:
                result += _by_kind(group)
                group, runs = [], 1
        group.append(part)
    return result + _by_kind(group)


def _by_kind(group: Sequence[t.TimePart]) -> list[t.TimePart]:
    if not group:
        return []
    at, sums = group[0].start_s, dict[str, t.TimePart]()
    for part in group:
        old = sums.get(part.kind)
        sums[part.kind] = part if old is None else joined(old, part)
    result = []
    for part in sums.values():
        result.append(replace(part, start_s=at))
        at += part.seconds
    return result


def joined(one: t.TimePart, other: t.TimePart) -> t.TimePart:
    """Two parts of one kind as one, in the position of the first."""
    return replace(
        one,
        seconds=one.seconds + other.seconds,
        tokens=one.tokens + other.tokens,
        frames=one.frames + other.frames,
        nbytes=one.nbytes + other.nbytes,
        predicted_s=one.predicted_s + other.predicted_s,
        sessions=one.sessions + other.sessions,
    )


class RequestBuilder:
    """A running request. Times are the gateway's [s]."""

    __slots__ = ("_arrived", "_choices", "_done", "_submitted", "job", "reason")

    def __init__(self, job: GenerationJob, submitted: float) -> None:
        self.job = job
        self.reason = ""
        """Reason of its failure."""
        self._done: float | None = None
        self._submitted = submitted
        self._choices = [ChoiceBuilder(submitted) for _ in job.sequences]

    def choice(self, index: int) -> ChoiceBuilder:
        return self._choices[index]

    def over(self, now: float) -> None:
        """Note that the gateway's core has finished the request; its response may still be in transit."""
        if self._done is None:
            self._done = now

    def times(self, answered: t.Answered, ended_at: float) -> t.RequestTimes:
        """The timelines. Call it once. `ended_at`: the end in seconds since 1970."""
        ended = answered.ended
        done = ended if self._done is None else min(self._done, ended)
        before = max(0.0, self._submitted - answered.arrived)
        lines = [choice.end(index, before, done, ended) for index, choice in enumerate(self._choices)]
        tokens, resumed = sum(line.tokens for line in lines), sum(line.resumed for line in lines)
        kept = tuple(sorted(lines, key=waited_for_others)[:MOST_CHOICES])
        total, job = ended - self._submitted + before, self.job
        return t.RequestTimes(
            request_id=answered.names[0] if answered.names else job.request_id,
            namespace=job.sequences[0].namespace,
            arrived=ended_at - total,
            total_s=total,
            outcome=answered.outcome,
            prompt_tokens=sum(len(spec.prompt) for spec in job.sequences),
            choices=kept,
            tokens=tokens,
            resumed=resumed,
            cause=largest_cause(kept, total),
            reason=self.reason,
            trace=answered.trace,
            names=(job.request_id, *answered.names),
            first_token_s=kept[0].first_token_s if kept else None,
            replicas=tuple(dict.fromkeys(part.replica for part in kept[0].parts if part.replica)) if kept else (),
            cached_tokens=answered.cached_tokens,
            pulled_tokens=answered.pulled_tokens,
        )
