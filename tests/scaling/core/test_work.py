"""Loads in instances: the share used by prompts and sequences, and their urgency."""

import pytest
from msgspec import structs

from serving.scaling.core.decode_work import FULL, DecodeWork
from serving.scaling.core.demand import Demand, Outlook, together, unknown
from serving.scaling.core.prompt_work import PromptWork
from serving.scaling.core.totals import CacheGains, cache_gains, traffic_gains
from serving.values.signals import Traffic
from tests.scaling.core.looks import cache, decode, gains, look, needs, prefill


def outlook(running: int = 2, coming: int = 0, start_s: float = 5.0, ready_in_s: float = 5.0) -> Outlook:
    return Outlook(start_s, running, coming, ready_in_s)


def seen(
    seconds: int = 600, tokens: int = 10_000, uncached: float = 1.0, requests: int = 10, rejected: int = 0
) -> PromptWork:
    """This many tokens a second for this long."""
    work = PromptWork(2.0)
    for _ in range(seconds):
        happened = gains(
            arrived=requests, arrived_tokens=tokens, uncached_tokens=round(tokens * uncached), rejected=rejected
        )
        work.see(happened, prefill(), Traffic())
    return work


def test_the_pool_of_a_name() -> None:
    assert look(0.0).pool("decode").npus_per_instance == 8
    with pytest.raises(KeyError):
        look(0.0).pool("kvcache")


def test_gains_are_differences_and_never_negative() -> None:
    before, after = Traffic(arrived=5, finished=9, tpot_met=1), Traffic(arrived=7, finished=2, tpot_met=4)
    assert traffic_gains(before, after, 2.0) == gains(2.0, arrived=2, tpot_met=3)
    old, new = cache(looked_up_tokens=9, evicted_bytes=5), cache(looked_up_tokens=12, evicted_bytes=1)
    assert cache_gains(old, new, 1.0) == CacheGains(1.0, 3, 0, 0)


def test_the_load_of_prefill_is_its_uncached_tokens() -> None:
    demand = seen().demand(prefill(), Traffic(), outlook())
    assert demand.load == pytest.approx(1.0)
    assert demand.steady == pytest.approx(1.0)
    assert demand.urgent == 0.0
    assert demand.why == "10000 uncached tokens/s of 10000 an instance"
    demand = seen(uncached=0.25).demand(prefill(), Traffic(), outlook())
    assert demand.load == pytest.approx(0.25)
    assert seen().now_instances(prefill()) == pytest.approx(1.0)
    assert seen(uncached=0.25).now_instances(prefill()) == pytest.approx(0.25)


def test_the_uncached_share_is_of_prompts_that_are_done() -> None:
    work, queued = PromptWork(2.0), 0
    for _ in range(300):
        queued += 5_000
        work.see(
            gains(arrived=10, arrived_tokens=10_000, uncached_tokens=2_500), prefill(queued_tokens=queued), Traffic()
        )
    demand = work.demand(prefill(), Traffic(), outlook())
    assert demand.load == pytest.approx(0.5), "half of what is done was cached; what waits has not said yet"
    refused = seen(uncached=0.5, rejected=5)
    assert refused.demand(prefill(), Traffic(), outlook()).load == pytest.approx(1.0), "refused prompts are wanted, too"


def test_a_queue_that_will_be_gone_in_time_is_not_urgent() -> None:
    work = seen()
    assert work.demand(prefill(), Traffic(queued_tokens=40_000), outlook()).urgent == 0.0
    assert work.demand(prefill(queued_tokens=40_000), Traffic(), outlook()).urgent == 0.0


def test_a_queue_that_will_break_promises_is_urgent_unless_somebody_comes_for_it() -> None:
    work = seen()
    demand = work.demand(prefill(queued_tokens=150_000), Traffic(), outlook())
    left = 150_000 + 5 * 10_000 - 2 * 5 * 10_000
    assert demand.urgent == pytest.approx(1.0 + left / (10_000 * 5.0))
    assert demand.why_urgent == "150000 tokens wait and 10000/s come: 5.0 s of work in 5 s, 2 s are promised"
    coming = outlook(coming=4, ready_in_s=1.0)
    assert work.demand(prefill(queued_tokens=150_000), Traffic(), coming).urgent == 0.0
    late = outlook(coming=1, ready_in_s=4.5)
    assert work.demand(prefill(queued_tokens=150_000), Traffic(), late).urgent == pytest.approx(2.9)
    assert work.demand(prefill(queued_tokens=90_000), Traffic(), outlook(), elsewhere=1.5).urgent > 0.0


def test_gateways_hold_prompts_that_will_be_cached_in_part() -> None:
    work = seen(uncached=0.25)
    assert work.queue(prefill(queued_tokens=100), Traffic(queued_tokens=1000)) == pytest.approx(350.0)


def test_an_unknown_speed_lets_the_clock_speak() -> None:
    slow, work = prefill(tokens_per_s=0.0), PromptWork(2.0)
    assert work.now_instances(slow) == 0.0
    demand = work.demand(slow, Traffic(), outlook())
    assert (demand.load, demand.urgent) == (None, 0.0)
    late = Traffic(queued=3, oldest_wait_s=4.0)
    demand = work.demand(slow, late, outlook())
    assert demand.urgent == 3.0
    assert demand.why_urgent.startswith("3 requests wait, the first for 4.0 s")
    assert work.demand(slow, late, outlook(coming=1)).urgent == 0.0
    assert work.demand(slow, Traffic(oldest_wait_s=4.0), outlook()).urgent == 0.0, "one that is computed is not helped"


def test_long_waits_are_counted_by_queue_or_by_clock() -> None:
    for pool, traffic, share in (
        (prefill(), Traffic(), 0.0),
        (prefill(queued_tokens=30_000), Traffic(), 1.0),
        (prefill(0), Traffic(queued_tokens=6_000), 1.0),
        (prefill(tokens_per_s=0.0, queued_tokens=30_000), Traffic(), 0.0),
        (prefill(waiting=1), Traffic(oldest_wait_s=2.5), 1.0),
    ):
        work = PromptWork(2.0)
        assert work.long_waits == 0.0
        work.see(gains(), pool, traffic)
        assert work.long_waits == share


def decoded(
    seconds: int = 900, rate: int = 2, sequences: int = 120, finished: int = 2, blocks: int = 0, pool: int = 2
) -> DecodeWork:
    """Work after a constant load for a time; residence is sequences per rate."""
    work, there = DecodeWork(), decode(pool, sequences=sequences, kv_blocks_used=blocks)
    for _ in range(seconds):
        work.see(gains(arrived=rate, finished=finished), there)
    return work


def test_the_load_of_decode_is_its_sequences() -> None:
    work = decoded()
    assert work.residence_s == pytest.approx(60.0)
    demand = work.demand(decode(sequences=120), outlook())
    assert demand.load == pytest.approx(1.2, rel=0.01)
    assert demand.steady == pytest.approx(1.2)
    assert demand.why == "120 sequences ahead of 100 an instance"
    assert demand.noise == pytest.approx(0.0, abs=1e-6)


def test_or_its_kv_blocks_if_they_are_scarcer() -> None:
    demand = decoded(blocks=1500).demand(decode(sequences=120, kv_blocks_used=1500), outlook())
    assert demand.load == pytest.approx(1500 / 900, rel=0.01)
    assert demand.why == "120 sequences ahead, KV 75% full"
    by_kv = decode(max_sequences=0.0, sequences=120, kv_blocks_used=1500)
    assert decoded(blocks=1500).demand(by_kv, outlook()).load == pytest.approx(1500 / 900, rel=0.01)
    nothing = decode(0, max_sequences=0.0, target=2)
    demand = decoded().demand(nothing, outlook())
    assert (demand.load, demand.urgent) == (None, 0.0)


def test_sequences_are_seen_coming() -> None:
    """More arrive: by Little's law there will be more sequences, most of them within a residence."""
    work = decoded()
    for _ in range(30):
        work.see(gains(arrived=8, finished=2), decode(sequences=120))
    soon, late = (work.demand(decode(sequences=120), outlook(start_s=s)) for s in (30.0, 120.0))
    assert soon.load is not None
    assert late.load is not None
    assert 1.2 < soon.load < late.load
    assert late.urgent > soon.urgent > 0.0
    assert "sequences in 120 s, 120 now, 0 waiting" in late.why_urgent
    assert work.demand(decode(sequences=120), outlook(4)).urgent == 0.0, "four are enough for what is coming"


def test_longer_answers_are_seen_although_no_more_requests_come() -> None:
    """No sequence finishes for a while: neither arrivals nor residence show it, the number of sequences does."""
    work = decoded()
    for second in range(20):
        work.see(gains(arrived=2, finished=0), decode(sequences=120 + 2 * second))
    demand = work.demand(decode(sequences=160), outlook(start_s=30.0))
    assert demand.why_urgent == "198 sequences in 30 s, 160 now, 0 waiting"
    assert demand.urgent == pytest.approx(1.98 / FULL)
    assert work.demand(decode(sequences=160), outlook(4, start_s=30.0)).urgent == 0.0


def test_who_has_no_seat_waits_however_fast_the_others_are() -> None:
    work = decoded()
    assert work.demand(decode(sequences=190, crowd=110.0), outlook(), coming=15).urgent == 0.0, "a crowd for a while"
    assert work.demand(decode(sequences=190, crowd=110.0, seats=100), outlook(), coming=15).urgent > 2.0
    assert work.demand(decode(sequences=190, crowd=110.0, kv_blocks_used=1800), outlook(), coming=15).urgent > 2.0


def test_what_is_planned_with_is_no_crowd() -> None:
    work = decoded()
    busy = decode(sequences=225, crowd=110.0)
    assert work.demand(busy, outlook(), coming=15).urgent > 2.0
    assert work.demand(busy, outlook(), coming=15, aim=1.2).urgent == 0.0


def test_waiting_requests_are_sequences_to_come() -> None:
    work = decoded()
    assert work.demand(decode(sequences=120), outlook()).urgent == 0.0
    demand = work.demand(decode(sequences=120), outlook(), coming=200)
    assert demand.urgent > 2.0
    assert demand.why_urgent.endswith("120 now, 200 waiting")


def test_before_a_residence_is_known_sequences_stay() -> None:
    work = DecodeWork()
    assert work.residence_s == 0.0
    work.see(gains(arrived=3), decode(sequences=300))
    assert work.demand(decode(sequences=300), outlook()).urgent == pytest.approx(3.0 / FULL)


def test_full_means_that_somebody_waits_for_room() -> None:
    work = DecodeWork()
    assert work.full(decode(sequences=195, waiting=1), 0)
    assert work.full(decode(sequences=10, kv_blocks_used=1800), 1)
    assert not work.full(decode(sequences=195), 0)
    assert not work.full(decode(sequences=100, waiting=1), 5)
    assert not work.full(decode(0, sequences=0, waiting=1), 0)


def test_noise_comes_from_what_is_here_and_what_will_come() -> None:
    work = DecodeWork()
    for second in range(900):
        work.see(gains(arrived=2 + 2 * (second % 7 == 0), finished=2), decode(sequences=100 + 40 * (second // 60 % 2)))
    demand = work.demand(decode(sequences=120), outlook())
    assert 0.03 < demand.noise < 0.3


def test_a_pool_that_does_both_adds_both_loads() -> None:
    prompts = Demand(0.5, 0.3, 0.2, 0.4, 0.6, 0.0, "prompts")
    sequences = Demand(1.2, 0.4, 1.1, 1.0, 1.3, 0.0, "sequences", memory_s=9.0)
    both = together(prompts, sequences, 0.6, 1.1)
    assert (both.load, both.noise, both.steady, both.urgent) == (1.7, 0.5, 1.4, 0.0)
    assert both.sure == pytest.approx(1.3)
    assert both.heading == pytest.approx(1.9)
    assert both.memory_s == 9.0
    assert both.why == "prompts, sequences"
    urgent = together(needs(0.5, urgent=2.0), sequences, 0.6, 1.1)
    assert (urgent.urgent, urgent.why_urgent) == (3.1, "queue")
    urgent = together(prompts, needs(1.2, urgent=2.0), 0.6, 1.1)
    assert (urgent.urgent, urgent.why_urgent) == (2.6, "queue")
    assert both.swing == 0.0
    assert together(structs.replace(prompts, swing=0.9), sequences, 0.6, 1.1).swing == 0.9
    nothing = unknown("nobody knows")
    assert together(nothing, sequences, 0.0, 1.1).load == 1.2
    assert together(nothing, nothing, 0.0, 0.0).load is None
