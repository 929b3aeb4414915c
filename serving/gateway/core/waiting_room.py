"""Jobs that wait to start at one gateway: an `AdmissionQueue`, with the jobs themselves."""

from collections.abc import Callable
from math import inf, nextafter
from zlib import crc32

from msgspec.structs import replace

from serving.gateway.core.admission_queue import AdmissionQueue
from serving.gateway.core.concurrency import ConcurrencyLedger, PoolSlots
from serving.gateway.core.gateway_admission import AdmissionDecision, AdmissionLimits, QueuedRequest
from serving.gateway.core.instances import RESERVE_TOKENS
from serving.gateway.core.journal_commands import Need
from serving.gateway.core.request_journal import SequenceJournal
from serving.gateway.core.settings import GatewaySettings
from serving.ids import BlockHash, SequenceId
from serving.values.jobs import Fail, GenerationJob
from serving.values.news import FailKind, News, Prefilled, Refused, Tokens
from serving.values.sequence import BACKGROUND_PRIORITY, SequenceSpec

# A job in progress at its gateway, and its sequences.


class Choice:
    """One sequence of a job.

    Attributes:
        need: what it waits for while there is no instance, or while all are full.
        look_at: when to retry [s].
        waiting_since: start of its time without an instance; None while it has one, or while all are full.
        delivered: whether any of its output was delivered.
        preempted: number of preemptions that instances reported.
        masked: tokens that they computed while experts were masked.
        waited_s: queueing time at the instance that computed its prompt [s].
    """

    __slots__ = (
        *("delivered", "index", "job", "journal", "look_at", "masked", "need", "preempted", "waited_s"),
        "waiting_since",
    )

    def __init__(self, job: "Job", index: int, journal: SequenceJournal) -> None:
        self.job = job
        self.index = index
        self.journal = journal
        self.need: Need | None = None
        self.look_at = 0.0
        self.waiting_since: float | None = None
        self.delivered = False
        self.waited_s = 0.0
        self.preempted = 0
        self.masked = 0


class Job:
    """One accepted job.

    Attributes:
        started: when it left the queue [s].
        tokens: known tokens of all its sequences.
        retry_after_s: shortest Retry-After of a full instance.
        prefetched: whether its prefixes were named to the memory servers.
    """

    __slots__ = ("choices", "closed", "number", "prefetched", "retry_after_s", "started", "submitted", "tokens", "work")

    def __init__(self, number: int, work: GenerationJob, now: float) -> None:
        self.number = number
        self.work = work
        self.choices: tuple[Choice, ...] = ()
        self.tokens = sum([len(s.prompt) + len(s.output) for s in work.sequences])
        self.submitted = self.started = now
        self.closed = self.prefetched = False
        self.retry_after_s: float | None = None

    @property
    def begun(self) -> bool:
        """Whether any output of the request was delivered."""
        for choice in self.choices:
            if choice.delivered:
                return True
        return False

    @property
    def longest_prompt(self) -> int:
        """Tokens of its longest prompt."""
        return max([len(spec.prompt) for spec in self.work.sequences])

    @property
    def stuck(self) -> bool:
        """Whether the request waits for an instance, and has no output yet."""
        return not self.begun and any(choice.need is not None for choice in self.choices)

    def note(self, choice: Choice, news: News) -> None:
        """Record event data other than output: time in the instance's queue, and a full instance's Retry-After."""
        first = news.first if type(news) is Prefilled else news
        if type(first) is Tokens:
            choice.preempted += first.preempted
            choice.masked += first.masked
            if first.waited_s is not None and not choice.delivered:
                choice.waited_s = first.waited_s
        elif type(first) is Refused and first.kind is FailKind.OVERLOADED:
            retry_s = self.retry_after_s
            self.retry_after_s = first.retry_after_s if retry_s is None else min(retry_s, first.retry_after_s)


def opened(
    job: Job, settings: GatewaySettings, hashes: Callable[[SequenceSpec], tuple[BlockHash, ...]], now: float
) -> tuple[Choice, ...]:
    """The sequences of a job that is accepted, each with a journal.

    Args:
        hashes: computes a prompt's hashes, if they are needed.
    """
    specs = job.work.sequences
    hashed = {id(spec.prompt): hashes(spec) for spec in specs}  # choices of a prompt share it
    choices = []
    for place, spec in enumerate(specs):
        # The client's request id need not be unique; this one is, in the whole cluster.
        own = replace(
            spec,
            sequence_id=SequenceId(f"{settings.name}-{job.number}/{place}"),
            prompt_hashes=hashed[id(spec.prompt)],
            line=settings.limits.line(job.work.key, spec.priority),
        )
        choices.append(Choice(job, place, SequenceJournal(own, now, settings.max_attempts)))
    return tuple(choices)


# Jobs that wait to start at one gateway: an `AdmissionQueue`, with the jobs themselves.

_LATE = Fail(FailKind.DEADLINE, "the request's time is over, it was still waiting for its turn")


class WaitingRoom:
    """Jobs before their start; every job passes through it, even one that starts at once.

    Args:
        queue: makes the decisions; must be unused.
        role_wait_s: how long a job waits while there is no instance at all [s].
        pools: returns what the instances can run now; called only if requests wait here rather than there.
    """

    def __init__(self, queue: AdmissionQueue, role_wait_s: float, pools: Callable[[float], PoolSlots | None]) -> None:
        self._queue = queue
        self._pools = pools
        self._counts = queue.limits.at_gateway
        """Whether it counts what the instances can run."""
        self._ledger = ConcurrencyLedger(shared=queue.limits.shared)
        self._role_wait_s = role_wait_s
        self._waiting: dict[int, Job] = {}
        self._closed_since: float | None = None
        """Time since which there is no instance."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """Known tokens of all waiting jobs."""
        return self._queue.tokens

    @property
    def oldest_since(self) -> float | None:
        """Start of the oldest job's wait; None if no job waits."""
        return self._queue.oldest_since

    def apply(self, number: int, job: GenerationJob, running: int, now: float, is_open: bool) -> AdmissionDecision:
        """Request a place for a job; on success call `enter` immediately.

        Args:
            number: of the job; increasing. running: sequences in the pools. is_open: an instance is available.
        """
        return self._queue.offer(queued_request(number, job, now), running, now, is_open, self._look(running, now))

    def enter(self, job: Job) -> None:
        """Add the job that was just given a place."""
        self._waiting[job.number] = job

    def configure(self, limits: AdmissionLimits, role_wait_s: float) -> None:
        """Apply other limits; waiting jobs are kept."""
        self._queue.configure(limits)
        self._counts = limits.at_gateway
        self._ledger.shared = limits.shared
        self._role_wait_s = role_wait_s

    def find(self, number: int) -> Job | None:
        return self._waiting.get(number)

    def upcoming(self, most: int) -> list[Job]:
        """About the next jobs to start."""
        return [self._waiting[number] for number in self._queue.upcoming(most)]

    def next(self, running: int, now: float) -> Job | None:
        """Take the job that starts now; call only while an instance is available."""
        number = self._queue.take(running, now, self._look(running, now))
        if number is None:
            return None
        job = self._waiting.pop(number)
        if self._counts:
            for choice in job.choices:
                spec, key = choice.journal.spec, job.work.key
                expected = min(spec.sampling.max_tokens, RESERVE_TOKENS)
                self._ledger.start(spec.sequence_id, key, len(spec.prompt) + len(spec.output), expected, now)
        return job

    def _look(self, running: int, now: float) -> ConcurrencyLedger | None:
        if not self._counts:
            return None
        self._ledger.update(self._pools(now), running, now)
        return self._ledger

    def all(self) -> tuple[Job, ...]:
        return tuple(self._waiting.values())

    def leave(self, job: Job) -> None:
        """Remove a job that ended before it started."""
        if self._waiting.pop(job.number, None) is not None:
            self._queue.withdraw(job.number)

    @property
    def may_go_on(self) -> bool:
        """Whether a computed prompt has freed a slot for a waiting job."""
        return self._ledger.freed and len(self._waiting) > 0

    def computed(self, choice: Choice, cached_tokens: int, now: float) -> None:
        """Note that the prompt of a sequence is computed."""
        if self._counts:
            self._ledger.computed(choice.journal.spec.sequence_id, cached_tokens, now)

    def placed(self, choice: Choice) -> None:
        """Note that a sequence's KV is reserved at the generating instance."""
        if self._counts:
            self._ledger.placed(choice.journal.spec.sequence_id)

    def finished(self, choice: Choice, now: float) -> None:
        """Note that a sequence of a started job has finished."""
        self._queue.finished(now - choice.job.started)
        self._ledger.ended(choice.journal.spec.sequence_id, now)

    def overdue(self, now: float, is_open: bool) -> list[tuple[Job, Fail]]:
        """Remove and return the jobs that must not wait longer, with the reason: their deadline, or no instance."""
        self._closed_since = None if is_open else now if self._closed_since is None else self._closed_since
        if not self._waiting:
            return []
        gone = [(self._waiting.pop(number), _LATE) for number in self._queue.overdue(nextafter(now, inf))]
        if self._closed_since is not None:
            reason = f"no instance became available within {self._role_wait_s:g} s"
            long_enough = now - self._closed_since > self._role_wait_s
            for number in self._queue.overdue(now, now - self._role_wait_s if long_enough else 0.0):
                gone.append((self._waiting.pop(number), Fail(FailKind.UNAVAILABLE, reason)))
        return gone

    def check(self) -> None:
        """Check that queue and jobs agree. Raises: LedgerError if they do not."""
        self._queue.check()
        self._ledger.check()
        assert len(self._queue) == len(self._waiting), "a place without a job, or a job without a place"


def queued_request(number: int, job: GenerationJob, now: float) -> QueuedRequest:
    """The queue's view of a job, which has the priority of its most important sequence."""
    specs = job.sequences
    priority = min([spec.priority for spec in specs])
    return QueuedRequest(
        number=number,
        sequences=len(specs),
        tokens=sum([len(spec.prompt) + len(spec.output) for spec in specs]),
        expected_tokens=sum([min(spec.sampling.max_tokens, RESERVE_TOKENS) for spec in specs]),
        deadline=now + min([spec.time_left_s for spec in specs]),
        key=job.key if priority < BACKGROUND_PRIORITY else f"{job.key}/background",
        weight=job.weight,
        priority=priority,
        # Of integers only: the same in every process. With the key, since no client may claim another's reservation.
        session=job.session,
        mark=job.mark or hash((len(specs), specs[0].prompt, crc32(job.key.encode()))) & (2**63 - 1),
    )
