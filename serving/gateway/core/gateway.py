"""One gateway as a state machine: admission, routing, and the journal of each sequence.

    Submit ──► waiting room ──► journals ──commands──► routes ──► Send
                                    ▲                               │ instances
               SequenceUpdate ◄─────┴────────── InstanceSays ◄──────┘

Each event is handled completely; `on` returns the effects to carry out, in order. Work that cannot start now, because
an instance is missing or all are full, is retried at `next_wake`. All waiting has a deadline: a job's own, or
`role_wait_s` for a job or a sequence without an instance. So a request may arrive before the first instance is up, or
while a pool is scaled to zero: the waiting request then wakes the pool.
"""

import math
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from serving.errors import UnavailableError
from serving.gateway.core.events import (
    Broken,
    CancelJob,
    Configure,
    EndAll,
    Expect,
    GatewayEffect,
    GatewayEvent,
    InstanceDown,
    InstanceSays,
    InstanceStatus,
    InstanceUp,
    JobFailed,
    JobOver,
    Look,
    Rejected,
    Routed,
    StopChoice,
    Submit,
    TooLarge,
    Unsent,
    Waits,
)
from serving.gateway.core.instances import Instances
from serving.gateway.core.journal_commands import LATER_S, AtSource, Need, NeedDecode, NeedPrefill, NeedTrial
from serving.gateway.core.prefetch_choice import prefetches
from serving.gateway.core.quarantine import Quarantine
from serving.gateway.core.request_journal import Commands, SequenceJournal
from serving.gateway.core.route_choice import Routes
from serving.gateway.core.settings import GatewaySettings
from serving.gateway.core.waiting_room import Choice, Job, WaitingRoom, opened
from serving.ids import ReplicaId, SequenceId
from serving.values.jobs import Fail, GenerationJob, SequenceUpdate
from serving.values.news import Adopted, FailKind, Leaving, News, Prefilled, Tokens
from serving.values.orders import Cancel, Release, Send

CHECK_PERIOD_S = 0.1
"""Polling period of the core while a request or sequence waits for an instance."""


class Gateway:
    """Accepts jobs and routes them through the pools."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.now = 0.0
        """Time of the last event [s]."""
        self.instances = Instances(settings.max_age_s)
        self.routes = Routes(self.instances, settings.pools, settings.block_tokens, settings.router())
        self.room = WaitingRoom(settings.queue(), settings.role_wait_s, self.routes.slots)
        self.choices: dict[SequenceId, Choice] = {}
        """Active sequences, by the base of their ids."""
        self._running: dict[int, Job] = {}
        self._quarantine = Quarantine(self.routes, self.choices)
        self._needy: dict[SequenceId, Choice] = {}
        """Sequences that wait for an instance, or for capacity on a full one."""
        self._deadlines: list[tuple[float, int]] = []
        self._coming = settings.coming
        self._letting_in = False
        self._looked_at = 0.0
        self._out: list[GatewayEffect] = []

    def on(self, event: GatewayEvent, now: float) -> list[GatewayEffect]:
        """Handle an event. Returns: effects to carry out, in order."""
        self.now = now
        if type(event) is InstanceSays:  # frequent events first, without class patterns, which are slow to fail
            self._on_instance_events(event.replica, event.news)
        elif type(event) is InstanceStatus:
            self.instances.report(event.replica, event.status, now)
            if event.status.draining:
                self.routes.decodes_nowhere(now)  # starts the time without a decode instance
        elif type(event) is Submit:
            self._submit(event.number, event.job)
        else:
            self._on_rarer(event, now)
        effects, self._out = self._out, []
        return effects

    def _on_rarer(self, event: GatewayEvent, now: float) -> None:
        match event:
            case Look():
                self._look()
            case StopChoice(number=number, index=index):
                self._stop(number, index)
            case CancelJob(number=number):
                if (job := self._running.get(number) or self.room.find(number)) is not None:
                    self._cancel(job)
            case InstanceUp():
                self.instances.up(event, now)
                self._quarantine.came(event.replica)
            case InstanceDown(replica=replica, still_since=still_since):
                self._lose(replica, still_since)
            case Unsent(replica=replica, sequence_id=sequence_id):
                self.instances.unreachable(replica)
                if (choice := self._sent_as(sequence_id)) is not None:
                    self._came_back(choice, choice.journal.unsent(replica))
            case TooLarge(sequence_id=sequence_id, reason=reason):
                if (choice := self._sent_as(sequence_id)) is not None:
                    self._came_back(choice, choice.journal.give_up(FailKind.INVALID, reason))
            case Expect(coming=coming):
                self._coming = coming
            case Configure():
                self.settings = event.upon(self.settings)
                self.room.configure(event.limits, event.role_wait_s)
            case EndAll(reason=reason):
                for one in (*self.room.all(), *self._running.values()):
                    if not one.closed:
                        self._fail(one, Fail(FailKind.UNAVAILABLE, reason))

    def next_wake(self) -> float:
        """When `Look` is due [s], possibly in the past; infinite while only other events can change the state."""
        deadlines, running, waits = self._deadlines, self._running, len(self.room)
        while deadlines and deadlines[0][1] not in running and not (waits and self._known(deadlines[0][1])):
            heappop(deadlines)
        wake = deadlines[0][0] if deadlines else math.inf
        if self._needy:
            wake = min(wake, min([choice.look_at for choice in self._needy.values()]))
        return min(wake, self._looked_at + CHECK_PERIOD_S) if waits else wake

    # ---- queries -----------------------------------------------------------------------------------------------------

    def open(self, now: float) -> bool:
        """Whether an instance is available to a request submitted now."""
        return self.routes.open(now)

    def numbers(self) -> list[int]:
        """Numbers of all running and waiting jobs."""
        return [*self._running, *[job.number for job in self.room.all()]]

    @property
    def running(self) -> int:
        """Running jobs, including those that wait for an instance."""
        return len(self._running)

    def waiting(self, now: float) -> tuple[int, int, float]:
        """Requests that wait before their first token, in the queue or for an instance to come up.

        Returns: requests, their known tokens, and how long the oldest of them has waited [s].
        """
        stuck = {id(choice.job): choice.job for choice in self._needy.values() if choice.job.stuck}.values()
        since = [job.submitted for job in stuck]
        if (oldest := self.room.oldest_since) is not None:
            since.append(oldest)
        tokens = self.room.tokens + sum(job.tokens for job in stuck)
        return len(self.room) + len(stuck), tokens, now - min(since) if since else 0.0

    def starved(self, now: float) -> bool:
        """Whether a job or sequence waits because a role has no instance."""
        return bool(self._needy) or (len(self.room) > 0 and not self.open(now))

    def check(self) -> None:
        """Check that jobs, sequences and the queue agree.

        Raises: LedgerError, AssertionError if they do not.
        """
        self.room.check()
        open_ids = {
            choice.journal.spec.sequence_id
            for job in self._running.values()
            for choice in job.choices
            if not choice.journal.done
        }
        assert open_ids == set(self.choices), "sequences and jobs disagree"
        assert set(self._needy) <= open_ids, "a sequence that is over waits"
        assert all(choice.need is not None for choice in self._needy.values()), "a sequence waits for nothing"

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def _submit(self, number: int, work: GenerationJob) -> None:
        now, is_open = self.now, self.routes.open(self.now)
        if not is_open and not (self.settings.role_wait_s and self._coming):
            self._out.append(Rejected(number, "no instance is up, and none is expected", 1.0, True))
            return
        decision = self.room.apply(number, work, len(self.choices), now, is_open)
        if not decision.accepted:
            why = "the gateway is full" if is_open else "no instance is up, and too many wait for one"
            self._out.append(Rejected(number, f"{why}: {decision.reason}", decision.retry_after_s, not is_open))
            return
        job = Job(number, work, now)
        self.room.enter(job)
        try:
            job.choices = opened(job, self.settings, self.routes.hashes, now)
        except Exception as error:
            self._break(job, error)
            return
        heappush(self._deadlines, (now + min([spec.time_left_s for spec in work.sequences]), number))
        self._bound_deadlines()
        self._let_in()
        if self.settings.prefetch:
            self._out += prefetches(self.room, job)

    def _let_in(self) -> None:
        """Start waiting jobs as far as possible. A start may finish a job immediately, which would call this again."""
        if self._letting_in or not len(self.room) or not self.routes.open(self.now):
            return
        self._letting_in = True
        try:
            while (job := self.room.next(len(self.choices), self.now)) is not None:
                try:
                    self._start(job)
                except Exception as error:
                    self._break(job, error)
        finally:
            self._letting_in = False
        if self.settings.prefetch and len(self.room):
            self._out += prefetches(self.room)

    def _start(self, job: Job) -> None:
        self._running[job.number] = job
        job.started = self.now
        for choice in job.choices:
            self.choices[choice.journal.spec.sequence_id] = choice
        for choice in job.choices:
            if not job.closed:
                self._carry_out(choice, choice.journal.start())

    def _stop(self, number: int, index: int) -> None:
        if (job := self._running.get(number)) is None:
            return
        choice = job.choices[index]
        self._ready(choice)
        self._carry_out(choice, choice.journal.cancel())
        self._leave_if_done(choice)

    def _cancel(self, job: Job) -> None:
        if job.closed:
            return
        for choice in job.choices:
            self._carry_out(choice, choice.journal.cancel())
        self._close(job)

    def _fail(self, job: Job, failure: Fail) -> None:
        """Fail the whole request because one sequence failed: cancel the others, report to the client."""
        self._out.append(JobFailed(job.number, failure, job.retry_after_s))
        self._cancel(job)

    def _break(self, job: Job, error: Exception) -> None:
        """End one job on an unexpected exception, without affecting other jobs."""
        self._out.append(Broken.at(job.number, error))
        self._out.append(JobFailed(job.number, Fail(FailKind.ENGINE, "the gateway failed on it")))
        self._close(job)

    def _leave_if_done(self, choice: Choice) -> None:
        """Remove a finished sequence, and its job if it was the last one, and start the next job."""
        job = choice.job
        if job.closed or not choice.journal.done:
            return
        self._leave(choice)
        if all(one.journal.done for one in job.choices):
            self._close(job)
        else:
            self._let_in()

    def _leave(self, choice: Choice) -> None:
        """Release a sequence's slot and capacity, although others of its job may continue."""
        name = choice.journal.spec.sequence_id
        if self.choices.pop(name, None) is not None:
            self._needy.pop(name, None)
            self.routes.ended(name)
            self.room.finished(choice, self.now)

    def _close(self, job: Job) -> None:
        """Remove a job, and start the next one."""
        job.closed = True
        for choice in job.choices:
            self._leave(choice)
        if self._running.pop(job.number, None) is None:
            self.room.leave(job)
        self._out.append(JobOver(job.number))
        self._let_in()

    # ---- commands --------------------------------------------------------------------------------------------------

    def _carry_out(self, choice: Choice, commands: Commands) -> None:
        """Carry out a journal's commands, which may end the job."""
        for command in commands:
            if type(command) is Tokens:
                self._deliver(choice, command)
            elif type(command) is Send:
                self._out.append(command)
            elif type(command) is NeedPrefill or type(command) is NeedDecode:
                self._route(choice, command)
            elif type(command) is NeedTrial:
                self._try(choice, command)
            elif type(command) is Fail:
                self._fail(choice.job, command)

    def _deliver(self, choice: Choice, news: Tokens) -> None:
        job, queue_s = choice.job, None
        choice.delivered = True
        self.routes.grew(choice.journal.spec.sequence_id, len(news.tokens))
        if news.cached_tokens is not None:
            queue_s = job.started - job.submitted + choice.waited_s
            self.room.computed(choice, news.cached_tokens, self.now)
        failures = choice.journal.attempts.total
        counts = choice.preempted, choice.masked
        self._out.append(SequenceUpdate(choice.index, news, queue_s, failures, job.number, *counts))

    def _route(self, choice: Choice, need: NeedPrefill | NeedDecode) -> None:
        """Choose an instance now, or schedule a retry."""
        journal, now = choice.journal, self.now
        if need.later:
            self._await(choice, replace(need, later=False), now + LATER_S)
            return
        closed = self._quarantine.closed
        try:
            if type(need) is NeedDecode and need.at_source is AtSource.NOW:
                raise UnavailableError("no other instance accepts it")
            decision = self.routes.decide(need, journal, now, (*self._suspected(), *closed) if need.alone else closed)
        except UnavailableError as error:
            self._unroutable(choice, need, str(error))
            return
        self._ready(choice)
        decodes = type(need) is NeedDecode
        self._out.append(Routed(journal.spec.sequence_id, decision, decodes))
        if decodes:
            self.room.placed(choice)
            routed = journal.decode_routed
        elif self.routes.decodes_nowhere(now) > self.settings.empty_role_s:
            routed = journal.serve_whole
        else:
            routed = journal.prefill_routed
        self._carry_out(choice, routed(decision.replica, now))

    def _unroutable(self, choice: Choice, need: NeedPrefill | NeedDecode, reason: str) -> None:
        """Handle a sequence that no instance accepts now: decode it at its source, or let it wait."""
        now, begins = self.now, choice.waiting_since is None
        since = now if choice.waiting_since is None else choice.waiting_since
        if isinstance(need, NeedDecode) and now - since >= self._grace_s(need):
            self._ready(choice)
            self._carry_out(choice, self._unadopted(choice.journal, need))
            return
        choice.waiting_since = since
        self._await(choice, need, now + CHECK_PERIOD_S)
        if begins:  # not at every poll
            self._out.append(Waits(choice.journal.spec.sequence_id, reason))

    def _try(self, choice: Choice, need: NeedTrial) -> None:
        """Try a sequence alone that may have crashed instances, as soon as one is empty."""
        commands = self._quarantine.look(choice, need, self.now)
        if choice.need is None:
            self._ready(choice)
        else:
            self._await(choice, choice.need, self.now + CHECK_PERIOD_S)
        self._carry_out(choice, commands)

    def _await(self, choice: Choice, need: Need, look_at: float) -> None:
        choice.need, choice.look_at = need, look_at
        self._needy[choice.journal.spec.sequence_id] = choice

    def _ready(self, choice: Choice) -> None:
        choice.need = choice.waiting_since = None
        self._needy.pop(choice.journal.spec.sequence_id, None)

    def _suspected(self) -> set[ReplicaId | None]:
        """Instances with a sequence that may have crashed another one. Such sequences are kept apart."""
        return {choice.journal.at for choice in self.choices.values() if choice.journal.attempts.losses}

    def _grace_s(self, need: NeedDecode) -> float:
        return self.settings.empty_role_s if need.at_source is AtSource.AFTER_GRACE else 0.0

    def _unadopted(self, journal: SequenceJournal, need: NeedDecode) -> Commands:
        """Place a handoff that no decode instance adopts: recompute it elsewhere, or leave it at its source."""
        drains, name = need.at_source is not AtSource.AFTER_GRACE, journal.live_id
        if drains and name is not None and self.routes.computed_elsewhere(need.ticket.source, self.now):
            return journal.on_instance_event(Leaving(name, handoff=True))
        return journal.decode_at_source(self.now)

    # ---- instances -------------------------------------------------------------------------------------------------

    def _on_instance_events(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        self.instances.reported(replica, self.now)
        for item in news:
            sent_id = item.sequence_id
            choice = self.choices.get(SequenceId(sent_id.rpartition("@")[0]))
            if choice is None:
                self._decline(replica, item)
                continue
            if type(item) is not Tokens and self.routes.stays(replica, choice.journal, item, self.now):
                continue  # it continues at its instance
            job = choice.job
            try:
                job.note(choice, item)
                self._carry_out(choice, choice.journal.on_instance_event(item, begun=job.begun))
                self._leave_if_done(choice)
            except Exception as error:
                self._break(job, error)
        if self.room.may_go_on:
            self._let_in()

    def _decline(self, replica: ReplicaId, item: News) -> None:
        """Respond to an event of a finished job: cancel it at the instance, or release its blocks there."""
        match item:
            case Prefilled(ticket=ticket):
                self._out.append(Send(replica, Release(ticket.ticket_id)))
            case Tokens(finish_reason=None) | Adopted() | Leaving():
                self._out.append(Send(replica, Cancel(item.sequence_id)))

    def _lose(self, replica: ReplicaId, still_since: float | None) -> None:
        """Handle the loss of an instance: resubmit its sequences to others."""
        known = self.instances.down(replica)
        self.routes.forget(replica)
        if known is not None:
            self._quarantine.died(known, still_since, self.now)
        together = self._quarantine.deaths.together(replica, self.now)
        self.routes.decodes_nowhere(self.now)
        for choice in list(self.choices.values()):
            job = choice.job
            if job.closed:
                continue
            try:
                self._carry_out(choice, choice.journal.instance_lost(replica, still_since, together=together))
            except Exception as error:
                self._break(job, error)

    def _sent_as(self, sent_id: SequenceId) -> Choice | None:
        """The choice whose live submission has this id; None if it has another id, or has finished."""
        choice = self.choices.get(SequenceId(sent_id.rpartition("@")[0]))
        return choice if choice is not None and choice.journal.live_id == sent_id else None

    def _came_back(self, choice: Choice, commands: Commands) -> None:
        self._carry_out(choice, commands)
        self._leave_if_done(choice)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Check deadlines, and retry sequences that found no instance."""
        now, is_open = self.now, self.routes.open(self.now)
        self._looked_at = now
        self.routes.decodes_nowhere(now)
        for job, failure in self.room.overdue(now, is_open):
            self._fail(job, failure)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heappop(self._deadlines)
            if (late := self._running.get(number)) is not None:
                self._fail(late, Fail(FailKind.DEADLINE, "the request timed out"))
        for choice in [choice for choice in self._needy.values() if choice.look_at <= now]:
            try:
                self._look_again(choice)
            except Exception as error:
                self._break(choice.job, error)
        self._let_in()

    def _look_again(self, choice: Choice) -> None:
        need, job, limit_s = choice.need, choice.job, self.settings.role_wait_s
        if need is None or job.closed:
            return
        waited_s = 0.0 if choice.waiting_since is None else self.now - choice.waiting_since
        # First: this process may have been stopped while an instance came up.
        if isinstance(need, NeedTrial):
            self._try(choice, need)
        else:
            self._route(choice, need)
        turns = isinstance(need, NeedTrial) or need.alone or bool(self._quarantine.closed)
        if choice.need is None or choice.job.closed or waited_s <= limit_s or (turns and self.routes.open(self.now)):
            return
        if not (job.begun and self._coming):
            role = "decode" if isinstance(need, NeedDecode) else "prefill"
            reason = f"no {role} instance became available within {limit_s:g} s"
            self._fail(job, Fail(FailKind.UNAVAILABLE, reason))

    def _known(self, number: int) -> bool:
        return number in self._running or self.room.find(number) is not None

    def _bound_deadlines(self) -> None:
        """Drop deadlines of finished requests early, because most finish long before their deadline."""
        if len(self._deadlines) > 2 * (len(self._running) + len(self.room)) + 64:
            self._deadlines = [one for one in self._deadlines if self._known(one[1])]
            heapify(self._deadlines)
