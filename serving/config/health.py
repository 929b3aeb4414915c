"""Failure detection: which component monitors which, how often, and when one counts as lost.

    Ray ── node_* ──► nodes          control plane ── shell_* ──► replica ── step_* ──► engine        (two tiers)
    gateway ◄── link_* ── instance   decode ── probe_* ──► prefill                                    (data paths)

Too short a limit treats a slow machine as failed and repeats work; too long a limit is a pause visible to clients.
"""

from dataclasses import dataclass

from serving.config.key import key

SHELL_MISSES = 3
"""Consecutive health checks that a replica may miss; Serve's own limit."""


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`[health]`. Each key documents its cost."""

    link_period_s: float = key(
        "how often an instance reports to each gateway [s]; cost: one message of about 60 bytes each",
        default=0.25,
        low=0.02,
        high=10,
    )
    link_misses: int = key(
        "reports that may be missing in a row: an instance that is silent for longer is frozen, its streams go on "
        "elsewhere; too few take a busy machine for a frozen one, and what is under way is computed twice",
        default=10,
        low=2,
        high=1000,
    )
    step_stall_s: float = key(
        "a step may always take this long [s]; the least time in which a hanging engine is noticed",
        default=2.5,
        low=0.1,
    )
    step_factor: float = key(
        "beyond that, a step may take this many times as long as the longest of its size that was seen lately; more "
        "forgives a slow machine more and notices a hang later",
        default=4.0,
        low=1.5,
        high=100,
    )
    shell_period_s: float = key(
        "how often Ray Serve asks each replica for its health [s]; cost: one call a replica; a killed replica's "
        "replacement is started so much later at worst",
        default=0.5,
        low=0.1,
        high=60,
    )
    shell_timeout_s: float = key(
        "how long Serve waits for that answer [s]; the third miss in a row replaces the replica and frees its NPUs; "
        "shorter ones mistake a machine that is short of CPU for a frozen replica",
        default=5.0,
        low=0.5,
        high=120,
    )
    node_period_s: float = key(
        "how often Ray asks each node for its health [s]; cost: one call a node", default=0.5, low=0.1, high=60
    )
    node_timeout_s: float = key("how long Ray waits for that answer [s]", default=1.0, low=0.1, high=60)
    node_misses: int = key(
        "misses in a row after which a node is dead, and all replicas on it; a dead node cannot come back, only join "
        "anew",
        default=5,
        low=1,
        high=100,
    )
    probe_period_s: float = key(
        "how often a decode instance reads a dummy block from each prefill instance that has sent nothing meanwhile "
        "[s]; 0 = never; cost: one small read each",
        default=0.5,
        low=0.0,
        high=60,
    )
    probe_late_s: float = key(
        "a dummy that takes longer, three times in a row, tells a saturated path: handoffs go elsewhere if they can "
        "[s]",
        default=0.25,
        low=0.001,
        high=60,
    )
    probe_lost_s: float = key(
        "what does not arrive within this time is lost [s]; three in a row: the pair is isolated until dummies pass",
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
