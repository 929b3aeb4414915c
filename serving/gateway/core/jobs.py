"""A job in progress at its gateway, and its sequences."""

from serving.gateway.core.journal_commands import Need
from serving.gateway.core.request_journal import SequenceJournal
from serving.values.jobs import GenerationJob
from serving.values.news import FailKind, News, Prefilled, Refused, Tokens


class Choice:
    """One sequence of a job.

    Attributes:
        need: what it waits for while there is no instance, or while all are full.
        look_at: when to retry [s].
        waiting_since: start of its time without an instance; None while it has one, or while all are full.
        told: whether any of its output was delivered.
        preempted: number of preemptions that instances reported.
        waited_s: queueing time at the instance that computed its prompt [s].
    """

    __slots__ = ("index", "job", "journal", "look_at", "need", "preempted", "told", "waited_s", "waiting_since")

    def __init__(self, job: "Job", index: int, journal: SequenceJournal) -> None:
        self.job = job
        self.index = index
        self.journal = journal
        self.need: Need | None = None
        self.look_at = 0.0
        self.waiting_since: float | None = None
        self.told = False
        self.waited_s = 0.0
        self.preempted = 0


class Job:
    """One accepted job.

    Attributes:
        started: when it left the queue [s].
        tokens: known tokens of all its sequences.
        retry_after_s: shortest Retry-After of a full instance.
    """

    __slots__ = ("choices", "closed", "number", "retry_after_s", "started", "submitted", "tokens", "work")

    def __init__(self, number: int, work: GenerationJob, now: float) -> None:
        self.number = number
        self.work = work
        self.choices: tuple[Choice, ...] = ()
        self.tokens = sum([len(s.prompt) + len(s.output) for s in work.sequences])
        self.submitted = self.started = now
        self.closed = False
        self.retry_after_s: float | None = None

    @property
    def begun(self) -> bool:
        """Whether any output of the request was delivered."""
        for choice in self.choices:
            if choice.told:
                return True
        return False

    @property
    def stuck(self) -> bool:
        """Whether the request waits for an instance, and has no output yet."""
        return not self.begun and any(choice.need is not None for choice in self.choices)

    def note(self, choice: Choice, news: News) -> None:
        """Record event data other than output: time in the instance's queue, and a full instance's Retry-After."""
        first = news.first if type(news) is Prefilled else news
        if type(first) is Tokens:
            choice.preempted += first.preempted
            if first.waited_s is not None and not choice.told:
                choice.waited_s = first.waited_s
        elif type(first) is Refused and first.kind is FailKind.OVERLOADED:
            told = self.retry_after_s
            self.retry_after_s = first.retry_after_s if told is None else min(told, first.retry_after_s)
