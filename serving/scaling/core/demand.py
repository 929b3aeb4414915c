"""Demand on a pool in instances: the common currency of prompt tokens, sequences and KV blocks."""

from msgspec import Struct


class Outlook(Struct, frozen=True, gc=False):
    """When what is asked for now can serve.

    Args:
        start_s: from a decision to a serving instance [s].
        running, coming: instances of the pool that serve, and that were asked for and do not yet.
        ready_in_s: until the coming ones serve [s].
    """

    start_s: float
    running: int
    coming: int
    ready_in_s: float

    @property
    def there(self) -> int:
        """Instances that need not be asked for again."""
        return self.running + self.coming


class Demand(Struct, frozen=True, gc=False):
    """Demand on one pool.

    Args:
        load: work that will be asked for when an instance started now could serve, in fully used instances, smooth;
            None = nothing is known that could be divided by an instance's ability.
        noise: its standard deviation.
        sure: what the load will be at the least, by the last seconds or the last minute.
        steady: what the load has been for the last ten minutes.
        heading: where the load goes if traffic stays as it is now.
        swing: by how much the work of short times exceeds the load: work that waits is late long before the mean of a
            minute fills an instance.
        memory_s: how long work stays; what is seen before a few times that much is a system that still fills up.
        urgent: instances, fully used, without which promises break for what is already here; 0 = nothing is urgent.
        why: the load in words; `why_urgent`: the urgency.
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
    """Demand on a pool that does both: an instance's time is shared, so loads add up.

    Args:
        fast_first, fast_second: instances that each kind of work takes now, for the urgency of the other.
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
