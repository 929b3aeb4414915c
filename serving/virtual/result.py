"""Result of a simulation: the one value that reports, `reproduce` and `plan` read.

Plain values with plain names; `result_json` in `report` writes them in a fixed order, so that one seed gives the same
bytes. Times are virtual seconds from the start of the trace.
"""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from serving.values.news import FailKind

FAILURES = tuple(FailKind)
NO_PAUSE = -1.0
"""In `RequestColumns.pause_s`: nothing came before."""
ENGINE = "engine"
"""Entry of `SimResult.config` with the engine that the times hold for."""
ACCURACY = "accuracy"
"""Entry of `SimResult.config` with the expected accuracy of the times."""


class Outcome(IntEnum):
    """How a request ended."""

    FINISHED = 0
    REJECTED = 1
    """429: the gateway's queue was full."""
    FAILED = 2
    """Ended by too many attempts, its deadline, or for lack of an instance."""
    UNFINISHED = 3
    """Still open when the simulation was stopped."""


@dataclass(slots=True)
class RequestColumns:
    """One row per request, in order of arrival; column-wise, because there may be millions."""

    arrival_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_token_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When the first token reached the client; nan if none did."""
    finish_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When the last token reached the client; nan if it did not finish."""
    prompt_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    output_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    """Tokens that reached the client."""
    cached_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    """Prompt tokens that were not computed: found in the instance or pulled from the pool."""
    pulled_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    """Part of `cached_tokens` that was loaded from the KV-cache pool."""
    attempts: "array[int]" = field(default_factory=lambda: array("q"))
    """Number of times the request was sent to a prefill instance."""
    outcome: "array[int]" = field(default_factory=lambda: array("b"))
    """`Outcome` values."""
    queue_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Time in the queues of the gateway and of an instance before the prompt was started; nan without a first token."""
    adopted_s: "array[float]" = field(default_factory=lambda: array("d"))
    """When a decode instance first held the prompt's KV; nan if the KV was never moved."""
    job: "array[int]" = field(default_factory=lambda: array("q"))
    """Number of the job that the request is a turn of; -1 if none."""
    job_turns: "array[int]" = field(default_factory=lambda: array("q"))
    """Turns of that job in all; 0 without one."""
    pause_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Pause in front of a job's turn; `NO_PAUSE` for its first turn, and without a job."""
    repeated_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    """Leading prompt tokens that an earlier turn of the job had."""
    failure: "array[int]" = field(default_factory=lambda: array("b"))
    """Place in `FAILURES` of why the request failed; -1 if it did not."""

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """The whole system at one moment.

    Attributes:
        prefill_queue_tokens: known tokens that prefill instances have not computed yet.
        prefill_waiting, decode_waiting: sequences without blocks yet.
        decode_batch: sequences decoding.
        decode_kv_share, prefill_kv_share: used part of the KV blocks, 0..1.
        pool_share: used part of the KV-cache pool's memory, 0..1.
        prefill_npus, decode_npus: of instances that serve; `starting_npus` of starting ones; `idle_npus` are unused.
        ub_bytes, rdma_bytes, vpc_bytes: moved since the start.
        ub_share, rdma_share, vpc_share: used part of each plane's capacity since the previous point, 0..1.
        step_s: duration of the running decode step [s]; 0 if none.
        draining_npus: of draining instances: part of `prefill_npus` and `decode_npus`.
        memory_servers: number of memory servers in the KV-cache pool, without draining ones.
    """

    at_s: float
    prefill_queue_tokens: int
    prefill_waiting: int
    decode_waiting: int
    decode_batch: int
    prefill_kv_share: float
    decode_kv_share: float
    pool_share: float
    prefill_npus: int
    decode_npus: int
    starting_npus: int
    idle_npus: int
    ub_bytes: int
    rdma_bytes: int
    vpc_bytes: int
    ub_share: float
    rdma_share: float
    vpc_share: float
    step_s: float
    draining_npus: int = 0
    memory_servers: int = 0


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision of the control plane, with its reason.

    Attributes:
        kind: `route prefill`, `route decode`, `scale`, `preempt`, `reject`, `resubmit`, ...
        subject: request, instance or pool that the decision concerns.
        choice: what was decided.
    """

    at_s: float
    kind: str
    subject: str
    choice: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScaleRecord:
    """One target that the autoscaler changed, with its reason.

    Attributes:
        kind: a value of `serving.scaling.core.decision.ScaleKind`.
    """

    at_s: float
    pool: str
    before: int
    target: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExpertRecord:
    """One change of an expert-parallel group's map.

    Attributes:
        kind: `opened`, `rebalanced`, `undone` (a rebalance that was not completed), `lost`, `joined` or `resized`; of
            commands, which change no map themselves, `ordered`, `refused`, `complete` or `given up`.
        ranks: members after the change.
        moves: planned expert moves, counted per layer of the routing.
        before, after: balancedness under the load at that time: mean over largest of the ranks' rows, averaged over
            layers; nan before the first map.
    """

    at_s: float
    group: str
    kind: str
    ranks: int
    moves: int
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One fault that happened, and what it cost.

    Attributes:
        kind: as `hardware.faults` names it.
        target: unit or process that the fault hit.
        until_s: when its effect ended; nan if it lasted to the end of the run.
        sequences_hit: sequences that had to start again or were slowed down.
        tokens_lost: computed tokens, prompt and output, that had to be recomputed.
        npu_seconds_lost: NPU time without service because of the fault.
    """

    at_s: float
    kind: str
    target: str
    until_s: float
    sequences_hit: int = 0
    tokens_lost: int = 0
    npu_seconds_lost: float = 0.0


@dataclass(frozen=True, slots=True)
class InstanceTotals:
    """One instance over the whole run."""

    name: str
    pool: str
    npus: int
    started_s: float
    stopped_s: float
    """nan if it served to the end."""
    steps: int
    busy_s: float
    prompt_tokens: int
    """Prompt tokens computed, including recomputed ones."""
    output_tokens: int
    preemptions: int
    peak_batch: int
    peak_kv_share: float
    load_s: float = 0.0
    """Time that the instance was up under load: until the last request arrived [s]."""
    load_busy_s: float = 0.0
    """Part of `load_s` in which steps ran [s]."""
    work_s: float = 0.0
    """Time that its work during `load_s` takes at its best rate [s]; see `work_done`."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the whole run. The conservation tests check these values.

    Attributes:
        end_s: time of the last event.
        prompt_tokens_in: of all requests that were sent to an instance, each counted once.
        tokens_computed: prompt tokens computed, including recomputed ones. tokens_cached, tokens_pulled: prompt tokens
            not computed, as reported with each request's first token; later hits of resubmissions are not included.
        tokens_out: tokens that reached clients.
        tokens_generated: tokens sampled by decode instances. Excludes first tokens, which prefill samples; includes
            tokens lost before they reached a client.
        kv_bytes_handed_off: over the RDMA plane; `kv_bytes_pulled`, `kv_bytes_stored`: from and into the pool, over UB.
        pool_lookups_blocks, pool_hits_blocks: blocks looked up and found.
        npu_seconds: NPU time of instances that served or started.
        events: events handled by the simulator.
        kv_bytes_sent: moved to memory servers; more than stored if some blocks were already stored.
        expert_bytes: of dispatch and combine, over UB.
        load_s: time under load: until the last request arrived [s].
    """

    end_s: float
    prompt_tokens_in: int
    tokens_computed: int
    tokens_cached: int
    tokens_pulled: int
    tokens_out: int
    tokens_generated: int
    kv_bytes_handed_off: int
    kv_bytes_pulled: int
    kv_bytes_stored: int
    pool_lookups_blocks: int
    pool_hits_blocks: int
    npu_seconds: float
    events: int
    kv_bytes_sent: int = 0
    expert_bytes: int = 0
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimResult:
    """One run, or several supernodes' runs merged.

    Attributes:
        name: of the configuration.
        config: what was simulated, as a flat table of text for the report: pools, sizes, device, SLOs, seed, faults.
        wall_s: wall-clock time of the run; not part of the JSON.
        decisions: the latest of each kind up to a bound; `decision_counts` counts all of them.
        scaling: every change of a target.
        experts: every change of a group's expert map; none without `[simulation] routing`.
    """

    name: str
    workload: str
    seed: int
    supernodes: int
    config: dict[str, str]
    requests: RequestColumns
    timeline: list[SimulatedPoint]
    timeline_step_s: float
    decisions: list[DecisionRecord]
    decision_counts: dict[str, int]
    faults: list[FaultRecord]
    instances: list[InstanceTotals]
    totals: Totals
    wall_s: float = 0.0
    scaling: list[ScaleRecord] = field(default_factory=list)
    experts: list[ExpertRecord] = field(default_factory=list)
