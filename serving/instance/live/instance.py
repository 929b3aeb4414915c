"""One instance, assembled: virtual NPUs, KV arena in its UB segment, compute, engine thread, link server.

Independent of Ray: the caller (a Serve replica or a test) passes the NPUs and the node.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from serving.config.health import HealthConfig
from serving.config.serve import ServeConfig
from serving.group.core.rank_life import check_offers
from serving.ids import BlockHash
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.engine_record import header_of, recorded
from serving.instance.core.settings import EngineSettings, engine_settings
from serving.instance.live.compute import Attached, Compute, GroupMember, InstanceCache
from serving.instance.live.engine_loop import EngineLoop
from serving.instance.live.engine_news import DurationReporter
from serving.instance.live.faulty_ports import FaultyPorts
from serving.instance.live.gentle import run_gently
from serving.instance.live.instance_server import InstanceServer
from serving.instance.live.pool_access import PoolAccess
from serving.instance.live.segment_reader import SegmentReader
from serving.instance.live.segment_server import SegmentServer
from serving.instance.live.ub_transport import LinkFaults, UbTransport
from serving.kvevents.live.publisher import EventPublisher, EventSource
from serving.sockets.secrets import ClusterSecrets
from serving.telemetry.decision_writer import writer_in
from serving.values.group import RankOffer, RegroupOrder
from serving.values.health import LinkLimits, StepLimits
from serving.values.instances import CRASHED_AGE_S, InstancePlace
from serving.values.pool_view import PoolView
from serving.wire.messages import InstanceWelcome

__all__ = ["Instance", "InstancePlace"]

Result = TypeVar("Result")
_SERVED_S = 2.0
"""How long the segment stays available to its readers during a stop."""


class Instance:
    """The runtime of one replica, or of one rank of a group.

    Construct it, `await start()`, and finally `await stop()`. Before it starts, a rank of a group also sends its
    `offer()` to its peers, and receives the first command of its shell by `follow`.
    """

    def __init__(
        self,
        config: ServeConfig,
        place: InstancePlace,
        secret: str | ClusterSecrets,
        pool_view: Callable[[], PoolView] | None = None,
        *,
        gently: bool = False,
    ) -> None:
        """Load the model and allocate memory; slow.

        Args:
            secret: shared by gateways, instances and memory servers.
            pool_view: returns the latest view of the KV-cache pool; None = no pool.
            gently: run long work at low priority.
        Raises: ModelError, ConfigError, HardwareError (too little HBM or UB memory).
        Effects: creates the instance's UB segment, and those of the compute.
        """
        self.place, self._ports = place, config.cluster.ports
        secrets = ClusterSecrets.of(secret)
        access = PoolAccess(pool_view, secrets, config.kvcache) if pool_view is not None else None
        heavy = run_gently if gently else _run
        self.compute = compute = heavy(partial(make_compute, config, place, access))
        self.npus, self.kv = compute.npus, compute.kv
        arena_bytes = self.kv.count * self.kv.real_bytes
        self._segment = heavy(partial(_make_segment, config, place, arena_bytes))
        self._region: UbRegion = self._segment.allocate(arena_bytes, owner=place.replica)
        arena = self._segment.view(self._region)
        self._attached = attached = self._attach(config, arena, secrets)
        self.settings = self._make_settings(config)
        faults = FaultyPorts(config.chaos, place)
        self._segment_server, self._segment_reader = SegmentServer(self._segment, secrets), SegmentReader(secrets)
        self._transport = self._make_transport(attached, arena, config.health, faults.link())
        self.engine = InstanceEngine(self.settings, self.kv.count)
        self.server = InstanceServer(
            self._welcome(attached),
            secrets,
            report_period_s(config.health, compute.status_period_s),
            self._transport.probes.trouble,
            attached.grammars,
            idle_period_s(config.health, compute.status_period_s),
        )
        self.pool_cache, self._events = self._make_cache(access, attached, arena), self._make_events(config)
        folder, header = config.engine.decision_log, header_of(place.replica, self.engine)
        self._decisions = log = writer_in(folder, "engine", place.replica, header)
        self.loop = EngineLoop(
            self.engine,
            faults.executor(attached.executor),
            faults.transport(compute.transport(self._transport)),
            compute.clock,
            self.server.deliver,
            place.replica,
            on_step=compute.record_step,
            cache=faults.cache(self.pool_cache),
            time_scale=compute.time_scale,
            pulls_at_once=compute.pulls_at_once,
            step_limits=step_limits(config, compute.time_scale),
            on=recorded(self.engine, log.note) if log is not None else None,
            times=self._durations() if _tells_times(config) else None,
        )

    def _attach(self, config: ServeConfig, arena: memoryview, secrets: ClusterSecrets) -> Attached:
        made = self.compute.attach(arena)
        if made.group is not None and config.experts.across_nodes:
            made.group.listen(self.place.link_host, secrets, self._ports)
        return made

    def _durations(self) -> DurationReporter:
        group = self._attached.group
        return DurationReporter(lambda: self.npus.predicted_s, None if group is None else group.sessions)

    @property
    def member(self) -> GroupMember:
        """The rank's place in its group; for ranks only."""
        assert self._attached.group is not None, "an instance with one process has no group"
        return self._attached.group

    def offer(self) -> RankOffer:
        """Facts that this rank's peers and its shell need."""
        return self.member.offer(self._attached.layout)

    def late_peer(self) -> int | None:
        """The rank for which this one has waited longer than a step may take; None = there is none. Any thread."""
        awaited = self.member.awaited()
        return awaited[0] if awaited is not None and awaited[1] > self.loop.step_limit_s() else None

    def follow(self, order: RegroupOrder) -> None:
        """Compute with these members from the order's epoch on. Call it with the first order before `start`.

        Raises: GroupError if they do not form a group.
        """
        assert self.place.rank is not None
        check_offers(self.offer(), self.place.rank.most, order.offers)
        self.member.follow(order)

    async def start(self) -> tuple[str, int]:
        """Start the engine thread, the link server and the segment's server.

        Returns: the address to which gateways connect.
        Raises: OSError if the host cannot be bound; ConfigError if `[cluster] port_range` has no free port.
        """
        self._segment_server.start(self.place.link_host, self._ports)
        self.server.facts = self.facts
        self.server.prefix_facts = self.prefix_facts
        self.server.max_sequences = self.settings.max_sequences
        self.server.max_step_tokens = self.settings.max_step_tokens
        address = await self.server.start(self.loop, self.place.link_host, self._ports)
        self.loop.start()
        if self._events is not None:
            self._events.start()
        return address

    @property
    def address(self) -> tuple[str, int]:
        """Address to which gateways connect, once started."""
        return self.server.address

    def move(self, host: str) -> tuple[str, int]:
        """Also listen on another address of this host, and report that one to gateways and pullers from now on.

        Returns, raises: as `start`.
        """
        self._segment_server.move(host)
        self.server.move(host)
        return self.address

    def hold(self, share: float, stall_timeout_s: float) -> tuple[float, int | None]:
        """Take the share of its usual sequences that this rank is to request, see `Status.share`.

        Returns: time that it has had work without progress [s], 0 unless `stalled`; and `late_peer`.
        """
        self.server.share = share
        stalled_s = min(self.loop.progress_age_s(), CRASHED_AGE_S) if self.stalled(stall_timeout_s) else 0.0
        return stalled_s, self.late_peer() if self.member.order is not None else None

    async def leave(self, drain_s: float) -> None:
        """Hand its sequences on, see `InstanceServer.leave`."""
        await self.server.leave(drain_s)

    def quit(self) -> None:
        """Stop computing, for this rank and its peers; the step in flight is void. Takes at most a few seconds."""
        self.loop.stop(release=self.compute.stop)

    async def stop(self) -> None:
        """Stop all parts and free the memory. Remaining sequences are lost.

        Waits for a hanging step or move for a few seconds only, on a thread, then abandons it.
        """
        await self.server.stop()
        await asyncio.to_thread(self._end)

    def close_log(self) -> None:
        """Finish writing the decision log. Idempotent; nothing is recorded afterwards."""
        if self._decisions is not None:
            self._decisions.close()

    def _end(self) -> None:
        self.quit()
        self.close_log()
        if self._events is not None:
            self._events.stop()
        if self.pool_cache is not None:
            self.pool_cache.close()
        self._transport.close()
        self._segment_reader.close()
        self._segment_server.stop(_SERVED_S)
        self._segment.release(self._region)
        self._segment.remove()
        self.compute.close()

    def stalled(self, timeout_s: float) -> bool:
        """Whether there has been work without progress for too long, in the instance's time and in real time.

        Slow simulated time lengthens steps, and fast simulated time magnifies short pauses, so both clocks must exceed
        the limit. Gateways avoid an engine after `step_limit_s`; replacing it takes twice that time.
        """
        patience_s = max(timeout_s * max(1.0, self.compute.time_scale), 2.0 * self.loop.step_limit_s())
        return self.loop.progress_age_s() > patience_s

    def facts(self) -> dict[str, Any]:
        """Facts of this instance for status pages and metrics: plain numbers and strings."""
        snapshot = self.loop.snapshot
        return {
            "told_s": time.monotonic(),
            "npus": [str(npu.id) for npu in self.npus.npus],
            "hbm_used_bytes": self.npus.used_bytes,
            "hbm_capacity_bytes": self.npus.capacity_bytes,
            "ub_bytes": self._region.nbytes,
            "readers": self._segment_server.readers,
            "kv_block_bytes": self.kv.block_bytes * self.kv.width,
            "block_tokens": self.settings.block_tokens,
            "draining": self.server.draining,
            "progress_age_s": min(self.loop.progress_age_s(), 1e9),
            "pull_age_s": self.loop.moves.pull_age_s(),
            "paths": self.loop.moves.paths.facts(),
            "open_sequences": self.server.open_sequences,
            "taken_total": self.server.taken,
            "busy_s": self.loop.busy_s,
            "first_step_s": self.loop.first_step_s,
            "predicted_s": self.npus.predicted_s,
            "pool": self.pool_cache.facts() if self.pool_cache is not None else None,
            "kv_events": self._events.facts() if self._events is not None else None,
            **self.compute.facts(),
            **{name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__},
        }

    def prefix_facts(self, hashes: Sequence[BlockHash]) -> dict[str, Any]:
        """See `FactsRequest`."""
        blocks, rank = self.engine.scheduler.blocks.known_rows(hashes), self.place.rank
        layout = self._attached.pool_layout
        return {"kv_layout": layout, "prefix_blocks": blocks, "rank": 0 if rank is None else rank.number}

    def _make_events(self, config: ServeConfig) -> EventPublisher | None:
        if not (config.kv_events.enabled and config.engine.prefix_reuse):
            return None
        place = self.place
        rank = 0 if place.rank is None else place.rank.number
        source = EventSource(place.replica, config.model.served_name, self.settings.block_tokens, rank)
        publisher = EventPublisher(config.kv_events, source)
        self.engine.scheduler.blocks.pool.changes = publisher.changes
        return publisher

    def _make_settings(self, config: ServeConfig) -> EngineSettings:
        pool, compute = self.place.pool, self.compute
        return engine_settings(
            config,
            pool,
            config.pools[pool],
            compute.max_model_len,
            self.kv.count,
            draft_tokens=compute.draft_tokens,
            speculation=compute.speculation,
            forced_tokens=compute.forced_tokens,
            lookup_tokens=compute.lookup_tokens,
            split=self.kv.split,
        )

    def _make_cache(self, access: PoolAccess | None, attached: Attached, arena: memoryview) -> InstanceCache | None:
        if access is None or not self.settings.pool:
            return None
        place = self.place
        return self.compute.cache(
            access.context_cache(
                place.replica, place.node, attached.pool_layout, arena, self.kv.real_bytes, attached.mirror
            )
        )

    def _make_transport(
        self,
        attached: Attached,
        arena: memoryview,
        health: HealthConfig,
        faults: LinkFaults | None,
    ) -> UbTransport:
        place = self.place
        return UbTransport(
            replica=place.replica,
            node=place.node,
            segment=self._segment,
            arena=arena,
            arena_offset=self._region.offset,
            generation=self._region.generation,
            block_bytes=self.kv.real_bytes,
            layout=attached.layout,
            read_remote=self._segment_reader.read,
            served_at=lambda: self._segment_server.address,
            mirror=attached.mirror,
            on_moved=self.compute.on_moved,
            limits=LinkLimits(health.probe_period_s, health.probe_late_s, health.probe_lost_s),
            faults=faults,
        )

    def _welcome(self, attached: Attached) -> InstanceWelcome:
        return InstanceWelcome(
            replica=self.place.replica,
            pool=self.place.pool,
            node=self.place.node,
            layout=attached.layout,
            block_tokens=self.settings.block_tokens,
            kv_blocks=self.kv.count // self.kv.width,
            max_model_len=self.settings.max_model_len,
            pool_layout=attached.pool_layout if self.settings.pool else "",
        )


def _tells_times(config: ServeConfig) -> bool:
    return bool(config.gateway.timelines or config.gateway.trace_endpoint)


def _make_segment(config: ServeConfig, place: InstancePlace, nbytes: int) -> UbSegment:
    return UbSegment.create(place.segment_path, nbytes, max_regions=1, reserve=config.hardware.reserve_memory)


def _run(work: Callable[[], Result]) -> Result:
    return work()


def report_period_s(health: HealthConfig, simulated_s: float | None) -> float:
    """Interval of reports to gateways [s]: the simulated device's, but short enough not to appear frozen.

    Args:
        simulated_s: the device's own interval in real time; None = it has none.
    """
    return health.link_period_s if simulated_s is None else min(simulated_s, health.silence_s / 4)


def idle_period_s(health: HealthConfig, simulated_s: float | None) -> float | None:
    """Interval of reports of an instance without sequences [s]: twice the other, if four of them fit into the limit.

    Args:
        simulated_s: as for `report_period_s`; a simulated device keeps its interval.
    """
    return (
        None
        if simulated_s is not None
        else max(health.link_period_s, min(2 * health.link_period_s, health.silence_s / 4))
    )


def step_limits(config: ServeConfig, time_scale: float) -> StepLimits:
    """How long a step may take, in the instance's time, where fast simulated time lengthens a short pause."""
    scale, health = max(1.0, time_scale), config.health
    return StepLimits(health.step_stall_s * scale, health.step_factor, config.engine.stall_timeout_s * scale)


# Creates an instance's compute according to the configuration.
#
# Only the selected one is imported.


def make_compute(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> Compute:
    """The compute for `[engine] executor`, with its model and its dies' memory booked; may be slow.

    Raises: ModelError, ConfigError, HardwareError (too little HBM).
    Effects: those of the implementation.
    """
    if config.engine.executor == "simulated":
        from serving.instance.live.compute_simulated import SimulatedCompute

        return SimulatedCompute(config, place)
    from serving.instance.live.compute_model import ModelCompute

    return ModelCompute(config, place, access)
