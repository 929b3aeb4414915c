"""SLOs of the service, and whether pools are resized to meet them."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key
from serving.config.upgrade_rules import AUTOSCALER, BOARD, GATEWAY, in_place, upgrades
from serving.values.pool_kinds import POOL_KINDS

ScalingPolicy = Literal["none", "requests", "slo"]


@dataclass(frozen=True, slots=True)
class SloConfig:
    """`[slo]`: limits within which a request counts as good."""

    UPGRADE = upgrades(in_place(GATEWAY, AUTOSCALER, BOARD))

    ttft_s: float = key("time to first token [s]", default=2.0, low=0.001)
    tpot_s: float = key("time per output token after the first [s]", default=0.05, low=0.0001)
    attainment: float = key("share of requests that must meet both", default=0.99, low=0.5, high=0.9999)


@dataclass(frozen=True, slots=True)
class AutoscalerConfig:
    """`[autoscaler]`; the pools' `replicas` are its initial sizes. The policy is the same live and in virtual time."""

    UPGRADE = upgrades(
        in_place(AUTOSCALER, BOARD),
        (in_place(GATEWAY, AUTOSCALER, BOARD), "policy"),
    )
    LIVE_ONLY = "manual_hold_s"

    policy: ScalingPolicy = key(
        "`none` = pools keep their size; `slo` = all pools are planned together to meet `[slo]`; `requests` = "
        "replicas follow the number of requests in flight (the baseline)",
        default="none",
    )
    period_s: float = key("time between two decisions [s]", default=1.0, low=0.1, high=3600)
    utilisation: float = key(
        "initial target load of an instance; SLO misses and slack adjust it", default=0.7, low=0.05, high=1.0
    )
    hold_s: float = key(
        "how long the load must have been lower before an instance is removed [s]", default=120.0, low=0.0
    )
    manual_hold_s: float = key(
        "how long a target set by hand overrides the policy, unless the request gives another time [s]",
        default=600.0,
        low=0.0,
    )
    idle_to_zero_s: float = key(
        "a pool whose minimum is 0 scales to zero after this long without a request [s]", default=300.0, low=1.0
    )
    nodes: Literal["fixed", "ray"] = key(
        "`fixed` = a target that does not fit on the existing nodes is refused; `ray` = targets up to the pool's "
        "maximum are accepted, and Ray's own autoscaler is expected to add nodes",
        default="fixed",
    )
    node_wait_s: float = key(
        "`ray` only: a target is withdrawn if no node has joined for this long [s]", default=300.0, low=1.0
    )
    spread_after_s: float = key(
        "`fixed` only: if one host has run at least two more replicas of a pool (or gateways) than another host with "
        "room for this long, one replica is started there and one on the fuller host is removed [s]; 0 = replicas "
        "stay where they started",
        default=0.0,
        low=0.0,
    )
    npu_budget: int = key("NPUs that the engine pools may use together; 0 = all", default=0, low=0)
    decode_step_npus: int = key(
        "NPUs by which decode instances, as many as `[decode] replicas`, grow and shrink while they serve: groups of "
        "ranks in a system that runs (`[decode] ep` above 1), any in virtual time; 0 = whole instances come and go",
        default=0,
        low=0,
        high=384,
    )
    min_decode_npus: int = key("fewest NPUs of a decode instance that is resized", default=40, low=1, high=384)
    max_decode_npus: int = key("most NPUs of a decode instance that is resized", default=160, low=1, high=384)
    requests_per_instance: float = key("`requests` only: requests in flight per instance", default=16.0, low=0.1)
    min_prefill: int = key("fewest prefill instances", default=1, low=0, high=384)
    max_prefill: int = key("most prefill instances", default=24, low=1, high=384)
    min_decode: int = key("fewest decode (or aggregated) instances", default=1, low=0, high=384)
    max_decode: int = key("most decode (or aggregated) instances", default=4, low=1, high=384)
    min_kvcache: int = key("fewest memory servers", default=1, low=0, high=384)
    max_kvcache: int = key("most memory servers", default=8, low=1, high=384)

    def bounds(self, pool: str) -> tuple[int, int]:
        """Minimum and maximum number of a pool's replicas.

        Args:
            pool: a deployment's name.
        """
        if pool == "kvcache":
            return self.min_kvcache, self.max_kvcache
        if POOL_KINDS[pool].bounds == "prefill":
            return self.min_prefill, self.max_prefill
        return self.min_decode, self.max_decode
