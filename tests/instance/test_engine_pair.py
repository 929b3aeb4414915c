"""Prefill and decode engines together: token-exact, and nothing left behind."""

from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from serving.errors import EngineError, HandoffChecksumError
from serving.ids import SequenceId
from serving.values.news import FailKind
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec
from tests.fakes.executor import reference_output, reference_prompt_logprobs
from tests.instance.cluster import Cluster, Record
from tests.instance.random_requests import SMALL, assert_exact, pools, random_spec, stems


@pytest.mark.parametrize(("prefill", "decode", "blocks"), [(1, 1, 64), (2, 2, 64), (1, 1, 26), (2, 1, 30), (1, 2, 24)])
def test_every_sequence_is_token_exact(prefill: int, decode: int, blocks: int) -> None:
    rng = Random(blocks)
    cluster = Cluster(pools(prefill, decode), blocks)
    shared = stems(rng)
    for i in range(120):
        cluster.submit(random_spec(rng, f"r/{i}", shared))
        if i % 3 == 0:
            cluster.run(rng.randrange(3))
            cluster.check()
    cluster.run_until_idle()
    for record in cluster.records.values():
        assert_exact(record)
    cluster.assert_empty()


def test_tiny_pool_preempts_and_stays_exact() -> None:
    rng = Random(5)
    settings = replace(SMALL, watermark_blocks=0, max_model_len=64)
    cluster = Cluster({"aggregated#0": settings, "aggregated#1": replace(settings, cache_decoded=False)}, 17)
    shared = stems(rng)
    for i in range(100):
        cluster.submit(random_spec(rng, f"r/{i}", shared, max_tokens=30, stop_token_ids=()))
    cluster.run_until_idle()
    for record in cluster.records.values():
        assert_exact(record, 64)
    preemptions = [i.engine.snapshot(0).preemptions_total for i in cluster.instances.values()]
    assert min(preemptions) > 5
    cluster.assert_empty()


def test_one_thousand_sequences_with_cancels_leave_nothing() -> None:
    rng = Random(20)
    cluster = Cluster(pools(2, 2), 48)
    shared = stems(rng)
    doomed: list[tuple[float, Record]] = []
    for i in range(1000):
        record = cluster.submit(random_spec(rng, f"r/{i}", shared))
        if rng.random() < 0.2:
            doomed.append((cluster.now + rng.random() * 0.6, record))
        if rng.random() < 0.5:
            cluster.run()
        for at, victim in [entry for entry in doomed if entry[0] <= cluster.now]:
            doomed.remove((at, victim))
            cluster.cancel(victim)
        if i % 50 == 0:
            cluster.check()
    for _, victim in doomed:
        cluster.cancel(victim)
    cluster.run_until_idle()
    cancelled = [r for r in cluster.records.values() if r.cancelled]
    assert len(cancelled) > 100
    for record in cluster.records.values():
        if record.cancelled:
            assert record.output == reference_output(record.spec, 96)[0][: len(record.output)]
        else:
            assert_exact(record)
    cluster.assert_empty()


def test_lost_acknowledgements_end_with_the_lease() -> None:
    rng = Random(3)
    cluster = Cluster(pools(base=replace(SMALL, handoff_lease_s=5.0)), 64)
    cluster.lose_releases = True
    for i in range(20):
        cluster.submit(random_spec(rng, f"r/{i}", stems(rng), max_tokens=20, stop_token_ids=()))
    cluster.run_until_idle()
    for record in cluster.records.values():
        assert_exact(record)
    snapshot = next(iter(cluster.instances.values())).engine.snapshot(cluster.now)
    assert snapshot.handoffs_expired_total == snapshot.handoffs_out_total > 0
    cluster.assert_empty()


def test_failed_steps_and_pulls_are_made_good() -> None:
    rng = Random(9)
    cluster = Cluster(pools(2, 2), 40)
    shared = stems(rng)
    for i in range(150):
        cluster.submit(random_spec(rng, f"r/{i}", shared))
        cluster.run()
        instance = rng.choice(list(cluster.instances.values()))
        if rng.random() < 0.3:
            instance.end_step(cluster.now, EngineError("device lost"))
        if instance.pulls and rng.random() < 0.5:
            instance.end_pull(0, cluster.now, HandoffChecksumError("bit flip"))
        cluster.carry_news()
        cluster.check()
    cluster.run_until_idle()
    for record in cluster.records.values():
        assert_exact(record)
    assert sum(r.journal.attempts.total for r in cluster.records.values()) > 20
    cluster.assert_empty()


def test_prompt_logprobs_come_once_and_whole() -> None:
    rng = Random(11)
    cluster = Cluster(pools(2, 2), 40)
    shared = stems(rng)
    for i in range(80):
        cluster.submit(random_spec(rng, f"r/{i}", shared, prompt_logprobs=0, logprobs=0, max_tokens=rng.randrange(6)))
        cluster.run()
        if rng.random() < 0.3:
            rng.choice(list(cluster.instances.values())).end_step(cluster.now, EngineError("device lost"))
            cluster.carry_news()
    cluster.run_until_idle()
    for record in cluster.records.values():
        assert_exact(record)
        assert record.delivered[0].prompt_logprobs == reference_prompt_logprobs(record.spec.prompt)
        assert all(d.prompt_logprobs == () for d in record.delivered[1:])
        assert record.delivered[0].cached_tokens == 0
        assert all([lp.token for lp in d.logprobs] == list(d.tokens) for d in record.delivered)
    cluster.assert_empty()


def test_overload_is_refused_with_a_time() -> None:
    cluster = Cluster(pools(base=replace(SMALL, max_waiting=4)), 64, max_attempts=1)
    specs = [SequenceSpec(SequenceId(f"r/{i}"), (1, 2, 3), SamplingParams()) for i in range(10)]
    records = [cluster.submit(spec) for spec in specs]
    kinds = [r.failure.kind if r.failure else None for r in records]
    assert kinds == [None] * 4 + [FailKind.OVERLOADED] * 6
    cluster.run_until_idle()
    cluster.assert_empty()


def test_deadline_ends_a_sequence_wherever_it_is() -> None:
    rng = Random(4)
    cluster = Cluster(pools(), 30)
    shared = stems(rng)
    for i in range(60):
        spec = random_spec(rng, f"r/{i}", shared, stop_token_ids=(), max_tokens=40)
        cluster.submit(structs.replace(spec, time_left_s=rng.random() * 1.5))
        cluster.run()
    cluster.run_until_idle()
    late = [r for r in cluster.records.values() if r.failure is not None]
    assert late
    assert {r.failure.kind for r in late if r.failure} == {FailKind.DEADLINE}
    for record in cluster.records.values():
        if record.failure is None and record.delivered[-1].finish_reason is FinishReason.LENGTH:
            assert_exact(record)
    cluster.assert_empty()
