"""Settings of every instance in any pool."""

from dataclasses import dataclass, replace
from typing import Literal

from serving.config.cluster import DIES_PER_NPU
from serving.config.key import key
from serving.config.simulation import Executor
from serving.config.upgrade_rules import (
    AUTOSCALER,
    ENGINES,
    GATEWAY,
    KVCACHE,
    OWN_POOL,
    SERVE,
    in_place,
    restarts,
    upgrades,
)

ServingMode = Literal["disaggregated", "aggregated"]
HandoffPlace = Literal["any", "prefer_host"]
KvDtype = Literal["auto", "int8"]
DraftSource = Literal["layer", "lookup"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`[engine]`"""

    UPGRADE = upgrades(
        restarts(*ENGINES),
        (restarts(GATEWAY, *ENGINES), "block_tokens kv_dtype max_model_len prefix_reuse decision_log"),
        (in_place(GATEWAY), "empty_role_s max_attempts"),
        (restarts(GATEWAY, *ENGINES, KVCACHE, AUTOSCALER), "executor"),
        (in_place(*ENGINES), "drain_s"),
    )
    LIVE_ONLY = "kv_dtype stall_timeout_s decision_log threads"

    executor: Executor = key(
        "`native` = the compiled step, on CPUs; `torch` = torch operators; `auto` = native where possible, else "
        "torch; `simulated` = wait for the predicted time and return placeholder tokens, see `[simulation]`",
        default="auto",
    )
    block_tokens: int = key("tokens per KV block", default=16, low=1, high=1024)
    kv_dtype: KvDtype = key(
        "storage format of KV blocks; `auto` = the model's type; `int8` = latents as bytes with one scale per token "
        "and layer, rope keys in the model's type",
        default="auto",
    )
    drafts: DraftSource = key(
        "source of draft tokens, which the next step verifies: `layer` = the model's draft layer (MTP), see "
        "`draft_tokens`; `lookup` = for any model, what followed the same last tokens earlier in the request's own "
        "prompt and output, see `lookup_tokens`: long drafts in edits, code and structured output, almost none in "
        "other text; never changes the output",
        default="layer",
    )
    draft_tokens: int = key(
        "most draft tokens per sequence and step from the model's draft layer (MTP), verified in the next step; 0 = "
        "none; the engine drafts fewer, or none, where it does not pay; never changes the output",
        default=0,
        low=0,
        high=3,
    )
    lookup_tokens: int = key(
        'most draft tokens per sequence and step with `drafts = "lookup"`; the engine drafts fewer, or none, where it '
        "does not pay",
        default=8,
        low=1,
        high=32,
    )
    forced_tokens: int = key(
        "most draft tokens per sequence and step where its grammar allows only one continuation, e.g. between the "
        "keys of a JSON object, verified in the next step, with any `drafts`; 0 = none; native step only; never "
        "changes the output",
        default=8,
        low=0,
        high=32,
    )
    max_model_len: int = key("longest prompt plus output [tokens]; 0 = the model's own limit", default=0, low=0)
    prompt_delay_s: float = key(
        "scheduling delay of a prompt per 1,000 tokens [s]: a short prompt may overtake a long one that arrived "
        "shortly before, but none waits forever; 0 = strictly in order of arrival",
        default=0.1,
        low=0.0,
        high=60.0,
    )
    prefix_reuse: bool = key(
        "reuse KV blocks of equal prompt prefixes, within an instance and from the KV-cache pool; if off, the pool "
        "stores only weights, no blocks",
        default=True,
    )
    handoff_lease_s: float = key(
        "how long prefill keeps blocks that decode has not pulled yet [s]", default=60.0, low=0.1, high=3600
    )
    drain_s: float = key(
        "how long an instance that leaves keeps running its streams, as some end soon, before it hands them to "
        "others [s]",
        default=5.0,
        low=0.0,
        high=3600,
    )
    empty_role_s: float = key(
        "with no decode instance for this long, prefill instances decode too [s]", default=2.0, low=0.0, high=3600
    )
    stall_timeout_s: float = key(
        "an engine that has work and makes no step for this long is replaced [s]", default=30.0, low=0.5, high=3600
    )
    max_attempts: int = key(
        "consecutive failures, without a new token in between, before the client gets an error",
        default=3,
        low=1,
        high=20,
    )
    decision_log: str = key(
        "folder for a log of every decision (`cloudmatrix replay`), relative to this file; it contains prompts and "
        "responses; empty = none",
        default="",
    )
    threads: int = key(
        "compute threads per instance or rank; 0 = cores minus one, divided by instances and ranks",
        default=0,
        low=0,
        high=1024,
    )

    @property
    def drafts_by_layer(self) -> bool:
        """Whether the model's draft layer is used, if it has one."""
        return self.drafts == "layer" and self.draft_tokens > 0


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """`[serving]`"""

    UPGRADE = upgrades(
        restarts(GATEWAY, *ENGINES),
        (restarts(GATEWAY), "handoff"),
    )

    mode: ServingMode = key(
        "`disaggregated` = separate prefill and decode pools; `aggregated` = one pool does both",
        default="disaggregated",
    )
    handoff: HandoffPlace = key(
        "choice of decode instance: `any` = the one with free capacity and the least load, on any host; "
        "`prefer_host` = the same, but among those within 5 % of the least loaded, one on the host of the prefill "
        "instance",
        default="any",
    )


# One pool of equal instances: their number, their size, and the limits of one step.


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`[prefill]`, `[decode]` or `[aggregated]`. A replica is one instance; an instance owns whole NPUs of one node.

    With `ep` above 1 a replica is a group of that many ranks, each a separate instance for gateways; all other keys
    then apply to one rank. With `attention_ranks` and `expert_ranks` it is a group of ranks of two kinds, of which
    only attention ranks are instances for gateways.
    """

    UPGRADE = upgrades(
        restarts(OWN_POOL),
        (
            restarts(GATEWAY, OWN_POOL),
            "npus_per_instance ep attention_ranks expert_ranks expert_npus expert_ub_memory_mib",
        ),
        (in_place(SERVE), "replicas"),
    )

    replicas: int = key(
        "instances at the start; 0 where an autoscaler starts the pool on demand and its minimum is 0",
        default=1,
        low=0,
        high=384,
    )
    npus_per_instance: int = key("NPUs of one instance (two dies each), or of each of its ranks", default=2, low=1)
    ub_memory_mib: int = key(
        "most of its node's UB memory that one instance takes for KV blocks [MiB]; also bounded by its HBM",
        default=256,
        low=1,
    )
    max_step_tokens: int = key("tokens per step: prompt chunks plus one per running sequence", default=512, low=1)
    max_sequences: int = key("sequences running at once in one instance", default=64, low=1)
    max_waiting: int = key(
        "sequences waiting in one instance; when it is full, other instances are tried", default=256, low=1
    )
    ep: int = key(
        "ranks of one instance, each a process with its own NPUs, UB memory, KV blocks and sequences, all on one "
        "node unless `[experts] across_nodes`; above 1 every other key of this section except `replicas` applies to "
        "one rank",
        default=1,
        low=1,
        high=64,
    )
    attention_ranks: int = key(
        "with `expert_ranks` and in place of `ep`: ranks of one instance that compute all but the routed experts; each "
        "is a process with its own NPUs, UB memory, KV blocks and sequences, to which the other keys of this section "
        "except `replicas` apply",
        default=0,
        low=0,
        high=32,
    )
    expert_ranks: int = key(
        "ranks of one instance that compute the routed experts of its attention ranks, and have no sequences; all "
        "ranks of an instance are on one node; `cloudmatrix experts resize` changes either number while it serves",
        default=0,
        low=0,
        high=32,
    )
    expert_npus: int = key("NPUs of one expert rank; 0 = as many as an attention rank", default=0, low=0)
    expert_ub_memory_mib: int = key(
        "most of its node's UB memory that one expert rank takes, for experts [MiB]; 0 = as much as an attention rank",
        default=0,
        low=0,
    )

    @property
    def has_roles(self) -> bool:
        """Whether a replica has attention ranks and expert ranks."""
        return self.attention_ranks > 0

    @property
    def is_group(self) -> bool:
        """Whether a replica is a group of ranks."""
        return self.has_roles or self.ep > 1

    @property
    def sides(self) -> tuple[int, ...]:
        """Initial ranks of one replica, by kind: all of one kind, or attention ranks and expert ranks."""
        return (self.attention_ranks, self.expert_ranks) if self.has_roles else (self.ep,)

    @property
    def rank_resources(self) -> tuple[tuple[int, int], ...]:
        """NPUs and UB memory [MiB] of one rank, for each of `sides`."""
        own = self.npus_per_instance, self.ub_memory_mib
        experts = self.expert_npus or own[0], self.expert_ub_memory_mib or own[1]
        return (own, experts) if self.has_roles else (own,)

    def as_one_process(self) -> "PoolConfig":
        """The same pool with instances of one process each."""
        return replace(self, ep=1, attention_ranks=0, expert_ranks=0, expert_npus=0, expert_ub_memory_mib=0)

    @property
    def dies_per_instance(self) -> int:
        """Dies of one instance; of a group, of one rank."""
        return self.npus_per_instance * DIES_PER_NPU

    @property
    def npus_per_replica(self) -> int:
        """NPUs of one replica with all its ranks."""
        return self.resources_of_group()[0]

    @property
    def ub_memory_per_replica_mib(self) -> int:
        """UB memory of one replica with all its ranks [MiB]."""
        return self.resources_of_group()[1]

    def resources_of_group(self, spares: int = 0) -> tuple[int, int]:
        """NPUs and UB memory [MiB] of one replica with all its ranks.

        Args:
            spares: additional ranks of each kind.
        """
        of = [(ranks + spares, *each) for ranks, each in zip(self.sides, self.rank_resources, strict=True)]
        return sum(ranks * npus for ranks, npus, _ in of), sum(ranks * memory for ranks, _, memory in of)
