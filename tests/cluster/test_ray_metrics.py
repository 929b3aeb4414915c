"""Series on Ray's metrics port: their contents, and that an error in them ends no process."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from serving.cluster import ray_metrics
from serving.cluster.ray_metrics import RayMetrics
from serving.telemetry.histogram import cumulative
from serving.telemetry.ray_board import REQUESTS

Labels = tuple[tuple[str, str], ...]


class Instruments:
    """The used part of Ray's instruments."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, Labels], float] = {}
        self.made: dict[str, tuple[str, ...]] = {}

    def api(self) -> Any:
        return SimpleNamespace(Counter=self._make, Gauge=self._make)

    def _make(self, name: str, text: str, *, tag_keys: tuple[str, ...]) -> Any:
        assert name not in self.made
        assert text
        self.made[name] = tag_keys

        def inc(value: float, tags: dict[str, str]) -> None:
            key = name, tuple(tags.items())
            self.values[key] = self.values.get(key, 0.0) + value

        def put(value: float, tags: dict[str, str]) -> None:
            self.values[name, tuple(tags.items())] = value

        return SimpleNamespace(inc=inc, set=put)


def counter(name: str, **values: float) -> Metric:
    family = CounterMetricFamily(name, "a text", labels=["of"])
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def test_the_requests_that_serve_counts_too_are_told_what_came_since() -> None:
    ray = Instruments()
    relay = RayMetrics(tuple, ray.api())
    for value in (3.0, 3.0, 5.0):
        relay.write([counter(REQUESTS, a=value, b=0.0)])
    assert ray.values == {(REQUESTS, (("of", "a"),)): 5.0}
    assert ray.made == {REQUESTS: ("of",)}


def test_everything_else_is_set_as_it_is_from_zero_on() -> None:
    ray = Instruments()
    times = HistogramMetricFamily("vllm:times", "a text", labels=["of"])
    times.add_metric(["a"], cumulative((1.0, 3.0), [1, 2, 0]), 4.5)
    relay = RayMetrics(tuple, ray.api())
    relay.write([counter("vllm:tokens", a=0.0), times])
    ray.values.clear()
    relay.write([counter("vllm:tokens", a=7.0), times])
    a = (("of", "a"),)
    assert ray.values == {
        ("vllm_tokens_total", a): 7.0,
        ("vllm_times_bucket", (*a, ("le", "1.0"))): 1.0,
        ("vllm_times_bucket", (*a, ("le", "3.0"))): 3.0,
        ("vllm_times_bucket", (*a, ("le", "+Inf"))): 3.0,
        ("vllm_times_count", a): 3.0,
        ("vllm_times_sum", a): 4.5,
    }


def test_a_mistake_ends_nothing_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_metrics, "PERIOD_S", 0.001)
    ray = Instruments()
    tries = iter(range(1000))

    def collect() -> Iterator[Metric]:
        if next(tries) < 3:
            raise ValueError("no numbers yet")
        yield counter("vllm:tokens", a=1.0)

    async def until_written() -> None:
        task = asyncio.create_task(RayMetrics(collect, ray.api()).run())
        async with asyncio.timeout(30):
            while not ray.values:  # noqa: ASYNC110 - the fake tells nobody
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(until_written())
    assert [record.message for record in caplog.records] == [
        "series for Ray's metrics port are not written: ValueError('no numbers yet')"
    ]
