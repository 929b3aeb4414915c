"""Prefill and decode engines together: token-exact, without leaks."""

from random import Random

import pytest
from msgspec import structs

from serving.values.news import FailKind
from serving.values.sequence import FinishReason
from tests.fakes.executor import reference_output
from tests.instance.cluster import Cluster, Record
from tests.instance.random_requests import assert_exact, pools, random_spec, stems


@pytest.mark.parametrize(("prefill", "decode", "blocks"), [(2, 2, 64), (1, 1, 26), (1, 2, 24)])
def test_every_sequence_is_token_exact(prefill: int, decode: int, blocks: int) -> None:
    rng = Random(blocks)
    cluster = Cluster(pools(prefill, decode), blocks)
    shared = stems(rng)
    for i in range(80):
        cluster.submit(random_spec(rng, f"r/{i}", shared))
        if i % 3 == 0:
            cluster.run(rng.randrange(3))
            cluster.check()
    cluster.run_until_idle()
    for record in cluster.records.values():
        assert_exact(record)
    cluster.assert_empty()


def test_hundreds_of_sequences_with_cancels_leave_nothing() -> None:
    rng = Random(20)
    cluster = Cluster(pools(2, 2), 48)
    shared = stems(rng)
    doomed: list[tuple[float, Record]] = []
    for i in range(300):
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
    assert len(cancelled) > 30
    for record in cluster.records.values():
        if record.cancelled:
            assert record.output == reference_output(record.spec, 96)[0][: len(record.output)]
        else:
            assert_exact(record)
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
