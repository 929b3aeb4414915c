"""The live `GenerationBackend`: passes events of links, clients and timers to the core, and carries out its effects.

Runs on the gateway's asyncio loop, single-threaded. All decisions are made by the core.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from hardware.cost.model_config import load_shape
from hardware.errors import HardwareError
from serving.config.serve import ServeConfig
from serving.errors import LinkError, OverloadedError, ServingError, UnavailableError
from serving.gateway.core import events as e
from serving.gateway.core.from_config import configured, core_settings
from serving.gateway.core.gateway import Gateway
from serving.gateway.core.gateway_record import recorded
from serving.gateway.core.losses import Losses
from serving.gateway.live.generation import LiveGeneration
from serving.gateway.live.memory_links import Prefetcher
from serving.gateway.live.pool_links import Address, InstanceLink, LinkEvents, PoolLinks
from serving.gateway.live.timelines import LiveTimelines
from serving.ids import GatewayId, ReplicaId, SequenceId
from serving.sockets.secrets import ClusterSecrets
from serving.telemetry.decision_writer import writer_in
from serving.values.health import hangs
from serving.values.instances import Status
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.news import FailKind
from serving.values.orders import Add, Adopt, Send
from serving.values.traffic import InstanceNotice, NoticeKind
from serving.values.visit_times import VisitTimes
from serving.wire import messages as m

logger = logging.getLogger(__name__)

MEMBERS_PERIOD_S = 0.5
"""Polling period of instances' facts; joins and leaves are notified immediately."""
IDLE_MEMBERS_PERIOD_S = 4.0
"""The same without requests: linked instances are asked for their facts when these are needed; ranks are not."""
WAKE_PERIOD_S = 0.1
"""Maximum delay of waking the core."""


class LiveBackend:
    """Accepts jobs and routes them through the pools.

    Args:
        pools: names of the engine pools.
    """

    def __init__(self, gateway: GatewayId, secret: str | ClusterSecrets, config: ServeConfig, pools: list[str]) -> None:
        events = LinkEvents(self._on_frame, self._on_status, self._on_up, self._on_down)
        self.links = PoolLinks(gateway, secret, events, config.health.silence_s)
        self.core = Gateway(core_settings(config, gateway, tuple(pools), attention_tokens(config)))
        """Read-only for other modules."""
        self.losses = Losses()
        self.hosts: Mapping[str, str] = {}
        """Names of nodes for display, by Ray's ids."""
        self.timelines = LiveTimelines(config.gateway.timelines, self._host_of)
        self._wakes_pools = config.autoscaler.policy != "none"
        self.recorder = writer_in(config.engine.decision_log, "gateway", gateway, self.core.settings)
        self._on = self.core.on if self.recorder is None else recorded(self.core, self.recorder.note)
        self._serial = 0
        self._generations: dict[int, LiveGeneration] = {}
        self._waker: asyncio.Task[None] | None = None
        self.stirred = asyncio.Event()
        """Set when a request is submitted, and when an instance comes or is lost."""
        self.prefetcher: Prefetcher | None = None
        """Set if there are memory servers."""
        self._unsent: deque[e.GatewayEvent] = deque()
        """Events still to be passed to the core: commands that could not be sent."""

    # ---- GenerationBackend -----------------------------------------------------------------------------------------

    def submit(self, job: GenerationJob) -> LiveGeneration:
        """Submit a request, see `GenerationBackend`. Must be called on the gateway's loop.

        Raises: OverloadedError when the queue is full; UnavailableError when it would wait for an instance and is full,
            or no instance is expected.
        """
        self._serial += 1
        self.stirred.set()
        generation = LiveGeneration(self._serial, job, self._now(), self._stop, self._cancel)
        generation.times = self.timelines.begin(job, generation.submitted)
        generation.timelines = self.timelines
        self._generations[self._serial] = generation
        effects = self._on(e.Submit(self._serial, job), generation.submitted)
        for effect in effects:
            if isinstance(effect, e.Rejected):
                del self._generations[self._serial]
                raise _refusal(effect)
        self._do(effects)
        self._waker = self._waker or asyncio.create_task(self._wake_while_busy())
        return generation

    def ready(self) -> bool:
        """Whether an instance is available to a request submitted now."""
        return self.core.open(self._now())

    def end_all(self, reason: str) -> None:
        """Fail all waiting and running jobs with an error to their clients: this gateway shuts down."""
        self._tell(e.EndAll(reason))

    def configure(self, config: ServeConfig) -> None:
        """Apply the keys of another configuration that a running gateway accepts."""
        self._wakes_pools = config.autoscaler.policy != "none"
        self._tell(configured(config))

    def expect(self, targets: Mapping[str, int]) -> None:
        """Update the number of replicas now requested, by pool."""
        self._tell(e.Expect(self._wakes_pools or any(targets.values())))

    def counts(self) -> dict[str, int]:
        """Counts of running requests, queued requests and known sequences."""
        core = self.core
        return {"running": core.running, "queued": len(core.room), "sequences": len(core.choices)}

    def waiting(self) -> tuple[int, int, float]:
        """The waiting requests, see `Gateway.waiting`."""
        return self.core.waiting(self._now())

    def has_waiting(self) -> bool:
        """Whether requests wait at this gateway."""
        return len(self.core.room) > 0

    @property
    def busy(self) -> bool:
        """Whether there are requests."""
        return bool(self._generations)

    def listing_period_s(self, members: Sequence[Address]) -> float:
        """Longest time between two listings of the members [s], given the last one."""
        linked = all(self.links.link(one.replica) is not None and "shell" not in one.facts for one in members)
        return IDLE_MEMBERS_PERIOD_S if linked and members and not self._generations else MEMBERS_PERIOD_S

    @property
    def starved(self) -> bool:
        """Whether a job or sequence waits because a role has no instance."""
        return self.core.starved(self._now())

    def close(self) -> None:
        """Stop waking the core, close the links, finish the log."""
        if self._waker is not None:
            self._waker.cancel()
        self.links.close()
        if self.prefetcher is not None:
            self.prefetcher.close()
        if self.recorder is not None:
            self.recorder.close()

    # ---- events ----------------------------------------------------------------------------------------------------

    def _tell(self, event: e.GatewayEvent) -> None:
        self._do(self._on(event, self._now()))

    def _stop(self, number: int, index: int) -> None:
        self._tell(e.StopChoice(number, index))

    def _cancel(self, number: int) -> None:
        if number in self._generations:
            self._tell(e.CancelJob(number))

    def _on_frame(self, link: InstanceLink, frame: m.Frame) -> None:
        for visit in frame.visits:
            self._note_visit(visit)
        self.timelines.reading(frame.step_time, self._now())
        self._tell(e.InstanceSays(link.replica, frame.news))
        self.timelines.read()

    def _note_visit(self, visit: VisitTimes) -> None:
        choice = self.core.choices.get(_own_name(visit.sequence_id))
        if choice is not None and (times := self._generations[choice.job.number].times) is not None:
            self.timelines.add_visit(times, choice.index, visit)

    def _on_status(self, link: InstanceLink, status: Status) -> None:
        self._tell(e.InstanceStatus(link.replica, status))
        if hangs(status.progress_age_s, status.step_limit_s):
            asyncio.get_running_loop().call_soon(self.links.check_silence)

    def _on_up(self, link: InstanceLink) -> None:
        welcome = link.welcome
        assert welcome is not None, "a link is up when it was welcomed"
        self.stirred.set()
        self.losses.came(welcome.pool, link.replica, link.incarnation)
        self._tell(e.InstanceUp(link.replica, welcome.pool, welcome.node, welcome.kv_blocks))
        if link.status is not None:  # it may have been received with the welcome
            self._on_status(link, link.status)

    def _on_down(self, link: InstanceLink, reason: str) -> None:
        self._note_loss(link, reason)
        self._tell(e.InstanceDown(link.replica, link.still_since))

    def _note_loss(self, link: InstanceLink, reason: str) -> None:
        """Log a lost instance before the core resubmits its sequences. An instance that drained is not a loss."""
        if link.welcome is None:
            return
        self.stirred.set()
        if link.still_since == 0.0:
            moved = self.core.routes.moved[link.replica]
            self.losses.left(InstanceNotice("left", link.welcome.pool, link.replica, "as it was asked to", moved))
            return
        there = [choice.journal for choice in self.core.choices.values() if choice.journal.at == link.replica]
        kind: NoticeKind = "died" if link.still_since is None else "frozen"
        tokens = sum(len(journal.output) for journal in there)
        notice = InstanceNotice(kind, link.welcome.pool, link.replica, reason, len(there), tokens)
        self.losses.lost(notice, link.incarnation)

    async def _wake_while_busy(self) -> None:
        while self._generations:  # without requests only events can change the core's state
            await asyncio.sleep(WAKE_PERIOD_S)
            if self.core.next_wake() <= self._now():
                try:
                    self._tell(e.Look())
                except Exception:
                    logger.exception("the gateway's check of waiting requests failed")
        self._waker = None

    # ---- effects ---------------------------------------------------------------------------------------------------

    def _do(self, effects: list[e.GatewayEffect]) -> None:
        """Carry out an event's effects, and only then report failed sends to the core, as these may end a job."""
        for effect in effects:
            self._carry_out(effect)
        while self._unsent:
            for effect in self._on(self._unsent.popleft(), self._now()):
                self._carry_out(effect)

    def _carry_out(self, effect: e.GatewayEffect) -> None:
        match effect:
            case SequenceUpdate():
                self._generations[effect.number].deliver(effect)
            case Send():
                self._send(effect)
            case e.JobOver(number=number):
                if (generation := self._generations.pop(number, None)) is not None:
                    generation.close(self._now())
            case e.JobFailed():
                self._fail(effect)
            case e.PrefetchKv():
                if self.prefetcher is not None and (layout := self.links.pool_layout):
                    self.prefetcher.start(effect.namespace, layout, effect.hashes)
            case e.Waits(sequence_id=waiting):
                logger.info("%s waits: %s", waiting, effect.reason, extra=_named(waiting.rpartition("/")[0]))
            case e.Broken():
                generation = self._generations[effect.number]
                name = generation.job.request_id
                logger.error("the gateway failed on request %s\n%s", name, effect.trace, extra=_named(name))

    def _fail(self, effect: e.JobFailed) -> None:
        generation, failure = self._generations[effect.number], effect.failure
        if failure.kind is FailKind.POISON:
            self.losses.poisoned(failure.reason)
        name = generation.job.request_id
        logger.warning("request %s failed: %s (%s)", name, failure.reason, failure.kind.value, extra=_named(name))
        if generation.times is not None:
            generation.times.reason = failure.reason
        generation.fail(failure, effect.retry_after_s)

    def _send(self, effect: Send) -> None:
        replica, order = effect.replica, effect.order
        link = self.links.link(replica)
        try:
            sent = link is not None and link.send(order)
        except LinkError as error:
            if isinstance(order, Add | Adopt):
                self._unsent.append(e.TooLarge(order.spec.sequence_id, m.too_large(order, error)))
            return
        if not isinstance(order, Add | Adopt):
            return
        if not sent:
            self._unsent.append(e.Unsent(replica, order.spec.sequence_id))
            return
        if (choice := self.core.choices.get(_own_name(order.spec.sequence_id))) is not None:
            generation = self._generations[choice.job.number]
            generation.given_to(replica)
            if generation.times is not None:
                handoff = isinstance(order, Adopt)
                self.timelines.sent(generation.times, choice.index, replica, self._now(), handoff=handoff)

    def _host_of(self, replica: ReplicaId) -> str:
        link = self.links.link(replica)
        return "" if link is None or link.welcome is None else self.hosts.get(link.welcome.node, link.welcome.node)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _named(request_id: str) -> dict[str, str]:
    return {"request_id": request_id}


def _own_name(sent: SequenceId) -> SequenceId:
    """Id of a sequence at its gateway; each submission has another id."""
    return SequenceId(sent.rpartition("@")[0])


def _refusal(effect: e.Rejected) -> ServingError:
    kind = UnavailableError if effect.unavailable else OverloadedError
    return kind(effect.reason, retry_after_s=effect.retry_after_s)


def attention_tokens(config: ServeConfig) -> float:
    """Context length [tokens] at which attention costs as much as the rest of a token's computation.

    0 if the cost model does not support the model's shape: then all tokens cost the same.
    """
    try:
        return load_shape(config.model.path).attention_tokens
    except HardwareError:
        return 0.0
