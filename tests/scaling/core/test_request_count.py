"""The baseline policy: requests in flight and delays only."""

from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.request_count import RequestCountScaler
from serving.values.signals import PoolSignals, Traffic
from tests.scaling.core.looks import cache, decode, look, prefill


def scaler(**more: float) -> RequestCountScaler:
    return RequestCountScaler(10.0, 60.0, **more)  # type: ignore[arg-type]


def first(told: RequestCountScaler, now: float, pool: PoolSignals, queued: int = 0) -> PoolTarget:
    return told.decide(look(now, (pool, decode()), Traffic(queued=queued))).targets[0]


def test_it_grows_after_its_delay_and_shrinks_after_a_longer_one() -> None:
    told = scaler()
    assert first(told, 0.0, prefill(sequences=35)).target == 2
    assert first(told, 29.0, prefill(sequences=35)).target == 2
    grown = first(told, 30.0, prefill(sequences=35, waiting=3))
    assert (grown.target, grown.kind) == (4, ScaleKind.FORECAST)
    assert grown.reason == "35 requests at 10 an instance need 4, 4 wanted for 30 of 30 s"
    assert first(told, 31.0, prefill(4, sequences=5)).target == 4
    assert first(told, 600.0, prefill(4, sequences=5)).target == 4
    assert first(told, 631.0, prefill(4, sequences=5)).target == 1


def test_a_change_of_mind_begins_anew() -> None:
    told = scaler()
    first(told, 0.0, prefill(sequences=35))
    assert first(told, 20.0, prefill(sequences=20)).kind is ScaleKind.STAY
    assert first(told, 40.0, prefill(sequences=35)).target == 2
    assert first(told, 70.0, prefill(sequences=35)).target == 4


def test_what_waits_in_the_gateways_counts_for_the_first_pool() -> None:
    told = scaler(up_delay_s=0.0)
    decision = told.decide(look(0.0, traffic=Traffic(queued=55)))
    assert [target.target for target in decision.targets] == [6, 2]


def test_bounds_and_holds_stand() -> None:
    told = scaler(up_delay_s=0.0)
    most = first(told, 0.0, prefill(sequences=9999))
    assert most.target == 20
    assert most.reason.startswith("9999 requests at 10 an instance need 1000, 1 to 20 are allowed, 20 wanted for ")
    held = first(told, 1.0, prefill(sequences=9999, held_until=31.0))
    assert (held.target, held.kind, held.reason) == (2, ScaleKind.HELD, "held for 30 s more")
    assert first(scaler(), 0.0, prefill(1, low=3)).target == 3


def test_no_more_than_fits() -> None:
    told = scaler(up_delay_s=0.0)
    signals = look(0.0, (prefill(sequences=200), decode()), npus_free=20, npus_total=44)
    target = told.decide(signals).targets[0]
    assert (target.target, target.kind) == (7, ScaleKind.FIT)
    assert target.reason.endswith(": 20 wanted, 7 fit: 44 NPUs for all pools, 20 of 44 NPUs are free")
    full = look(1.0, (prefill(sequences=200), decode()), npus_free=0, npus_total=24)
    target = told.decide(full).targets[0]
    assert (target.target, target.kind) == (2, ScaleKind.STAY)


def test_to_zero_and_back() -> None:
    told = scaler()
    assert first(told, 0.0, prefill(low=0)).kind is ScaleKind.STAY
    gone = first(told, 60.0, prefill(low=0))
    assert (gone.target, gone.kind) == (0, ScaleKind.ZERO)
    assert gone.reason == "no request for 60 s, idle_to_zero_s is 60"
    assert first(told, 61.0, prefill(0, low=0)).kind is ScaleKind.STAY
    back = first(told, 62.0, prefill(0, low=0), queued=1)
    assert (back.target, back.kind) == (1, ScaleKind.WAKE)
    assert back.reason == "1 requests wait; 1 requests at 10 an instance need 1"
    assert first(told, 63.0, prefill(0, low=0)).target == 0
    assert first(told, 64.0, prefill(0, low=2)).target == 2


def test_the_cache_pool_stays() -> None:
    decision = scaler().decide(look(0.0, cache=cache(3)))
    assert decision.targets[-1].pool == "kvcache"
    assert not decision.changes
