"""One supernode in virtual time: pools of instances, gateways, network and KV-cache pool around one event queue."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_struct

from hardware.cost.cost_model import CostModel
from hardware.cost.parallelism import Parallelism
from hardware.cost.transfers import pool_rate
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.spec.plane import Plane
from hardware.topology import DieId, NpuId, Topology
from serving.config.cluster import DIES_PER_NPU
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.gateway.core.from_config import core_settings
from serving.ids import BlockHash, GatewayId, ReplicaId, SequenceId
from serving.instance.core.settings import engine_settings
from serving.virtual.aggregated import AggregatedInstance, aggregated_instance
from serving.virtual.capacity import MODEL_LEN, kv_blocks
from serving.virtual.decode import REFRESH_STEPS, DecodeInstance
from serving.virtual.decode_sizes import DecodeSizes
from serving.virtual.event_queue import EventQueue
from serving.virtual.feed import ArrivalFeed
from serving.virtual.gateway import VirtualGateway
from serving.virtual.instance_driver import DriverContext
from serving.virtual.journal_book import Book
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.movers import VirtualMovers
from serving.virtual.network import Network
from serving.virtual.npu_placement import NpuPlacement
from serving.virtual.pauses import pauses_of
from serving.virtual.ports import Directory, WorkDone
from serving.virtual.prefill import PrefillInstance
from serving.virtual.result import InstanceTotals
from serving.virtual.serve_replicas import MemorySizes, ServeReplicas, start_phases
from serving.virtual.times import JITTER_STEPS, Slowdown, TableTimes
from serving.virtual.work_done import LoadMarks, answers_pool, prompts_pool
from serving.virtual.workload.block_names import BlockNames
from serving.virtual.workload.columns import RequestStream, TraceRequest


class Supernode:
    """One supernode: its gateways, pools of instances, network, KV-cache pool and event queue.

    Args:
        cost: cost model of the simulated device and model.
        seed: of this supernode.
    """

    def __init__(self, config: ServeConfig, cost: CostModel, seed: int) -> None:
        self.config = config
        self.cost = cost
        self.queue = EventQueue()
        self.book = Book(self._nothing_open, config.slo)
        self.directory = Directory()
        self.token_bytes = cost.shape.kv_token_bytes()
        self._attention_tokens = cost.shape.attention_tokens
        self.block_bytes = self.token_bytes * config.engine.block_tokens
        topology = Topology(CLOUDMATRIX384)
        self.placement = NpuPlacement(topology, config.cluster.npus)
        plane = config.simulation.pool_plane
        rate = config.simulation.pool_gb_per_s * 1e9 or pool_rate(cost.device, plane)
        latency_s = cost.device.links.vpc_latency_s if plane == "vpc" else 0.0
        self.network = Network(self.queue, topology, rate, Plane(plane), latency_s)
        has_pool = config.kvcache.replicas > 0 and config.engine.prefix_reuse
        ssd_rate = config.simulation.ssd_gb_per_s * 1e9
        self.pool = VirtualPool(config.kvcache, self.block_bytes, ssd_bytes_per_s=ssd_rate) if has_pool else None
        self.movers = VirtualMovers(
            self.network, self.pool, self.token_bytes, config.engine.block_tokens, config.kvcache.get_timeout_s
        )
        dies = [prompts_pool(config).dies_per_instance, answers_pool(config).dies_per_instance]
        self.times = TableTimes(cost, config.simulation, *dies)
        self._around = DriverContext(self.queue, self.times, self._owner_of, self.movers, self.block_bytes)
        self._seed = seed
        self.arrivals: ArrivalFeed | None = None
        self.prefills: list[PrefillInstance] = []
        self.decodes: list[DecodeInstance] = []
        self.aggregated: list[AggregatedInstance] = []
        self.gateways = [self._gateway(number) for number in range(config.gateway.replicas)]
        self.totals: list[InstanceTotals] = []
        self.load = LoadMarks()
        self.started_s: dict[ReplicaId, float] = {}
        self._fed_by_gone = dict.fromkeys(config.pools, 0)
        """Tokens computed by stopped instances, by pool."""
        self.places: dict[ReplicaId, tuple[NpuId, ...]] = {}
        """The NPUs of each instance."""
        self.serials = dict.fromkeys(config.pools, 0)
        """Instances of each pool so far."""
        self.changing_npus = 0
        """NPUs of ranks that were started by a command and do not serve yet."""
        self.sizes = ServeReplicas(self, start_phases(cost, config.simulation))
        scaler = config.autoscaler
        resized = scaler.decode_step_npus > 0 and scaler.policy != "none"
        self.parts = DecodeSizes(self, scaler.decode_step_npus) if resized else None
        if config.simulation.routing:
            from serving.virtual.expert_groups import ExpertGroups  # elsewhere its imports would be waited for in vain

        self.experts = ExpertGroups(self, seed) if config.simulation.routing else None
        self.slowdowns: dict[ReplicaId, Slowdown] = {}
        """Factor by which the steps of each instance are longer than predicted."""
        self._stretch = 1.0
        self.slow_dies: dict[DieId, float] = {}
        servers = sum(one.ub_memory_mib // config.kvcache.ub_memory_mib for one in config.cluster.nodes)
        self.memory_sizes = (
            None if self.pool is None else MemorySizes(self.queue, self.pool, config.kvcache.replicas, servers)
        )

    # ---- instances -------------------------------------------------------------------------------------------------

    def start_instance(self, pool: str) -> PrefillInstance | DecodeInstance:
        """Start an instance of a pool; it is up at once.

        Raises: ConfigError if too few NPUs are free.
        """
        self.serials[pool] += 1
        name = ReplicaId(f"{pool}-{self.serials[pool] - 1}")
        npus = self.placement.take(self.config.pools[pool].npus_per_instance)
        if npus is None:
            raise ConfigError(
                f"{name} needs {self.config.pools[pool].npus_per_instance} NPUs, {self.placement.idle} are free"
            )
        self.places[name] = npus
        self.slowdowns[name] = Slowdown(self.config.simulation, self._seed, name, averaged=pool == "decode")
        self.slowdowns[name].set("planes", self._stretch)
        self.slowdowns[name].set("dies", self._slowest(npus))
        instance: PrefillInstance | DecodeInstance
        if pool == "aggregated":
            instance = aggregated_instance(self.config, self.cost, name, MODEL_LEN, self._around, self.slowdowns[name])
        else:
            instance = self._prefill(name) if pool == "prefill" else self._decode(name)
        self._of(instance).append(instance)
        self.started_s[name] = self.queue.now
        self.directory.put(instance)
        self.network.join(name, self._ends(name, pool, npus), len(npus))
        for gateway in self.gateways:
            gateway.learn(instance)
        return instance

    def stop_instance(self, instance: PrefillInstance | DecodeInstance) -> None:
        """Remove an instance that has drained or was lost."""
        name = instance.name
        done = instance.done()
        self.totals.append(self.totals_of(instance, self.queue.now))
        self.load.gone(name, done)
        self._fed_by_gone[instance.pool] += done.forward_tokens
        self._of(instance).remove(instance)
        self.directory.drop(name)
        self.network.leave(name)
        self.placement.give_back(self.places.pop(name))
        del self.slowdowns[name]
        if self.experts is not None:
            self.experts.stop(name)
        instance.alive = False
        for gateway in self.gateways:
            gateway.instance_lost(name)

    def move_instance(self, instance: DecodeInstance, npus: tuple[NpuId, ...], pause_s: float) -> None:
        """Resize a decode instance to these NPUs, with a pause, and report its new capacity to the gateways."""
        name = instance.name
        self.places[name] = npus
        self.slowdowns[name].set("dies", self._slowest(npus))
        ends = self._ends(name, "decode", npus)
        self.network.leave(name)
        self.network.join(name, ends, len(npus))
        instance.resize(len(ends), len(npus), pause_s)
        if self.experts is not None:
            self.experts.resize(instance)
        if not instance.silent:
            for gateway in self.gateways:
                gateway.learn(instance)

    def groups_of(self, npus: int) -> int:
        """Groups of dies that share sequences in a decode instance of so many NPUs; not those with experts only."""
        return self.cost.decode.parallelism.groups(npus * DIES_PER_NPU)

    def division_of(self, name: ReplicaId) -> Parallelism:
        """Division of a decode instance's work over its dies."""
        return self.cost.decode.parallelism if self.experts is None else self.experts.cost_of(name).decode.parallelism

    def _ends(self, name: ReplicaId, pool: str, npus: tuple[NpuId, ...]) -> tuple[DieId, ...]:
        """The dies of an instance that send and receive handoffs: of a decode instance, the first of each group.

        Dies with experts only are the first ones, so that the others can grow and shrink.
        """
        dies = self.placement.dies_of(npus)
        if pool == "prefill":
            return dies
        division = self.division_of(name)
        return dies[division.expert_dies :: division.attention_tp]

    def drain(self, instance: PrefillInstance | DecodeInstance) -> None:
        """Drain an instance: it accepts no new sequences, and every gateway receives its status."""
        instance.drain()
        for gateway in self.gateways:
            gateway.report(instance)

    def stretch(self, factor: float) -> None:
        """Multiply the step times of all present and future instances by `factor`, for lost UB sub-planes."""
        self._stretch = factor
        for instance in self.everyone:
            self._change_pace(instance, "planes", factor)

    def slow_die(self, die: DieId, factor: float) -> None:
        """Slow down a die, and with it the instance that uses it, by a factor; 1 = normal speed."""
        self.slow_dies[die] = factor
        for instance in self.everyone:
            if die.npu in self.places[instance.name]:
                self._change_pace(instance, "dies", self._slowest(self.places[instance.name]))
                if self.experts is not None:
                    self.experts.slow(instance.name)

    def _slowest(self, npus: Sequence[NpuId]) -> float:
        """The factor of the slowest die of some NPUs, for which all dies of a group wait."""
        return max((factor for die, factor in self.slow_dies.items() if die.npu in npus), default=1.0)

    def _change_pace(self, instance: PrefillInstance | DecodeInstance, cause: str, factor: float) -> None:
        self.slowdowns[instance.name].set(cause, factor)
        if isinstance(instance, DecodeInstance):  # a prefill instance reads its factor at each step's start
            instance.change_pace()

    def totals_of(self, instance: PrefillInstance | DecodeInstance, stopped_s: float = math.nan) -> InstanceTotals:
        """Totals of an instance's work so far."""
        meter, done = instance.meter, instance.done()
        return InstanceTotals(
            instance.name,
            instance.pool,
            instance.npus,
            self.started_s[instance.name],
            stopped_s,
            meter.steps,
            done.busy_s,
            done.prompt_tokens,
            meter.output_tokens,
            instance.preemptions(),
            meter.peak_batch,
            meter.peak_kv_share,
        )

    def work_done(self) -> dict[ReplicaId, WorkDone]:
        """Work so far of every instance that is up."""
        return {one.name: one.done() for one in self.everyone}

    def _prefill(self, name: ReplicaId) -> PrefillInstance:
        pool = self.config.prefill
        blocks = kv_blocks(self.config, self.cost, "prefill", pool.dies_per_instance)
        settings = engine_settings(self.config, "prefill", pool, MODEL_LEN, blocks)
        return PrefillInstance(
            name, "prefill", pool.npus_per_instance, settings, blocks, self._around, self.slowdowns[name],
            self._attention_tokens,
        )  # fmt: skip

    def _decode(self, name: ReplicaId) -> DecodeInstance:
        pool, simulation = self.config.decode, self.config.simulation
        groups = self.groups_of(pool.npus_per_instance)
        parts = self.parts
        fewest = pool.dies_per_instance if parts is None else parts.rules.fewest * parts.step * DIES_PER_NPU
        blocks = kv_blocks(self.config, self.cost, "decode", fewest)
        of_a_group = replace(
            pool,
            max_sequences=max(1, pool.max_sequences // groups),
            max_step_tokens=max(pool.max_step_tokens // groups, pool.max_sequences // groups, 1),
        )
        settings = engine_settings(self.config, "decode", of_a_group, MODEL_LEN, blocks, draft_tokens=simulation.drafts)
        settings = replace(settings, cache_decoded=not self.config.model.reasoning)
        around = self._around if self.experts is None else replace(self._around, times=self.experts.times(name))
        instance = DecodeInstance(
            name, "decode", pool.npus_per_instance, groups, settings, blocks, around, self.slowdowns[name],
            simulation.drafts, simulation.acceptance,
            JITTER_STEPS if self.slowdowns[name].varies else REFRESH_STEPS,
        )  # fmt: skip
        if self.experts is not None:
            self.experts.start(instance)
        return instance

    def _owner_of(self, sequence_id: SequenceId) -> VirtualGateway:
        """The gateway of a sequence, from its id: `g2-71/0@1` belongs to gateway 2."""
        gateways = self.gateways
        return gateways[0] if len(gateways) == 1 else gateways[int(sequence_id[1 : sequence_id.index("-")])]

    def _gateway(self, number: int) -> VirtualGateway:
        config = self.config
        settings = core_settings(config, GatewayId(f"g{number}"), tuple(config.pools), self._attention_tokens)
        return VirtualGateway(
            replace_struct(settings, max_age_s=math.inf),  # links do not fall silent in virtual time
            self.queue,
            self.directory,
            self.book,
            config.simulation.status_period_s,
            config.gateway.replicas,
            config.gateway.request_timeout_s,
            self._seed,
            self.pool,
            pauses_of(config, self.pool, self.queue),
        )

    def instances(self, pool: str) -> Sequence[PrefillInstance | DecodeInstance]:
        """Instances of a pool that are up, including draining ones."""
        if pool == "aggregated":
            return self.aggregated
        return self.prefills if pool == "prefill" else self.decodes

    def _of(self, instance: PrefillInstance | DecodeInstance) -> list[Any]:
        if isinstance(instance, AggregatedInstance):
            return self.aggregated
        return self.prefills if isinstance(instance, PrefillInstance) else self.decodes

    @property
    def decoding(self) -> list[DecodeInstance | AggregatedInstance]:
        """Instances that are up and decode."""
        return [*self.decodes, *self.aggregated]

    @property
    def everyone(self) -> list[PrefillInstance | DecodeInstance]:
        """All instances that are up."""
        return [*self.prefills, *self.decodes, *self.aggregated]

    @property
    def expert_bytes(self) -> int:
        """Bytes of dispatch and combine over UB so far."""
        shape, fed = self.cost.shape, dict(self._fed_by_gone)
        for instance in self.everyone:
            fed[instance.pool] += instance.done().forward_tokens
        message = shape.dispatch_bytes + shape.combine_bytes
        routed = sum(fed.values()) * shape.active_experts
        of_prefill = fed.get("prefill", 0)  # on prefill dies the shared expert is local
        shared = (sum(fed.values()) - of_prefill) * shape.shared_experts
        return shape.moe_layers * (routed + shared) * message

    @property
    def busy(self) -> bool:
        """Whether requests are open or still to arrive."""
        return self._more or self.book.open_rows > 0

    @property
    def _more(self) -> bool:
        return self.arrivals is not None and self.arrivals.more

    def _nothing_open(self) -> None:
        if not self._more:
            self.queue.halt()

    # ---- requests --------------------------------------------------------------------------------------------------

    def feed(self, workload: RequestStream) -> None:
        """Schedule the arrivals of a workload; see `ArrivalFeed`."""
        names = BlockNames(workload.block_tokens, self.config.engine.block_tokens)

        def enter(request: TraceRequest, sent_s: float) -> None:
            row = self.book.arrive(sent_s, request.prompt_tokens)
            hashes: tuple[BlockHash, ...] = ()
            if self.config.engine.prefix_reuse:
                hashes = names.names(request.prompt_tokens, request.blocks, row)
            order = row, request.prompt_tokens, request.output_tokens, hashes
            turn = None if self.arrivals is None else self.arrivals.session_turn(row)
            self.gateways[row % len(self.gateways)].submit(order, request.key, turn)

        gateway_s = self.config.simulation.gateway_s
        self.arrivals = ArrivalFeed(workload, self.queue, self.book, gateway_s, enter, self._all_arrived)
        self.arrivals.begin()

    def _all_arrived(self) -> None:
        self.load.over(self.queue.now, self.work_done())
        if not self.book.open_rows:  # the last one was refused at once
            self.queue.halt()
