"""The state of an instance that its gateways know."""

from serving.ids import ReplicaId
from serving.values.news import Value

CRASHED_AGE_S = 1e9
"""Value of `Status.progress_age_s` for a crashed engine, as infinity cannot be sent."""


class Status(Value, frozen=True, gc=False):
    """Load of an instance, sent every `[health] link_period_s` and when draining starts; its absence indicates a
    freeze."""

    queued_tokens: int
    waiting: int
    running: int
    """Sequences that have their blocks: computing, or being pulled or fetched."""
    blocks_free: int
    draining: bool
    progress_age_s: float
    """Real time that the engine has had work without making a step; 0 when idle, `CRASHED_AGE_S` after a crash."""
    tokens_per_s: float
    """Recent tokens computed per second of step time."""
    step_limit_s: float = 0.0
    """Limit of `progress_age_s`, beyond which the engine hangs; 0 = unknown."""
    lost_paths: tuple[ReplicaId, ...] = ()
    """Instances from which this one receives no KV blocks."""
    slow_paths: tuple[ReplicaId, ...] = ()
    """Instances from which this one receives KV blocks late."""
    gateways: int = 1
    """Number of gateways linked to this instance; each knows only its own submissions."""
    pulling: int = 0
    fetching: int = 0
    """Sequences in `running` whose blocks are in transit: from another instance, from the KV-cache pool."""
    blocks_cached: int = 0
    """Free blocks that still hold a prefix."""
    share: float = 1.0
    """Fraction of its usual sequences that it requests: less than 1 for a rank slower than its peers."""
    max_sequences: int = 0
    max_step_tokens: int = 0
    """Limits of its concurrent work: sequences, tokens of a step; 0 = not reported."""
