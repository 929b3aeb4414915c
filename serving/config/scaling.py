"""SLOs of the service, and whether pools change their size to keep them."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key

ScalingPolicy = Literal["none", "requests", "slo"]


@dataclass(frozen=True, slots=True)
class SloConfig:
    """`[slo]`: what a request must get to count as good."""

    ttft_s: float = key("time to first token [s]", default=2.0, low=0.001)
    tpot_s: float = key("time per further token [s]", default=0.05, low=0.0001)
    attainment: float = key("share of requests that must get both", default=0.99, low=0.5, high=0.9999)


@dataclass(frozen=True, slots=True)
class AutoscalerConfig:
    """`[autoscaler]`: `replicas` of the pools are what it starts with. The same policy live and in virtual time."""

    policy: ScalingPolicy = key(
        "`none` = pools stay as they are; `slo` = all pools are planned together to keep `[slo]`; `requests` = "
        "replicas follow the number of requests under way (the baseline)",
        default="none",
    )
    period_s: float = key("between two looks [s]", default=1.0, low=0.1, high=3600)
    utilisation: float = key(
        "load of an instance that is aimed at first; promises move it", default=0.7, low=0.05, high=1.0
    )
    hold_s: float = key("load must have been lower for this long before an instance leaves [s]", default=120.0, low=0.0)
    manual_hold_s: float = key(
        "how long a target set by hand stands against the policy, unless it says otherwise [s]", default=600.0, low=0.0
    )
    idle_to_zero_s: float = key(
        "a pool whose least is 0 goes there after this long without a request [s]", default=300.0, low=1.0
    )
    nodes: Literal["fixed", "ray"] = key(
        "`fixed` = a target that does not fit on the nodes there are is refused; `ray` = up to the pool's most it is "
        "set, and Ray's own autoscaler is expected to add a node",
        default="fixed",
    )
    node_wait_s: float = key(
        "`ray` only: a target is taken back when no node has come for this long [s]", default=300.0, low=1.0
    )
    spread_after_s: float = key(
        "`fixed` only: a pool, or the gateways, of which one host has had two more than another with room, for this "
        "long [s], starts one more, and one leaves the fuller host; 0 = replicas stay where they started",
        default=0.0,
        low=0.0,
    )
    npu_budget: int = key("NPUs that the engine pools may have together; 0 = all there are", default=0, low=0)
    decode_step_npus: int = key(
        "NPUs by which decode instances, as many as `[decode] replicas`, grow and shrink while they serve: groups of "
        "ranks in a system that runs (`[decode] ep` above 1), any in virtual time; 0 = whole instances come and go",
        default=0,
        low=0,
        high=384,
    )
    min_decode_npus: int = key("of one decode instance that changes its size: fewest NPUs", default=40, low=1, high=384)
    max_decode_npus: int = key("of one decode instance that changes its size: most NPUs", default=160, low=1, high=384)
    requests_per_instance: float = key("`requests` only: requests under way per instance", default=16.0, low=0.1)
    min_prefill: int = key("fewest prefill instances", default=1, low=0, high=384)
    max_prefill: int = key("most prefill instances", default=24, low=1, high=384)
    min_decode: int = key("fewest decode (or aggregated) instances", default=1, low=0, high=384)
    max_decode: int = key("most decode (or aggregated) instances", default=4, low=1, high=384)
    min_kvcache: int = key("fewest memory servers", default=1, low=0, high=384)
    max_kvcache: int = key("most memory servers", default=8, low=1, high=384)

    def bounds(self, pool: str) -> tuple[int, int]:
        """Least and most replicas of a pool.

        Args:
            pool: a deployment's name.
        """
        if pool == "prefill":
            return self.min_prefill, self.max_prefill
        if pool == "kvcache":
            return self.min_kvcache, self.max_kvcache
        return self.min_decode, self.max_decode
