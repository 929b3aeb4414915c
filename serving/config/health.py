"""Failure detection: which component monitors which, how often, and when one counts as lost.

    Ray ── node_* ──► nodes          control plane ── shell_* ──► replica ── step_* ──► engine        (two tiers)
    gateway ◄── link_* ── instance   decode ── probe_* ──► prefill                                    (data paths)

Too short a limit treats a slow machine as failed and repeats work; too long a limit is a pause visible to clients.
"""

from dataclasses import dataclass

from serving.config.key import key
from serving.config.upgrade_rules import (
    BEFORE_RAY_STARTS,
    ENGINES,
    GATEWAY,
    KVCACHE,
    SERVE,
    in_place,
    restarts,
    upgrades,
)

SHELL_MISSES = 3
"""Consecutive health checks that a replica may miss; Serve's own limit."""


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`[health]`. Each key documents its cost."""

    UPGRADE = upgrades(
        restarts(*ENGINES),
        (BEFORE_RAY_STARTS, "node_period_s node_timeout_s node_misses"),
        (restarts(GATEWAY, *ENGINES), "link_period_s link_misses"),
        (in_place(SERVE), "shell_period_s shell_timeout_s"),
    )
    LIVE_ONLY = "*"

    link_period_s: float = key(
        "how often an instance reports to each gateway, apart from changes of its load, which it reports at once to "
        "several gateways [s]; cost: one message of about 60 bytes each",
        default=0.25,
        low=0.02,
        high=10,
    )
    link_misses: int = key(
        "consecutive reports that may be missing: an instance silent for longer is considered frozen, and its "
        "streams continue elsewhere; too few mistake a busy machine for a frozen one, and running work is computed "
        "twice",
        default=10,
        low=2,
        high=1000,
    )
    step_stall_s: float = key(
        "time that any step may take [s]; the least time after which a hanging engine is detected",
        default=2.5,
        low=0.1,
    )
    step_factor: float = key(
        "beyond that, how many times as long as the longest recent step of its size a step may take; a larger factor "
        "tolerates a slow machine and detects a hang later",
        default=4.0,
        low=1.5,
        high=100,
    )
    shell_period_s: float = key(
        "how often Ray Serve checks each replica's health [s]; cost: one call per replica; delays the replacement of "
        "a killed replica by at most this",
        default=0.5,
        low=0.1,
        high=60,
    )
    shell_timeout_s: float = key(
        "how long Serve waits for the health check [s]; the third consecutive miss replaces the replica and frees "
        "its NPUs; a shorter time mistakes a machine short of CPU for a frozen replica",
        default=5.0,
        low=0.5,
        high=120,
    )
    node_period_s: float = key(
        "how often Ray checks each node's health [s]; cost: one call per node", default=0.5, low=0.1, high=60
    )
    node_timeout_s: float = key("how long Ray waits for a node's health check [s]", default=1.0, low=0.1, high=60)
    node_misses: int = key(
        "consecutive misses after which a node and all its replicas are considered dead; a dead node cannot return, "
        "only join as a new one",
        default=5,
        low=1,
        high=100,
    )
    probe_period_s: float = key(
        "how often a decode instance reads a dummy block from each prefill instance that has sent nothing in between "
        "[s]; 0 = never; cost: one small read each",
        default=0.5,
        low=0.0,
        high=60,
    )
    probe_late_s: float = key(
        "three consecutive dummy blocks slower than this indicate a saturated path: handoffs avoid it where possible "
        "[s]",
        default=0.25,
        low=0.001,
        high=60,
    )
    probe_lost_s: float = key(
        "a dummy block that has not arrived by then is lost [s]; after three in a row the pair is isolated until "
        "dummy blocks arrive again",
        default=1.0,
        low=0.01,
        high=60,
    )

    @property
    def replaced_after_s(self) -> float:
        """How long a replica may be frozen before it is replaced."""
        return SHELL_MISSES * self.shell_timeout_s

    @property
    def silence_s(self) -> float:
        """How long an instance may send nothing to a gateway."""
        return self.link_period_s * self.link_misses


# `[chaos]`: whether replicas may inject faults for `cloudmatrix chaos`.


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
