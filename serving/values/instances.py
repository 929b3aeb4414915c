"""The state of an instance, as its gateways know it."""

from serving.ids import ReplicaId
from serving.values.news import Value

CRASHED_AGE_S = 1e9
"""Tells a crashed engine in `Status.progress_age_s`, where infinity may not stand."""


class Status(Value, frozen=True, gc=False):
    """Load of an instance, sent every `[health] link_period_s` and when draining begins; its absence tells a freeze."""

    queued_tokens: int
    waiting: int
    running: int
    """Those that have their blocks: computing, or being pulled or fetched."""
    blocks_free: int
    draining: bool
    progress_age_s: float
    """Real time that the engine has had work without making a step; 0 when idle, `CRASHED_AGE_S` after a crash."""
    tokens_per_s: float
    """Recent tokens computed per second of step time."""
    step_limit_s: float = 0.0
    """Limit of `progress_age_s`, beyond which the engine hangs; 0 = nobody knows."""
    lost_paths: tuple[ReplicaId, ...] = ()
    """Instances from which no KV blocks arrive here."""
    slow_paths: tuple[ReplicaId, ...] = ()
    """Instances from which KV blocks arrive late here."""
    gateways: int = 1
    """That are linked to this instance: each of them knows only what it sent there itself."""
    pulling: int = 0
    fetching: int = 0
    """Those in `running` whose blocks are on their way: from another instance, from the KV-cache pool."""
    blocks_cached: int = 0
    """Free blocks that still hold a prefix."""
    share: float = 1.0
    """Of the sequences that it would get otherwise: less for a rank that is slower than its peers."""
    max_sequences: int = 0
    max_step_tokens: int = 0
    """Bounds of what runs at once: sequences, tokens of a step; 0 = not told."""
