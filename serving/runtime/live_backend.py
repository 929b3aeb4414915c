"""The live `GenerationBackend`: journals say what each sequence needs, this carries it out over the links.

Runs on the gateway's asyncio loop, single-threaded. Everything that waits has a deadline: a job its own, a sequence
without an instance `ROLE_WAIT_S`.
"""

import asyncio
import logging
from collections import deque
from typing import Protocol

from msgspec.structs import replace

from serving.api.backend import GenerationJob
from serving.config.serve import ServeConfig
from serving.errors import OverloadedError, UnavailableError
from serving.ids import GatewayId, ReplicaId, SequenceId
from serving.link import messages as m
from serving.policy import journal_commands as c
from serving.policy.gateway_admission import AdmissionLimits, GatewayLoad, decide_admission
from serving.policy.gateway_router import GatewayRouter
from serving.policy.request_journal import Commands, SequenceJournal
from serving.policy.router import ROLE_WAIT_S
from serving.runtime.gateway_recording import open_gateway_log
from serving.runtime.instance_link import InstanceLink
from serving.runtime.live_generation import Choice, LiveGeneration
from serving.runtime.pool_links import SILENCE_LIMIT_S, LinkEvents, PoolLinks
from serving.runtime.pool_router import PoolRouter

logger = logging.getLogger(__name__)

SWEEP_PERIOD_S = 0.1
HISTORY_BLOCKS = 65_536
"""Blocks that the gateway remembers of each instance when it routes by locality: 1 M tokens in blocks of 16."""


class PhaseObserver(Protocol):
    """Where the two phases before a first token are counted."""

    def __call__(self, *, queue_s: float, prefill_s: float) -> None: ...


class LiveBackend:
    """Accepts jobs and drives them through the pools.

    Args:
        pools: names of the engine pools: `prefill` and `decode`, or `aggregated`.
        observe: told each sequence's wait for its start and its time to the first token from there [s].
    """

    def __init__(
        self,
        gateway: GatewayId,
        secret: str,
        config: ServeConfig,
        pools: list[str],
        observe: PhaseObserver | None = None,
    ) -> None:
        self.links = PoolLinks(gateway, secret, LinkEvents(self._on_frame, self._on_up, self._on_down))
        self._gateway = gateway
        self._config = config
        self._observe = observe
        self._limits = AdmissionLimits(config.gateway.max_queued_requests, config.gateway.max_queued_tokens)
        self._serial = 0
        self._running: dict[int, LiveGeneration] = {}
        self._queue: deque[LiveGeneration] = deque()
        self._queued_tokens = 0
        self._choices: dict[SequenceId, tuple[LiveGeneration, Choice]] = {}
        history = HISTORY_BLOCKS if config.gateway.routing == "locality" else 0
        router = GatewayRouter(SILENCE_LIMIT_S, config.engine.block_tokens, history)
        self._recorder = recorder = open_gateway_log(config, gateway, router, SILENCE_LIMIT_S, history)
        self._decide_admission = recorder.admit if recorder is not None else decide_admission
        self._new_journal = recorder.journal if recorder is not None else SequenceJournal
        router = recorder.router() if recorder is not None else router
        self._router = PoolRouter(self.links, pools, config.engine.block_tokens, router)
        self._sweeper: asyncio.Task[None] | None = None

    # ---- GenerationBackend -----------------------------------------------------------------------------------------

    def submit(self, job: GenerationJob) -> LiveGeneration:
        """As `GenerationBackend.submit`. Must be called on the gateway's loop.

        Raises: OverloadedError when the queue is at its bound, UnavailableError when no pool has an instance.
        """
        if not self.links.up():
            raise UnavailableError("no instance is up; it takes a few seconds after start or after a failure")
        full = bool(self._queue) or not self._fits(len(job.sequences))
        if full:
            self._admit(job)
        self._serial += 1
        generation = self._make(job)
        if full:
            self._queue.append(generation)
            self._queued_tokens += generation.tokens
        else:
            self._start(generation)
        self._sweeper = self._sweeper or asyncio.create_task(self._sweep_forever())
        return generation

    def ready(self) -> bool:
        """True when every role has an instance that is not draining."""
        return self._router.ready()

    def counts(self) -> dict[str, int]:
        """Requests running and queued here, sequences known."""
        return {"running": len(self._running), "queued": len(self._queue), "sequences": len(self._choices)}

    def close(self) -> None:
        """Stop sweeping and drop the links."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.links.close()
        if self._recorder is not None:
            self._recorder.close()

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def _admit(self, job: GenerationJob) -> None:
        tokens = sum(len(spec.prompt) for spec in job.sequences)
        rate = sum(link.status.tokens_per_s for link in self.links.up() if link.status)
        load = GatewayLoad(len(self._queue), self._queued_tokens, rate)
        decision = self._decide_admission(load, self._limits, 1, tokens)
        if not decision.accepted or self._limits.max_queued_sequences == 0:
            raise OverloadedError(
                f"the gateway is full: {decision.reason}", retry_after_s=max(decision.retry_after_s, 1.0)
            )

    def _fits(self, sequences: int) -> bool:
        """Whether a job of so many sequences may start now; the largest one may when nothing else runs."""
        together = len(self._choices) + sequences
        return not self._choices or together <= self._config.gateway.max_running_sequences

    def _make(self, job: GenerationJob) -> LiveGeneration:
        now = self._now()
        choices = [
            Choice(
                i,
                self._new_journal(
                    # The client's request id need not be unique; this one is, in the whole cluster.
                    replace(spec, sequence_id=SequenceId(f"{self._gateway}-{self._serial}/{i}")),
                    now,
                    self._config.engine.max_attempts,
                ),
            )
            for i, spec in enumerate(job.sequences)
        ]
        return LiveGeneration(job, choices, now, self._stop_choice, self._cancel)

    def _start(self, generation: LiveGeneration) -> None:
        self._running[id(generation)] = generation
        generation.started = self._now()
        for choice in generation.choices:
            self._choices[choice.journal.spec.sequence_id] = (generation, choice)
        for choice in generation.choices:
            if not generation.closed:
                self._carry_out(generation, choice, choice.journal.start())

    def _stop_choice(self, generation: LiveGeneration, choice: Choice) -> None:
        self._carry_out(generation, choice, choice.journal.cancel())
        self._close_if_done(generation)

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

    def _close_if_done(self, generation: LiveGeneration) -> None:
        if not generation.closed and all(choice.journal.done for choice in generation.choices):
            self._close(generation)

    def _close(self, generation: LiveGeneration) -> None:
        """Forget a job, and let the next one in."""
        generation.closed = True
        for choice in generation.choices:
            self._choices.pop(choice.journal.spec.sequence_id, None)
        if self._running.pop(id(generation), None) is None and generation in self._queue:
            self._queue.remove(generation)
            self._queued_tokens -= generation.tokens
        generation.wake()
        while self._queue and self._fits(len(self._queue[0].choices)):
            following = self._queue.popleft()
            self._queued_tokens -= following.tokens
            self._start(following)

    # ---- commands --------------------------------------------------------------------------------------------------

    def _carry_out(self, generation: LiveGeneration, choice: Choice, commands: Commands) -> None:
        """Do what a journal asks. May end the job."""
        for command in commands:
            match command:
                case c.Deliver():
                    if not choice.told:
                        self._first(generation, choice)
                    generation.deliver(choice.index, command)
                case c.NeedPrefill() | c.NeedDecode():
                    self._route(generation, choice, command)
                case c.SendPrefill(replica=replica, spec=spec):
                    self._send_or_lose(generation, choice, replica, m.Add(spec))
                case c.SendAdopt(replica=replica, spec=spec, ticket=ticket):
                    self._send_or_lose(generation, choice, replica, m.Adopt(spec, ticket))
                case c.SendRelease(replica=replica, ticket_id=ticket_id, distrust=distrust):
                    self._send(replica, m.Release(ticket_id, distrust))
                case c.SendCancel(replica=replica, sequence_id=sequence_id):
                    self._send(replica, m.Cancel(sequence_id))
                case c.Fail():
                    self._fail(generation, command)

    def _first(self, generation: LiveGeneration, choice: Choice) -> None:
        choice.told = True
        if self._observe is not None:
            queued = generation.started - generation.submitted
            self._observe(queue_s=queued, prefill_s=self._now() - generation.started)

    def _route(self, generation: LiveGeneration, choice: Choice, need: c.NeedPrefill | c.NeedDecode) -> None:
        """Choose an instance now, or leave the sequence to the sweeper until there is one."""
        journal = choice.journal
        try:
            decision = self._router.decide(need, journal)
        except UnavailableError as error:
            choice.waiting_since = choice.waiting_since or self._now()
            choice.need = need
            logger.info("%s waits: %s", journal.spec.sequence_id, error)
            return
        choice.waiting_since = choice.need = None
        routed = journal.prefill_routed if isinstance(need, c.NeedPrefill) else journal.decode_routed
        self._carry_out(generation, choice, routed(decision.replica, self._now()))

    def _send_or_lose(self, generation: LiveGeneration, choice: Choice, replica: ReplicaId, message: m.Message) -> None:
        if not self._send(replica, message):
            self._carry_out(generation, choice, choice.journal.instance_lost(replica))

    def _send(self, replica: ReplicaId, message: m.Message) -> bool:
        link = self.links.link(replica)
        return link is not None and link.send(message)

    # ---- what instances and time bring -----------------------------------------------------------------------------

    def _on_frame(self, link: InstanceLink, frame: m.Frame) -> None:
        for item in frame.news:
            sent_id = item.first.sequence_id if isinstance(item, m.Prefilled) else item.sequence_id
            known = self._choices.get(SequenceId(sent_id.rpartition("@")[0]))
            if known is None:
                self._decline(link, sent_id, item)
                continue
            generation, choice = known
            self._carry_out(generation, choice, _tell(choice.journal, item))
            if choice.journal.done:
                self._close_if_done(generation)

    def _decline(self, link: InstanceLink, sent_id: SequenceId, item: m.News) -> None:
        """News of a job that is over: whoever still works on it, or holds blocks for it, is told to stop."""
        if isinstance(item, m.Prefilled):
            link.send(m.Release(item.ticket.ticket_id))
        elif isinstance(item, m.Tokens | m.Adopted) and not (isinstance(item, m.Tokens) and item.finish):
            link.send(m.Cancel(sent_id))

    def _on_up(self, link: InstanceLink) -> None:
        """Sequences that wait for an instance are taken up by the next sweep."""

    def _on_down(self, link: InstanceLink, reason: str) -> None:
        for generation, choice in list(self._choices.values()):
            if not generation.closed:
                self._carry_out(generation, choice, choice.journal.instance_lost(link.replica))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            try:
                self._sweep(self._now())
            except Exception:  # one job's bug must not stop the deadlines of all others
                logger.exception("sweep failed")

    def _sweep(self, now: float) -> None:
        """Deadlines, and another look for sequences that found no instance."""
        for generation in [*self._running.values(), *self._queue]:
            for choice in generation.choices:
                journal = choice.journal
                if generation.closed or journal.done:
                    continue
                if now > journal.deadline:
                    self._fail(generation, c.Fail(c.FailKind.DEADLINE, "the request's time is over"))
                elif choice.need is not None and choice.waiting_since is not None:
                    self._sweep_waiting(generation, choice, choice.need, now - choice.waiting_since)

    def _sweep_waiting(
        self, generation: LiveGeneration, choice: Choice, need: c.NeedPrefill | c.NeedDecode, waited_s: float
    ) -> None:
        if waited_s > ROLE_WAIT_S:
            role = "prefill" if isinstance(need, c.NeedPrefill) else "decode"
            reason = f"no {role} instance came up within {ROLE_WAIT_S:.0f} s"
            self._fail(generation, c.Fail(c.FailKind.UNAVAILABLE, reason))
        else:
            self._route(generation, choice, need)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _tell(journal: SequenceJournal, item: m.News) -> Commands:
    """One piece of news to the journal it concerns."""
    match item:
        case m.Tokens():
            return journal.tokens(
                item.sequence_id,
                item.position,
                item.tokens,
                item.logprobs,
                item.prompt_logprobs,
                item.cached_tokens,
                item.finish,
                item.pool,
                item.drafts,
            )
        case m.Prefilled(first=first, ticket=ticket):
            return journal.handoff_ready(
                first.sequence_id,
                ticket,
                first.position,
                first.tokens,
                first.logprobs,
                first.prompt_logprobs,
                first.cached_tokens,
                first.pool,
            )
        case m.Adopted():
            return journal.adopted(item.sequence_id)
        case m.Lost():
            return journal.failed(item.sequence_id, item.reason)
        case m.Refused():
            return journal.refused(item.sequence_id, item.kind, item.reason)
