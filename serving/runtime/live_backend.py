"""The live `GenerationBackend`: journals say what each sequence needs, this carries it out over the links.

Runs on the gateway's asyncio loop, single-threaded. Everything that waits has a deadline: a job its own, a job or a
sequence without an instance `[gateway] role_wait_s`. So a request may come before the first instance is up, or while a
pool is at zero: it waits, and that it does is what wakes the pool.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from serving.api.backend import GenerationJob
from serving.config.serve import ServeConfig
from serving.errors import LinkError, UnavailableError
from serving.ids import BlockHash, GatewayId, ReplicaId, SequenceId
from serving.link import messages as m
from serving.policy import journal_commands as c
from serving.policy.admission_queue import AdmissionQueue
from serving.policy.request import SequenceSpec
from serving.policy.request_journal import Commands, SequenceJournal
from serving.runtime.gateway_parts import gateway_header
from serving.runtime.gateway_recording import open_gateway_log
from serving.runtime.instance_link import InstanceLink
from serving.runtime.journal_news import decline, tell
from serving.runtime.live_generation import Choice, LiveGeneration
from serving.runtime.pool_links import LinkEvents, PoolLinks
from serving.runtime.pool_router import PoolRouter
from serving.runtime.quarantine import Quarantine
from serving.runtime.waiting_room import WaitingRoom

logger = logging.getLogger(__name__)

SWEEP_PERIOD_S = 0.1


class LiveBackend:
    """Accepts jobs and drives them through the pools.

    Args:
        pools: names of the engine pools: `prefill` and `decode`, or `aggregated`.
    """

    def __init__(
        self,
        gateway: GatewayId,
        secret: str,
        config: ServeConfig,
        pools: list[str],
    ) -> None:
        events = LinkEvents(self._on_frame, self._on_up, self._on_down)
        silence_s = config.health.silence_s
        self.links = PoolLinks(gateway, secret, events, silence_s)
        self._gateway = gateway
        self._config = config
        self._serial = 0
        self._running: dict[int, LiveGeneration] = {}
        self._choices: dict[SequenceId, tuple[LiveGeneration, Choice]] = {}
        header = gateway_header(config, gateway)
        self._shared = header.limits.shared
        self.recorder = recorder = open_gateway_log(config, header)
        self._new_journal = recorder.journal if recorder is not None else SequenceJournal
        router = recorder.router() if recorder is not None else header.router()
        queue = recorder.queue() if recorder is not None else AdmissionQueue(header.limits)
        self._router = PoolRouter(self.links, pools, config.engine.block_tokens, router, header.max_age_s)
        self.room = WaitingRoom(queue, config.gateway.role_wait_s)
        self._quarantine = Quarantine(self._router, self._choices)
        self.targets: Mapping[str, int] = {name: pool.replicas for name, pool in config.pools.items()}
        """Replicas asked for, by pool, as far as is known here."""
        self._letting_in = False
        self._sweeper: asyncio.Task[None] | None = None

    # ---- GenerationBackend -----------------------------------------------------------------------------------------

    def submit(self, job: GenerationJob) -> LiveGeneration:
        """As `GenerationBackend.submit`. Must be called on the gateway's loop.

        Raises: OverloadedError when the queue is at its bound; UnavailableError when it is without an instance to wait
            for, or none is expected.
        """
        now, is_open = self._now(), self._router.open()
        if not is_open and not self._expects_instances():
            raise UnavailableError("no instance is up, and none is expected", retry_after_s=1.0)
        self._serial += 1
        self.room.apply(self._serial, job, len(self._choices), now, is_open)
        try:
            generation = self._make(job)
        except BaseException:
            self.room.forsake(self._serial)  # a place without a job would never be given back
            raise
        self.room.enter(generation)
        self._let_in()
        self._sweeper = self._sweeper or asyncio.create_task(self._sweep_forever())
        return generation

    def ready(self) -> bool:
        """A request that is submitted now finds an instance; nothing else decides whether it starts."""
        return self._router.open()

    def end_all(self, reason: str) -> None:
        """Fail whatever waits and runs: this gateway leaves, and its clients are told."""
        for generation in (*self.room.all(), *self._running.values()):
            if not generation.closed:
                self._fail(generation, c.Fail(c.FailKind.UNAVAILABLE, reason))

    def counts(self) -> dict[str, int]:
        """Requests running and queued here, sequences known."""
        return {"running": len(self._running), "queued": len(self.room), "sequences": len(self._choices)}

    def waiting(self) -> tuple[int, int, float]:
        """What waits here, in the queue or for an instance to come up, before its first token.

        Returns: requests, their known tokens, and for how long the oldest of them has waited [s].
        """
        now = self._now()
        stuck = [one for one in self._running.values() if one.stuck]
        since = [one.submitted for one in stuck]
        if (oldest := self.room.oldest_since) is not None:
            since.append(oldest)
        tokens = self.room.tokens + sum(one.tokens for one in stuck)
        return len(self.room) + len(stuck), tokens, now - min(since) if since else 0.0

    @property
    def starved(self) -> bool:
        """Something waits because a role has no instance."""
        unserved = any(choice.need is not None for _, choice in self._choices.values())
        return unserved or (len(self.room) > 0 and not self._router.open())

    def close(self) -> None:
        """Stop sweeping and drop the links."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.links.close()
        if self.recorder is not None:
            self.recorder.close()

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def _expects_instances(self) -> bool:
        """Whether it is worth waiting: somebody was asked for, or may be."""
        begun_with = any(pool.replicas for pool in self._config.pools.values())
        return bool(self._config.gateway.role_wait_s) and (begun_with or self._coming())

    def _coming(self) -> bool:
        """Whether an instance comes, or comes back: what has begun waits for it as long as its own deadline."""
        return self._config.autoscaler.policy != "none" or any(self.targets.values())

    def _let_in(self) -> None:
        """Start those whose turn it is. A start may end a job at once, which would call this again."""
        if self._letting_in or not self._router.open():
            return
        self._letting_in = True
        try:
            while (generation := self.room.next(len(self._choices), self._now())) is not None:
                with self._alone(generation):
                    self._start(generation)
        finally:
            self._letting_in = False

    def _make(self, job: GenerationJob) -> LiveGeneration:
        now = self._now()
        hashes = {spec.prompt: self._router.hashes(spec) for spec in job.sequences}
        attempts = self._config.engine.max_attempts
        choices = [
            Choice(i, self._new_journal(self._own(spec, i, hashes[spec.prompt]), now, attempts))
            for i, spec in enumerate(job.sequences)
        ]
        return LiveGeneration(job, choices, now, self._stop_choice, self._cancel, self._serial)

    def _own(self, spec: SequenceSpec, place: int, hashes: tuple[BlockHash, ...]) -> SequenceSpec:
        # The client's request id need not be unique; this one is, in the whole cluster. Instances know no keys.
        name, priority = SequenceId(f"{self._gateway}-{self._serial}/{place}"), 0 if self._shared else spec.priority
        return replace(spec, sequence_id=name, prompt_hashes=hashes, priority=priority)

    def _start(self, generation: LiveGeneration) -> None:
        self._running[id(generation)] = generation
        generation.started = self._now()
        for choice in generation.choices:
            self._choices[choice.journal.spec.sequence_id] = (generation, choice)
        for choice in generation.choices:
            if not generation.closed:
                self._carry_out(generation, choice, choice.journal.start())

    def _stop_choice(self, generation: LiveGeneration, choice: Choice) -> None:
        choice.need = choice.waiting_since = None
        self._carry_out(generation, choice, choice.journal.cancel())
        self._leave_if_done(generation, choice)

    def _cancel(self, generation: LiveGeneration) -> None:
        if generation.closed:
            return
        for choice in generation.choices:
            self._carry_out(generation, choice, choice.journal.cancel())
        self._close(generation)

    def _fail(self, generation: LiveGeneration, failure: c.Fail) -> None:
        """One sequence is lost, hence the request: free the others, tell the client."""
        logger.warning("request %s failed: %s (%s)", generation.job.request_id, failure.reason, failure.kind.value)
        generation.fail(failure)
        self._cancel(generation)

    def _leave_if_done(self, generation: LiveGeneration, choice: Choice) -> None:
        """Forget a sequence that is over, its job too if it was the last one, and let the next job in."""
        if generation.closed or not choice.journal.done:
            return
        self._leave(generation, choice)
        if all(one.journal.done for one in generation.choices):
            self._close(generation)
        else:
            self._let_in()

    def _leave(self, generation: LiveGeneration, choice: Choice) -> None:
        """A sequence needs no place and no room any more, however long others of its job go on."""
        name = choice.journal.spec.sequence_id
        if self._choices.pop(name, None) is not None:
            self._router.ended(name)
            self.room.finished(self._now() - generation.started)

    def _close(self, generation: LiveGeneration) -> None:
        """Forget a job, and let the next one in."""
        generation.closed = True
        for choice in generation.choices:
            self._leave(generation, choice)
        if self._running.pop(id(generation), None) is None:
            self.room.leave(generation)
        generation.wake()
        self._let_in()

    # ---- commands --------------------------------------------------------------------------------------------------

    def _carry_out(self, generation: LiveGeneration, choice: Choice, commands: Commands) -> None:
        """Do what a journal asks. May end the job."""
        for command in commands:
            match command:
                case c.Deliver():
                    if not choice.told:
                        self._first(generation, choice)
                    self._router.grew(choice.journal.spec.sequence_id, len(command.tokens))
                    generation.deliver(choice.index, command)
                case c.NeedPrefill() | c.NeedDecode():
                    self._route(generation, choice, command)
                case c.NeedTrial():
                    self._carry_out(generation, choice, self._quarantine.look(choice, command, self._now()))
                case c.SendPrefill(replica=replica, spec=spec):
                    self._send_order(generation, choice, replica, m.Add(spec))
                case c.SendAdopt(replica=replica, spec=spec, ticket=ticket):
                    self._send_order(generation, choice, replica, m.Adopt(spec, ticket))
                case c.SendRelease(replica=replica, ticket_id=ticket_id, distrust=distrust):
                    self._send(replica, m.Release(ticket_id, distrust))
                case c.SendCancel(replica=replica, sequence_id=sequence_id):
                    self._send(replica, m.Cancel(sequence_id))
                case c.Fail():
                    self._fail(generation, command)

    def _first(self, generation: LiveGeneration, choice: Choice) -> None:
        choice.told = True

    def _route(self, generation: LiveGeneration, choice: Choice, need: c.NeedPrefill | c.NeedDecode) -> None:
        """Choose an instance now, or leave the sequence to the sweeper until there is one."""
        journal = choice.journal
        if need.later:
            choice.need, choice.waiting_since = replace(need, later=False), self._now() + c.LATER_S
            return
        try:
            if isinstance(need, c.NeedDecode) and need.at_source is c.AtSource.NOW:
                raise UnavailableError("no other instance takes it")
            closed = self._quarantine.closed
            decision = self._router.decide(need, journal, (*self._suspected(), *closed) if need.alone else closed)
        except UnavailableError as error:
            begins = choice.waiting_since is None
            choice.waiting_since = choice.waiting_since or self._now()
            choice.need = need
            if isinstance(need, c.NeedDecode) and self._now() - choice.waiting_since >= self._grace_s(need):
                choice.waiting_since = choice.need = None
                return self._carry_out(generation, choice, self._unadopted(journal, need))
            if begins:  # not at every sweep
                logger.info("%s waits: %s", journal.spec.sequence_id, error)
            return
        choice.waiting_since = choice.need = None
        now = self._now()
        if isinstance(need, c.NeedDecode):
            routed = journal.decode_routed
        elif self._router.decodes_nowhere(now) > self._config.engine.empty_role_s:
            routed = journal.serve_whole
        else:
            routed = journal.prefill_routed
        self._carry_out(generation, choice, routed(decision.replica, now))

    def _suspected(self) -> set[ReplicaId | None]:
        """Instances at which a sequence is that may have taken one down. Such sequences keep away from each other."""
        return {choice.journal.at for _, choice in self._choices.values() if choice.journal.attempts.losses}

    def _grace_s(self, need: c.NeedDecode) -> float:
        return self._config.engine.empty_role_s if need.at_source is c.AtSource.AFTER_GRACE else 0.0

    def _unadopted(self, journal: SequenceJournal, need: c.NeedDecode) -> Commands:
        """Where a handoff goes that no decode instance takes: another one computes it, or it stays."""
        drains, name = need.at_source is not c.AtSource.AFTER_GRACE, journal.live_id
        if drains and name is not None and self._router.computed_elsewhere(need.ticket.source):
            return journal.leaving(name)
        return journal.decode_at_source(self._now())

    def _send_order(self, generation: LiveGeneration, choice: Choice, replica: ReplicaId, order: m.Submission) -> None:
        try:
            ended = () if self._send(replica, order) else choice.journal.unsent(replica)
        except LinkError as error:
            ended = choice.journal.give_up(c.FailKind.INVALID, m.too_large(order, error))
        self._carry_out(generation, choice, ended)

    def _send(self, replica: ReplicaId, message: m.Message) -> bool:
        link = self.links.link(replica)
        return link is not None and link.send(message)

    # ---- what instances and time bring -----------------------------------------------------------------------------

    def _on_frame(self, link: InstanceLink, frame: m.Frame) -> None:
        for item in frame.news:
            sent_id = item.first.sequence_id if isinstance(item, m.Prefilled) else item.sequence_id
            known = self._choices.get(SequenceId(sent_id.rpartition("@")[0]))
            if known is None:
                decline(link, sent_id, item)
                continue
            generation, choice = known
            if isinstance(item, m.Leaving) and not self._router.elsewhere(item.handoff):
                continue  # it goes on where it is
            with self._alone(generation):
                generation.heed(choice, item)
                self._carry_out(generation, choice, tell(choice.journal, item, begun=generation.begun))
                self._leave_if_done(generation, choice)

    def _on_up(self, link: InstanceLink) -> None:
        """Sequences that wait for an instance are taken up by the next sweep."""
        self._quarantine.came(link.replica)

    def _on_down(self, link: InstanceLink, reason: str) -> None:
        self._router.forget(link.replica)
        self._quarantine.died(link, self._now())
        for generation, choice in list(self._choices.values()):
            if not generation.closed:
                with self._alone(generation):
                    self._carry_out(generation, choice, choice.journal.instance_lost(link.replica, link.still_since))

    @contextmanager
    def _alone(self, generation: LiveGeneration) -> Iterator[None]:
        """A bug that one job meets ends that job, and keeps nothing from the others."""
        try:
            yield
        except Exception:
            logger.exception("the gateway failed on request %s", generation.job.request_id)
            generation.fail(c.Fail(c.FailKind.ENGINE, "the gateway failed on it"))
            self._close(generation)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            try:
                self._sweep(self._now())
            except Exception:
                logger.exception("sweep failed")

    def _sweep(self, now: float) -> None:
        """Deadlines, and another look for sequences that found no instance."""
        is_open = self._router.open()
        self._router.decodes_nowhere(now)
        for generation, failure in self.room.overdue(now, is_open):
            self._fail(generation, failure)
        for generation in list(self._running.values()):
            with self._alone(generation):
                self._sweep_job(generation, now)
        self._let_in()

    def _sweep_job(self, generation: LiveGeneration, now: float) -> None:
        for choice in generation.choices:
            if generation.closed or choice.journal.done:
                continue
            if now > choice.journal.deadline:
                self._fail(generation, c.Fail(c.FailKind.DEADLINE, "the request's time is over"))
            elif choice.need is not None and choice.waiting_since is not None and now >= choice.waiting_since:
                self._sweep_waiting(generation, choice, choice.need, now - choice.waiting_since)

    def _sweep_waiting(self, generation: LiveGeneration, choice: Choice, need: c.Need, waited_s: float) -> None:
        limit_s = self._config.gateway.role_wait_s
        # First: this process may have been stopped while one came up.
        if isinstance(need, c.NeedTrial):
            self._carry_out(generation, choice, self._quarantine.look(choice, need, self._now()))
        else:
            self._route(generation, choice, need)
        turns = isinstance(need, c.NeedTrial) or need.alone or bool(self._quarantine.closed)
        if generation.closed or choice.need is None or waited_s <= limit_s or (turns and self._router.open()):
            return
        if not (generation.begun and self._coming()):
            role = "decode" if isinstance(need, c.NeedDecode) else "prefill"
            reason = f"no {role} instance came up within {limit_s:g} s"
            self._fail(generation, c.Fail(c.FailKind.UNAVAILABLE, reason))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
