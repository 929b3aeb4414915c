"""The policy's seconds: those of the instances and of `[slo]`, which simulated devices may run faster or slower.

The cluster counts real seconds: looks, starts of processes, holds that people set. Instances count their own: how long
they worked, how fast they are, how long a request waited against the promise. A policy that is told some of each takes
a quarter of the speed for a quarter of the traffic. So everything that it is told passes through here.
"""

from dataclasses import dataclass
from typing import Any

from serving.config.serve import ServeConfig

ALIVE_PERIODS = 3
"""An autoscaler that has not looked for so many periods (and two seconds) does not live."""
LEAST_PERIOD_S = 0.5
"""Gateways report twice a second: whoever looks more often sees nothing new, and keeps Serve's controller busy."""


@dataclass(frozen=True, slots=True)
class PolicyTime:
    """From real time to the policy's and back.

    Args:
        scale: the policy's seconds in one real second.
    """

    scale: float

    def of(self, real_s: float) -> float:
        """A time or a moment of the cluster's clock, in the policy's seconds."""
        return real_s * self.scale

    def real_period_s(self, period_s: float) -> float:
        """Real time between two looks.

        Args:
            period_s: as configured, in the policy's seconds.
        Returns: fast time is looked at as often as there are news, or as often as somebody asks for at real speed.
        """
        return max(period_s / self.scale, min(period_s, LEAST_PERIOD_S))


def autoscaler_row(config: ServeConfig, looked_at: float, now: float) -> dict[str, Any]:
    """The autoscaler as pages show it.

    Args:
        looked_at: when it last asked for signals [s since 1970]; 0 = never.
    """
    period_s = PolicyTime(config.time_scale).real_period_s(config.autoscaler.period_s)
    age = now - looked_at if looked_at else None
    alive = age is not None and age < ALIVE_PERIODS * period_s + 2.0
    return {"policy": config.autoscaler.policy, "alive": alive, "age_s": age, "period_s": period_s}
