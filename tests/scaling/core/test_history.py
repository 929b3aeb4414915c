"""Samples of the last hour."""

from typing import Any

import pytest

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.history import HISTORY_S, SAMPLE_PERIOD_S, History
from serving.values.signals import Traffic
from tests.scaling.live.case import member, nodes, started

MINUTE: dict[str, Any] = {"ttft_p99_s": 0.5, "tpot_p99_s": None}


def add(history: History, at: float, arrived: int = 0, output: int = 0, pulled: int = 0, **prefill: int) -> None:
    facts: dict[str, Any] = {f"prefix_{name}_tokens_total": value for name, value in prefill.items()}
    members = {"p1": member("p1", "prefill", **facts), "d1": member("d1", "decode", prefix_queries_tokens_total=10_000)}
    snapshot = ClusterSnapshot(at, started(), nodes(), members)
    history.add(snapshot, Traffic(arrived_tokens=arrived, generated_tokens=output), pulled, MINUTE)


def test_a_sample_is_what_came_since_the_one_before() -> None:
    history = History()
    assert history.due(100.0)
    add(history, 100.0, 1000, 500, queries=100)
    assert history.newer(0.0) == [], "nothing to compare with"
    assert not history.due(100.0 + SAMPLE_PERIOD_S - 0.1)
    assert history.due(100.0 + SAMPLE_PERIOD_S)
    add(history, 105.0, 1500, 600, pulled=20, queries=300, hits=30)
    (sample,) = history.newer(0.0)
    assert sample == {
        "at": 105.0, "ttft_s": 0.5, "tpot_s": None, "prompt_tokens_per_s": 100.0, "output_tokens_per_s": 20.0,
        "hit_rate": pytest.approx(0.25), "running": {"prefill": 1, "decode": 1, "kvcache": 1},
        "handed_off_bytes_per_s": 0.0, "read_bytes_per_s": 0.0, "written_bytes_per_s": 0.0,
    }  # fmt: skip
    add(history, 110.0, 1500, 600, pulled=20, queries=300, hits=30)
    assert history.newer(105.0)[0]["hit_rate"] is None, "nothing was asked for"


def test_kv_that_moved_is_summed_over_instances_and_outlives_them() -> None:
    history = History()

    def look(at: float, handed_off: int, pulled: int, stored: int, *, prefill: bool = True) -> None:
        pool = {"counters": {"bytes_pulled": pulled, "bytes_stored": stored}}
        members = {"d1": member("d1", "decode", handoff_bytes_in_total=handed_off, pool=None)}
        if prefill:
            members["p1"] = member("p1", "prefill", handoff_bytes_in_total=0, pool=pool)
        history.add(ClusterSnapshot(at, started(), nodes(), members), Traffic(), 0, MINUTE)

    look(100.0, 0, 0, 0)
    look(105.0, 1000, 500, 50)
    look(110.0, 1500, 0, 0, prefill=False)
    names = ("handed_off_bytes_per_s", "read_bytes_per_s", "written_bytes_per_s")
    assert [[sample[name] for name in names] for sample in history.newer(0.0)] == [[200, 100, 10], [100, 0, 0]]


def test_counters_that_begin_anew_give_no_negative_rate() -> None:
    history = History()
    add(history, 100.0, 1000, 500)
    add(history, 105.0, 10, 5)
    assert history.newer(0.0)[0]["prompt_tokens_per_s"] == 0.0
    add(history, 105.0, 20, 5)
    assert len(history.newer(0.0)) == 1, "the same look twice is one sample"


def test_it_is_bounded() -> None:
    history = History()
    for number in range(800):
        add(history, 100.0 + number * SAMPLE_PERIOD_S)
    samples = history.newer(0.0)
    assert samples[-1]["at"] - samples[0]["at"] == pytest.approx(HISTORY_S - SAMPLE_PERIOD_S)
