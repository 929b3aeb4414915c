"""What the service promises, and whether pools change their size to keep it."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key

ScalingPolicy = Literal["none", "track"]


@dataclass(frozen=True, slots=True)
class SloConfig:
    """`[slo]`: what a request must get to count as good."""

    ttft_s: float = key("time to first token [s]", default=2.0, low=0.001)
    tpot_s: float = key("time per further token [s]", default=0.05, low=0.0001)


@dataclass(frozen=True, slots=True)
class AutoscalerConfig:
    """`[autoscaler]`, in virtual time: `replicas` of the pools are what it starts with."""

    policy: ScalingPolicy = key(
        "`none` = pools stay as they are; `track` = instances follow the work that arrives", default="none"
    )
    period_s: float = key("between two looks [s]", default=5.0, low=0.1)
    utilisation: float = key("load of an instance that is aimed at", default=0.7, low=0.05, high=1.0)
    hold_s: float = key("load must have been lower for this long before an instance leaves [s]", default=120.0, low=0.0)
    max_prefill: int = key("most prefill instances", default=24, low=1)
    max_decode: int = key("most decode instances", default=4, low=1)
