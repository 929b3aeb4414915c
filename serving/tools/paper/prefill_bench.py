"""One prefill instance under full steps: the live prefill engine in virtual time, with the KV-cache pool.

The paper measures prefill alone, with 16K prompt tokens for each NPU in a step. Either one such batch follows the other
(`overlap` off: each request's time is its TTFT), or the next ones are already waiting, and their cached blocks are
loaded from the pool while the previous step computes.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

from hardware.cost import CostModel, PrefillLoad
from hardware.fabric import Fabric, Link, LinkId, TransferId
from hardware.spec.plane import Plane
from serving.config.kvcache import KvCacheConfig
from serving.errors import ServingError
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.instance.core.events import FetchOrder, PullOrder, StoreOrder
from serving.instance.core.placeholder import PlaceholderPrompt
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.news import News, Prefilled
from serving.values.orders import Add, Release
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.virtual.event_queue import EventQueue
from serving.virtual.instance_driver import DriverContext
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.memory_values import LongestPrefix
from serving.virtual.ports import Done
from serving.virtual.prefill import PrefillInstance

BLOCK_TOKENS = 128
DIES_PER_NPU = 2
_SERVERS = KvCacheConfig(replicas=32, ub_memory_mib=524_288)
"""The memory servers of the paper's deployment."""
_LINK = LinkId("pool to instance")
_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class PrefillCase:
    """Load that is run.

    Attributes:
        cached_blocks: of each prompt, that the pool has.
        gb_per_s: at which one NPU loads them; None = the effective rate of the device's file.
        imbalance: as in `PrefillLoad`; 1 = experts' load ideally even.
        overlap: all batches wait from the start; else one follows the other.
        batches: of `tokens_per_npu` prompt tokens for each NPU.
        room_batches: how many of them the instance's KV blocks can hold. What the paper ran must have fitted.
    """

    prompt: int = 4096
    tokens_per_npu: int = 16_384
    npus: int = 16
    cached_blocks: int = 0
    gb_per_s: float | None = None
    imbalance: float | None = 1.0
    microbatch: bool = True
    overlap: bool = False
    batches: int = 3
    room_batches: int = 2

    @property
    def prompts(self) -> int:
        """Prompts of one batch."""
        return self.tokens_per_npu * self.npus // self.prompt

    @property
    def reuse(self) -> float:
        """Share of each prompt that the pool has."""
        return self.cached_blocks * BLOCK_TOKENS / self.prompt


@dataclass(frozen=True, slots=True)
class PrefillMeasure:
    """Measured result.

    Attributes:
        ttft_s: mean over all prompts, from when their batch was sent.
        tokens_per_s: of one NPU; prompt tokens, cached ones included.
        pulled_share: of all prompt tokens, from the pool.
    """

    ttft_s: float
    tokens_per_s: float
    pulled_share: float


class _Times:
    def __init__(self, cost: CostModel, case: PrefillCase) -> None:
        self._cost = cost
        self._case = case

    def prefill(self, tokens: float, attended_tokens: float, largest: float = 0.0) -> float:
        """See `StepTimes`."""
        case = self._case
        load = PrefillLoad(
            tokens, attended_tokens, DIES_PER_NPU * case.npus, case.imbalance, microbatch=case.microbatch
        )
        return self._cost.prefill_step_s(load)

    def decode(self, requests: float, context_tokens: float, mean_requests: float, groups: int = 0) -> float:
        """See `StepTimes`."""
        raise ServingError("a prefill bench does not decode")

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """See `StepTimes`."""
        raise ServingError("a prefill bench does not decode")


@dataclass(slots=True)
class _Loads:
    """Loads from the pool that share the instance's link to it; stores take no time."""

    queue: EventQueue
    pool: VirtualPool
    block_bytes: int
    fabric: Fabric
    under_way: dict[TransferId, tuple[FetchOrder, LongestPrefix, Done]] = field(default_factory=dict)
    watched: float = -1.0
    serial: int = 0

    def pull(self, order: PullOrder, target: ReplicaId, die: int, tokens: int, done: Done) -> None:
        """See `Movers`."""
        raise ServingError("a prefill bench pulls no handoffs")

    def fetch(self, order: FetchOrder, instance: ReplicaId, done: Done) -> None:
        """See `Movers`."""
        now = self.queue.now
        found = self.pool.lookup_and_hold(order.namespace, order.hashes, 0, now)
        if not found.blocks:
            self.pool.release(found.handle, now)
            self.queue.at(now, done, (order, FetchReport(0)))
            return
        self.serial += 1
        name = TransferId(f"{self.serial:09d}")
        self.under_way[name] = order, found, done
        self.fabric.start(now, name, (_LINK,), found.blocks * self.block_bytes)
        self._watch()

    def store(self, order: StoreOrder, instance: ReplicaId, done: Done) -> None:
        """See `Movers`."""
        self.pool.store(order.namespace, order.hashes, 0, self.queue.now)
        self.queue.at(self.queue.now, done, order)

    def _watch(self) -> None:
        upcoming = self.fabric.next_end()
        if upcoming is not None and upcoming[0] != self.watched:
            self.watched = upcoming[0]
            self.queue.at(upcoming[0], self._ended, upcoming[0])

    def _ended(self, when: float) -> None:
        if when != self.watched:
            return
        while (upcoming := self.fabric.next_end()) is not None and upcoming[0] <= when:
            self.fabric.finish(*upcoming)
            order, found, done = self.under_way.pop(upcoming[1])
            self.pool.release(found.handle, when)
            done((order, FetchReport(found.blocks, found.from_ssd, nbytes=found.blocks * self.block_bytes)))
        self._watch()


class PrefillBench:
    """One run of a prefill instance in virtual time.

    It also is the gateway of this instance: it records first tokens, and releases each handoff at once.
    """

    def __init__(self, cost: CostModel, case: PrefillCase) -> None:
        self.case = case
        self._queue = EventQueue()
        token_bytes = cost.shape.kv_token_bytes()
        pool = VirtualPool(_SERVERS, token_bytes * BLOCK_TOKENS)
        fitted = cost.device.calibration.pool_load_bytes_per_s
        rate = (fitted if case.gb_per_s is None else case.gb_per_s * 1e9) * case.npus
        self._loads = _Loads(self._queue, pool, token_bytes * BLOCK_TOKENS, Fabric([Link(_LINK, Plane.UB, rate)]))
        # Space for the step that computes and for the one that loads: the paper's load must have fitted.
        blocks = case.room_batches * (case.prompts * -(-(case.prompt + 1) // BLOCK_TOKENS) + 1)
        settings = EngineSettings(
            role=EngineRole.PREFILL, block_tokens=BLOCK_TOKENS, max_step_tokens=case.tokens_per_npu * case.npus,
            max_sequences=4096, max_waiting=65_536, max_model_len=131_072, pool=True, store_decoded=False,
            max_store_blocks=blocks,
        )  # fmt: skip
        block_bytes = token_bytes * BLOCK_TOKENS
        around = DriverContext(self._queue, _Times(cost, case), lambda _: self, self._loads, block_bytes)
        self._instance = PrefillInstance(
            ReplicaId("prefill"), "prefill", case.npus, settings, blocks, around, lambda _step: 1.0
        )
        self._sent: dict[SequenceId, float] = {}
        self._next = 0
        self.waits: list[float] = []
        self.ends: list[float] = []
        self.pulled = 0

    def run(self) -> PrefillMeasure:
        """All batches, to the end."""
        case, queue = self.case, self._queue
        busy_s = 0.0
        for number in range(case.batches):
            begins_s = queue.now
            self._send_batch()
            if not case.overlap or number + 1 == case.batches:
                queue.run()
                busy_s += self.ends[-1] - begins_s
        done = len(self.ends)
        if case.overlap:  # the first step could not hide its loads
            done = sum(end > self.ends[0] for end in self.ends)
            busy_s = self.ends[-1] - self.ends[0]
        return PrefillMeasure(
            sum(self.waits) / len(self.waits),
            done * case.prompt / busy_s / case.npus,
            self.pulled / (len(self.ends) * case.prompt),
        )

    def _send_batch(self) -> None:
        case = self.case
        for _ in range(case.prompts):
            number, self._next = self._next, self._next + 1
            hashes = tuple(_hash(number, block) for block in range(case.prompt // BLOCK_TOKENS))
            if case.cached_blocks:
                self._loads.pool.store(_NAMESPACE, hashes[: case.cached_blocks], 0, self._queue.now)
            name = SequenceId(f"0-{number}/0@0")
            self._sent[name] = self._queue.now
            spec = SequenceSpec(
                name, cast("tuple[int, ...]", PlaceholderPrompt(case.prompt)),
                SamplingParams(max_tokens=256, temperature=0.0), time_left_s=1e6, prompt_hashes=hashes,
            )  # fmt: skip
            self._instance.take(Add(spec))

    # ---- what a gateway hears ------------------------------------------------------------------------------------

    def hear(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        """See `Owner`. Requests never fail, and decode does not run."""
        for one in news:
            if not isinstance(one, Prefilled):
                raise ServingError(f"a prefill bench heard {one}")
            now, pool = self._queue.now, one.first.pool
            self.waits.append(now - self._sent.pop(one.sequence_id))
            self.ends.append(now)
            self.pulled += pool.pulled_tokens if pool else 0
            self._queue.at(now, self._release, one.ticket.ticket_id)

    def _release(self, ticket_id: str) -> None:
        self._instance.take(Release(ticket_id))


def _hash(prompt: int, block: int) -> BlockHash:
    return BlockHash(blake2b(f"{prompt}/{block}".encode(), digest_size=16).digest())


def measure_prefill(cost: CostModel, case: PrefillCase) -> PrefillMeasure:
    """Run full steps through a prefill instance and measure them."""
    return PrefillBench(cost, case).run()
