"""`[chaos]`: whether replicas may inject faults for `cloudmatrix chaos`."""

from dataclasses import dataclass

from serving.config.key import key
from serving.config.upgrade_rules import ENGINES, GATEWAY, KVCACHE, restarts, upgrades


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """Faults that replicas inject into themselves for a test. Kills and freezes work without it: they are applied
    from outside.
    """

    UPGRADE = upgrades(restarts(GATEWAY, *ENGINES, KVCACHE))
    LIVE_ONLY = "*"

    enabled: bool = key(
        "replicas accept faults from `cloudmatrix chaos` (slow links, full disks, flipped bits), read from a file of "
        "the same user on the same machine",
        default=False,
    )
    least_step_s: float = key(
        "with `enabled`: shortest duration of an engine step, so that a small model's responses last long enough for "
        "faults to hit them [s]",
        default=0.0,
        low=0.0,
        high=10.0,
    )
