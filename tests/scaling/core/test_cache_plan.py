"""The KV-cache pool: grows while evicted blocks would be found, shrinks after a long stabilization window."""

from serving.scaling.core.cache_plan import CachePlan
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.idle import IdleClock
from serving.values.signals import CacheSignals, Traffic
from tests.scaling.core.looks import cache, look

HOLD_S = 12.0
"""Five times that is a minute of patience."""


def busy(
    second: int, running: int = 2, hits: float = 0.5, fill: float = 0.95, evicted: int = 100, **more: int
) -> CacheSignals:
    return cache(
        running,
        bytes_used=round(fill * 1000 * running),
        looked_up_tokens=1000 * second,
        hit_tokens=round(1000 * second * hits),
        evicted_bytes=evicted * second,
        **more,
    )


def decide(
    plan: CachePlan, second: int, signals: CacheSignals, idle_to_zero_s: float = 1e9, waiting: int = 1
) -> PoolTarget:
    idle = IdleClock(idle_to_zero_s)
    idle.see(look(0.0))
    idle.see(look(float(second), traffic=Traffic(queued=waiting)))
    return plan.decide(float(second), 1.0 if second else 0.0, signals, idle)


def test_it_grows_while_what_is_lost_would_be_found() -> None:
    plan = CachePlan(HOLD_S)
    assert decide(plan, 0, busy(0)).kind is ScaleKind.STAY
    grown = decide(plan, 1, busy(1))
    assert (grown.before, grown.target, grown.kind) == (2, 3, ScaleKind.FORECAST)
    assert grown.reason == (
        "95% full, 50% hits, 0 MiB evicted in the last minute: "
        "from 85% full, 2% hits and any eviction on it is worth a server more"
    )
    starting = busy(2, target=3, starting=1)
    assert decide(plan, 2, starting).target == 3
    assert decide(plan, 10, busy(10, 3)).target == 3, "the new server has not taken its share yet"
    assert decide(plan, 40, busy(40, 3)).target == 4
    assert decide(plan, 41, busy(41, 2, target=4)).target == 4, "nobody is asked for twice"


def test_it_does_not_grow_for_nothing() -> None:
    for signals in (busy(1, hits=0.01), busy(1, fill=0.8), busy(1, evicted=0)):
        plan = CachePlan(HOLD_S)
        decide(plan, 0, busy(0))
        assert decide(plan, 1, signals).target == 2
    plan = CachePlan(HOLD_S)
    decide(plan, 0, busy(0, high=2))
    full = decide(plan, 1, busy(1, high=2))
    assert (full.target, full.kind) == (2, ScaleKind.STAY)
    assert full.reason.endswith("; 3 wanted, 1 to 2 servers are allowed")


def last(plan: CachePlan, until: int, **more: float) -> list[PoolTarget]:
    return [decide(plan, second, busy(second, **more)) for second in range(until)]  # type: ignore[arg-type]


def test_it_shrinks_when_the_rest_would_hold_everything_for_long() -> None:
    told = last(CachePlan(HOLD_S), 62, running=3, fill=0.4, evicted=0)
    assert [one.target for one in told[:60]] == [3] * 60
    assert (told[60].target, told[60].kind) == (2, ScaleKind.FORECAST)
    assert told[60].reason.endswith(": the others would be 60% of 70% full, one server was not needed for 60 of 60 s")
    assert all(one.target == 3 for one in last(CachePlan(HOLD_S), 100, running=3, fill=0.5, evicted=0))
    assert all(one.target == 1 for one in last(CachePlan(HOLD_S), 100, running=1, fill=0.1, evicted=0))


def test_or_when_nobody_finds_anything() -> None:
    less = last(CachePlan(HOLD_S), 62, running=3, hits=0.001)[60]
    assert less.target == 2
    assert less.reason.startswith("95% full, 0% hits, ")
    assert less.reason.endswith(": 2% hits are worth it, one server was not needed for 60 of 60 s")
    assert all(one.target == 3 for one in last(CachePlan(HOLD_S), 100, running=3, hits=0.001, draining=1))
    assert all(one.target == 3 for one in last(CachePlan(0.0), 100, running=3, hits=0.001)), "no patience, no shrinking"


def test_bounds_and_holds_stand() -> None:
    raised = decide(CachePlan(HOLD_S), 0, busy(0, low=4))
    assert (raised.before, raised.target, raised.kind) == (2, 4, ScaleKind.FIT)
    assert raised.reason.endswith("; 2 wanted, 4 to 8 servers are allowed")
    held = decide(CachePlan(HOLD_S), 0, busy(0, low=4, held_until=30))
    assert (held.target, held.kind, held.reason) == (2, ScaleKind.HELD, "held for 30 s more")


def test_to_zero_and_back() -> None:
    plan = CachePlan(HOLD_S)
    gone = decide(plan, 0, busy(0, low=0), idle_to_zero_s=0.0, waiting=0)
    assert (gone.target, gone.kind) == (0, ScaleKind.ZERO)
    assert gone.reason == "no request for 0 s, idle_to_zero_s is 0"
    empty = cache(0, low=0)
    assert decide(plan, 1, empty, idle_to_zero_s=0.0, waiting=0).kind is ScaleKind.STAY
    assert decide(plan, 2, empty, waiting=0).target == 0
    back = decide(plan, 3, empty)
    assert (back.target, back.kind, back.reason) == (1, ScaleKind.WAKE, "1 requests wait")
    assert decide(plan, 4, busy(4, low=1), idle_to_zero_s=0.0, waiting=0).target == 2
