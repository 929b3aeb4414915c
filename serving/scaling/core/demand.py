"""Demand on a pool in instances: the common unit of prompt tokens, sequences and KV blocks."""

from msgspec import Struct


class Outlook(Struct, frozen=True, gc=False):
    """Instances of a pool, and when new ones can serve.

    Args:
        start_s: from a decision to a serving instance [s].
        running: instances that serve.
        coming: instances that were requested and do not serve yet.
        ready_in_s: until the coming ones serve [s].
    """

    start_s: float
    running: int
    coming: int
    ready_in_s: float

    @property
    def there(self) -> int:
        """Serving and starting instances together."""
        return self.running + self.coming


class Demand(Struct, frozen=True, gc=False):
    """Demand on one pool.

    Args:
        load: smooth forecast for the time when an instance started now could serve, in fully used instances; None = the
            capacity of an instance is not known yet.
        noise: standard deviation of the load.
        sure: lower bound of the load, from the last seconds or the last minute.
        steady: mean load of the last ten minutes.
        heading: load that current traffic leads to.
        swing: by how much short-term work exceeds the load: queued work is late long before the mean of a minute fills
            an instance.
        memory_s: residence time of work; a system is not in steady state before a few times as long.
        urgent: fully used instances without which requests already in the system miss their SLO; 0 = not urgent.
        why: the load as text.
        why_urgent: the urgency as text.
    """

    load: float | None
    noise: float
    sure: float
    steady: float
    heading: float
    urgent: float
    why: str
    why_urgent: str = ""
    memory_s: float = 0.0
    swing: float = 0.0


def unknown(why: str, urgent: float = 0.0, why_urgent: str = "") -> Demand:
    """Demand on a pool whose instances' capacity is not known yet."""
    return Demand(None, 0.0, 0.0, 0.0, 0.0, urgent, why, why_urgent)


def together(first: Demand, second: Demand, fast_first: float, fast_second: float) -> Demand:
    """Demand on a pool that does both kinds of work: they share an instance's time, so loads add up.

    Args:
        fast_first, fast_second: instances that each kind of work needs now, added to the urgency of the other.
    """
    urgent = max(
        first.urgent + fast_second if first.urgent else 0.0,
        second.urgent + fast_first if second.urgent else 0.0,
    )
    known = [demand.load for demand in (first, second) if demand.load is not None]
    return Demand(
        sum(known) if known else None,
        (first.noise**2 + second.noise**2) ** 0.5,
        first.sure + second.sure,
        first.steady + second.steady,
        first.heading + second.heading,
        urgent,
        f"{first.why}, {second.why}",
        first.why_urgent or second.why_urgent,
        max(first.memory_s, second.memory_s),
        first.swing + second.swing,
    )
